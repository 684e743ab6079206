"""What is known of the cards in MIG mode, and when it is read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from hami_node.errors import DeviceLost
from hami_node.model import Uuid
from hami_node.ports import Clock
from hami_node.vendors.nvidia.mig.found import FoundInstance, MigCard
from hami_node.vendors.nvidia.nvml.calls import NO_PERMISSION, CallFailed, CardGone, of_one_card
from hami_node.vendors.nvidia.nvml.mig.asked import AskedCard, Impossible
from hami_node.vendors.nvidia.nvml.mig.instances import read_instances, visible_instances
from hami_node.vendors.nvidia.nvml.mig.mode import MigModes
from hami_node.vendors.nvidia.nvml.mig.profiles import ProfilesRead, read_profiles

T = TypeVar("T")

INSTANCES_S: Final = 5.0
"""Others may make and destroy instances at any time."""
PROFILES_S: Final = 60.0
"""Sizes differ from driver to driver, and a driver may be replaced under a running daemon."""
RIGHTS: Final = (
    "the daemon has no rights for MIG: apply daemonset/overlays/mig, which gives it CAP_SYS_ADMIN "
    "and NVIDIA_MIG_CONFIG_DEVICES=all (or let it read "
    "/proc/driver/nvidia/capabilities/mig/config)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dated(Generic[T]):
    """Something read in these modes; until then, on the monotonic clock, it needn't be again."""

    modes: MigModes
    value: T
    until_s: float


class MigReader:
    """Reads MIG for passes and jobs. Only the worker's thread uses it."""

    def __init__(self, clock: Clock) -> None:
        """Knows nothing yet."""
        self._clock = clock
        self._profiles: dict[Uuid, _Dated[ProfilesRead]] = {}
        self._cards: dict[Uuid, _Dated[MigCard]] = {}

    def forget(self) -> None:
        """The driver's session is a new one, perhaps with another driver."""
        self._profiles.clear()
        self._cards.clear()

    def note_change(self, uuid: Uuid) -> None:
        """The card's instances are about to change: the next pass reads them again."""
        self._cards.pop(uuid, None)

    def scan(self, card: AskedCard, uuid: Uuid, modes: MigModes) -> MigCard:
        """The card for a pass, without processes; read again only when that is due.

        Raises:
            CardGone, DriverUnavailable: the card or the driver is lost. Whatever else is wrong is
                the card's `problem`.
        """
        now_s, known = self._clock.monotonic(), self._cards.get(uuid)
        if known is not None and known.modes == modes and now_s < known.until_s:
            return known.value
        try:
            found = self._read(card, uuid, modes, with_processes=False)
        except CardGone:
            raise
        except DeviceLost as e:
            kept = self._profiles.get(uuid)
            found = MigCard(
                is_enabled=True,
                is_pending=modes.is_pending,
                profiles=kept.value.profiles if kept else (),
                problem=_explained(e),
            )
        self._cards[uuid] = _Dated(modes=modes, value=found, until_s=now_s + INSTANCES_S)
        return found

    def look(self, card: AskedCard, uuid: Uuid, modes: MigModes) -> MigCard:
        """The card as it is now, with the processes on its instances.

        Raises:
            DeviceLost: it can't be read in full.
        """
        found = self._read(card, uuid, modes, with_processes=True)
        if found.restriction:
            raise CallFailed("not all of the card may be seen", NO_PERMISSION)
        return found

    def profiles_of(self, card: AskedCard, uuid: Uuid, modes: MigModes) -> ProfilesRead:
        """The card's profiles, read again from time to time. Raises DeviceLost."""
        now_s, known = self._clock.monotonic(), self._profiles.get(uuid)
        if known is None or known.modes != modes or now_s >= known.until_s:
            self._profiles.pop(uuid, None)
            read = read_profiles(card)
            known = _Dated(modes=modes, value=read, until_s=now_s + PROFILES_S)
            self._profiles[uuid] = known
        return known.value

    def _read(
        self, card: AskedCard, uuid: Uuid, modes: MigModes, *, with_processes: bool
    ) -> MigCard:
        if not modes.is_enabled:
            return MigCard(is_enabled=False, is_pending=modes.is_pending)
        with of_one_card():
            read = self.profiles_of(card, uuid, modes)
            restriction = RIGHTS if read.is_restricted else ""
            try:
                instances = _instances(card, read, with_processes)
            except CallFailed as e:
                if not _lacks_rights(e):
                    raise
                restriction, instances = RIGHTS, visible_instances(card, read.profiles)
        return MigCard(
            is_enabled=True,
            is_pending=modes.is_pending,
            profiles=read.profiles,
            instances=instances,
            restriction=restriction,
        )


def _instances(
    card: AskedCard, read: ProfilesRead, with_processes: bool
) -> tuple[FoundInstance, ...]:
    if read.is_restricted:
        return visible_instances(card, read.profiles)
    try:
        return read_instances(card, read.profiles, with_processes=with_processes)
    except (CallFailed, Impossible) as e:
        if isinstance(e, CardGone) or _lacks_rights(e):
            raise
        # it looks like this, too, while others make and destroy some
        return read_instances(card, read.profiles, with_processes=with_processes)


def _lacks_rights(error: DeviceLost) -> bool:
    return isinstance(error, CallFailed) and error.code == NO_PERMISSION


def _explained(error: DeviceLost) -> str:
    return f"{error}: {RIGHTS}" if _lacks_rights(error) else str(error)
