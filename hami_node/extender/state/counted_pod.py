"""What the state records about one pod, and how two reservations of a pod are told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hami_node.engine.card_rules import is_overcommitted
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.extender.state.unbound.carried import Carried
from hami_node.model import Pod
from hami_node.ports import Clock
from hami_node.vendors.holding import has_grants, marks_of, reservation_keys
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.resize import Word

Marks = tuple[str | bool | None, ...]

NOTHING: Final = PodGrants(containers=())
"""What a pod holds that is charged nowhere."""
NO_WORDS: Final[Mapping[str, Word]] = MappingProxyType({})
"""What a node says of a pod that was never resized."""

STEP_S: Final = 0.01
"""Of the coarse clock."""

_RESIZE_KEYS: Final = (names.POD_RESIZE, names.POD_RESIZE_APPROVED, names.POD_RESIZE_STATE)


class CoarseClock:
    """A clock that stands still for a hundredth of a second: all that ask meanwhile get one number.

    It notes when each pod was first seen: a large cluster lists 100,000 in seconds.
    """

    def __init__(self, clock: Clock) -> None:
        """Read `clock`."""
        self._clock, self._now_s = clock, clock.monotonic()

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps, at most a hundredth of a second behind."""
        now_s = self._clock.monotonic()
        if now_s - self._now_s >= STEP_S:
            self._now_s = now_s
        return self._now_s


@dataclass(slots=True)
class Counted:
    """What is charged for one pod. Guarded by the state's lock.

    An unbound pod is charged for the reservation that this process made, whatever its annotations
    claim; a bound pod for the most that was ever seen of it.

    Attributes:
        pod: its newest known state.
        born_s: monotonic time at which it was first seen.
        node: where it is charged; "" if it is not.
        grants: what is charged there.
        since_s: monotonic time of the reservation, while the pod is not bound; None once it is.
        token: of the reservation whose patch is in flight; 0 without such a patch.
        own: marks of the reservation as it was stored; () before that.
        carried: the reservation while it stands in memory alone: the Binding shall carry it.
        bound_s: monotonic time at which it was first known to be bound; None before that.
        charged: the bound pod when it was charged; None if it has to be charged again.
        words: what its node said of its resized containers then.
        seen: the grants of the bound pod that no edit makes smaller.
        asked: what it shall hold by a resize that may have been approved in its present version.
        is_binding: a call to bind it is running.
        is_doubtful: a binding was sent, and it is unknown whether it was made.
        void_version: set where a binding that was sent before may still arrive, whether or not its
            reservation counts: the cards stay charged while the pod is in this version.
    """

    pod: Pod
    born_s: float
    node: str = ""
    grants: PodGrants = NOTHING
    since_s: float | None = None
    token: int = 0
    own: Marks = ()
    carried: Carried | None = None
    bound_s: float | None = None
    charged: Pod | None = None
    words: Mapping[str, Word] = field(default_factory=lambda: NO_WORDS)
    seen: PodGrants = NOTHING
    asked: PodGrants = NOTHING
    is_binding: bool = False
    is_doubtful: bool = False
    void_version: str = ""

    @property
    def version(self) -> int:
        """Of the newest known state of the pod, else of that it was decided on; 0 if unknown."""
        return self.pod.version or (0 if self.carried is None else self.carried.pod.version)

    @property
    def is_late(self) -> bool:
        """True if a Binding that carries the reservation was sent, and may still arrive."""
        return self.is_doubtful and self.carried is not None

    def is_outdated(self, pod: Pod) -> bool:
        """True if this state of the pod is older than the known state.

        Our own patch may be answered before the watch shows it; and no pod is ever unbound.
        """
        is_older = pod.version < self.pod.version
        return is_older or bool(self.pod.node_name and not pod.node_name)

    def age_s(self, monotonic_s: float) -> float | None:
        """How old the reservation of an unbound pod is; None while a call is working on it."""
        if self.since_s is None or self.token or self.is_binding:
            return None
        return monotonic_s - self.since_s

    def is_leftover(self, vendors: Sequence[VendorProtocol]) -> bool:
        """True for an unbound pod with a reservation that does not count, or is in doubt."""
        pod = self.pod
        if pod.node_name or pod.is_being_deleted or self.token or self.is_binding:
            return False
        if not has_grants(pod, vendors):
            return self.is_late
        return self.is_doubtful or reservation_marks(pod, vendors) != self.own


def reservation_marks(pod: Pod, vendors: Iterable[VendorProtocol]) -> Marks:
    """What distinguishes one reservation of a pod from the next: all that a node serves from."""
    return tuple(pod.annotations.get(key) for key in reservation_keys(vendors))


def charge_marks(pod: Pod, vendors: Sequence[VendorProtocol]) -> tuple[str | bool, ...]:
    """All that the charge of a bound pod depends on, beside what its node says."""
    return (*marks_of(pod, vendors), *resize_marks(pod))


def resize_marks(pod: Pod) -> tuple[str, ...]:
    """What is said of a resize; an approval that was sent before it changed can't arrive."""
    notes = pod.annotations
    return tuple([key + notes[key] for key in _RESIZE_KEYS if key in notes])


def is_overfull(card: DeviceUsage | None) -> bool:
    """True for a card that is overcommitted, must not be used, or is gone."""
    if card is None or not card.device.healthy or card.contradiction:
        return True
    return is_overcommitted(card)
