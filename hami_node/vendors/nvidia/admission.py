"""NVIDIA cards in the admission webhook: defaults of requests, and the limiter's variables. Pure.

In kubelet a pod's own variables override those of a device plugin, so a limit in the pod would
replace the real limit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hami_node.errors import WireError
from hami_node.model import Ask, Container
from hami_node.vendors.admission import Env, EnvVar, VendorAdmission
from hami_node.vendors.nvidia import names, requests
from hami_node.vendors.nvidia.choices import CorePolicy
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.protocol import NvidiaProtocol
from hami_node.vendors.quantities import check_quantities, text_of
from hami_node.wire.values import parse_whole_quantity

WHOLE_CARD_CORES: Final = "100"
NO_CARD_HAS_MIB: Final = 16 * 1024 * 1024
"""16 TiB: more can only be a wrong unit."""
HIDDEN: Final = frozenset({"", names.HIDES_ALL_CARDS})
"""Values of the visible devices that hide all cards with every version and mode of NVIDIA's
runtime; `none` fails in some and shows all cards in one.
"""

_WORDS: Final[Mapping[str, frozenset[str]]] = MappingProxyType({names.VGPU_MODE: frozenset(Mode)})

_SHOWS_CARDS: Final = "would show it cards that other containers asked for, and it asks for none"
_SHOWS_ALL_SOMEWHERE: Final = (
    "fails with NVIDIA's runtime in CDI mode, and shows all cards with one version of it (void "
    "hides them everywhere)"
)


@dataclass(frozen=True, kw_only=True)
class NvidiaAdmission(VendorAdmission):
    """What the webhook checks and writes on pods with NVIDIA cards.

    Attributes:
        core_policy: written into containers with cards unless it is the limiter's default.
        hides_cards: containers that request no card don't see any.
    """

    protocol: NvidiaProtocol
    words: Mapping[str, frozenset[str]] = field(default_factory=lambda: _WORDS)
    core_policy: CorePolicy = CorePolicy.DEFAULT
    hides_cards: bool = False

    # -- what a container asks for -----------------------------------------------------------------
    def defaults_of(self, named: Sequence[str]) -> Mapping[str, str]:
        """The count for a container that names memory or cores but no number of cards."""
        settings = self.protocol.settings
        parts = {
            settings.resource_memory,
            settings.resource_memory_percent,
            settings.resource_cores,
        }
        has_part_only = settings.resource_count not in named and not parts.isdisjoint(named)
        count = settings.default_count
        return {settings.resource_count: str(count)} if has_part_only and count else {}

    def ask_of(self, container: Container) -> Ask | None:
        """See `VendorAdmission`; memory or cores without a card request nothing."""
        settings, is_101_unset = self.protocol.settings, self.protocol.is_101_unset
        requests.check_percentage(container, settings, is_101_unset=is_101_unset)
        check_quantities(container, settings.amounts)
        ask = requests.gpu_ask_of(container, settings, is_101_unset=is_101_unset)
        self._priority_of(container)
        return ask

    def implied_by(self, ask: Ask, named: Sequence[str]) -> Mapping[str, str]:
        """A container with all of a card's memory that names no cores gets all cores too.

        This is decided from the ask as the scheduler resolves it, defaults included.
        Source: HAMi nvidia/device.go:417, which looks at the names.
        """
        cores = self.protocol.settings.resource_cores
        is_whole = ask.memory_mib is None and ask.memory_percent == 100 and not ask.cores
        return {cores: WHOLE_CARD_CORES} if is_whole and cores not in named else {}

    def hint_of(self, resource: str) -> str:
        """What to write for each of the resources."""
        settings = self.protocol.settings
        factor = settings.memory_factor
        unit = "MiB" if factor <= 1 else f"pieces of {factor} MiB"
        hints = {
            settings.resource_count: "write a whole number of cards, such as 1",
            settings.resource_memory: f"write {unit} as a plain whole number, such as 3000",
            settings.resource_memory_percent: "write percent of a card's memory, such as 50",
            settings.resource_cores: "write percent of one card as a whole number, such as 30",
            settings.resource_priority: "write 0 for high or 1 for low",
        }
        return hints[resource]

    def warnings_of(
        self, container: Container, named: Sequence[str], ask: Ask | None
    ) -> Iterator[str]:
        """Amounts without a card, and amounts that no card has."""
        del container
        settings = self.protocol.settings
        others = [resource for resource in named if resource != settings.resource_count]
        if ask is None:
            if others:
                count = settings.resource_count
                yield f"names {', '.join(others)} without {count} above 0: it gets no card"
            return
        if ask.cores > 100:
            yield f"{settings.resource_cores} is {ask.cores} percent of one card: it counts as 100"
        if (ask.memory_mib or 0) >= NO_CARD_HAS_MIB:
            yield (
                f"{settings.resource_memory} means {ask.memory_mib} MiB on each card, more than "
                f"any card has; {self.hint_of(settings.resource_memory)}"
            )

    def _priority_of(self, container: Container) -> str:
        """The priority for the limiter; "" when the container names none."""
        resource = self.protocol.settings.resource_priority
        text = text_of(container, resource)
        if text is None:
            return ""
        value = parse_whole_quantity(text, resource)
        if value not in (0, 1):
            raise WireError(resource, text, "has to be 0 or 1")
        return str(value)

    # -- its environment ---------------------------------------------------------------------------
    def objection_to(self, var: EnvVar, container: Container, ask: Ask | None) -> str:
        """The limiter's variables are the node's; cards are shown only to containers with cards."""
        if ask is None:
            is_shown = var.name == names.ENV_VISIBLE_DEVICES and var.value not in HIDDEN
            if not is_shown or self.hides_cards:
                return ""
            return _SHOWS_ALL_SOMEWHERE if var.value == "none" else _SHOWS_CARDS
        if var.name == names.ENV_VISIBLE_DEVICES:
            return ""  # taken out
        if var.name == names.ENV_TASK_PRIORITY:
            priority = self._priority_of(container)
            if priority not in ("", var.value):
                return f"contradicts {self.protocol.settings.resource_priority} {priority}"
        return requests.why_reserved(var.name)

    def env_of(self, container: Container, env: Env, ask: Ask | None) -> Mapping[str, str]:
        """Priority and core policy, or that all cards are hidden."""
        if ask is None:
            return (
                {names.ENV_VISIBLE_DEVICES: names.HIDES_ALL_CARDS}
                if self._needs_hiding(container, env)
                else {}
            )
        wanted = {}
        if priority := self._priority_of(container):
            wanted[names.ENV_TASK_PRIORITY] = priority
        if self.core_policy is not CorePolicy.DEFAULT:
            wanted[names.ENV_CORE_POLICY] = self.core_policy.value
        return wanted

    def env_of_the_node(self, ask: Ask | None) -> Collection[str]:
        """The visible devices: many pods made for other device plugins say `all`."""
        return (names.ENV_VISIBLE_DEVICES,) if ask is not None else ()

    def _needs_hiding(self, container: Container, env: Env) -> bool:
        """True unless the container hides the cards itself; the last entry of a name counts.

        A container that kubelet gives a share or an instance to sees that.
        """
        if not self.hides_cards or any(map(self.protocol.is_fixed, container.limits)):
            return False
        own = [var.value for var in env if var.name == names.ENV_VISIBLE_DEVICES]
        return not own or any(value not in HIDDEN for value in own)
