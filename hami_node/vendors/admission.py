"""What the admission webhook does for one vendor's cards when a pod is created. Pure.

The webhook iterates over `VendorAdmission`s. By default they check the values and write nothing
into the pod; a vendor overrides what differs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hami_node.errors import WireError
from hami_node.model import Ask, Container
from hami_node.text import shown
from hami_node.vendors.protocol import VendorProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    """An entry of a container's environment; `value` is None for `valueFrom`."""

    name: str
    value: str | None


Env = Sequence[EnvVar]


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorRequest:
    """What a container requests from one vendor, as the webhook understands it.

    Attributes:
        named: which of the vendor's resources it names.
        ask: what it gets; None for nothing.
        added: quantities to write into it, by resource.
        problem: why the request can't be served, "" when it can.
        warnings: what its author should know.
    """

    named: tuple[str, ...] = ()
    ask: Ask | None = None
    added: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    problem: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VendorAdmission:
    """What the webhook checks and writes for one vendor, under the settings in force.

    Attributes:
        protocol: its resources, and how asks are read.
        runtime_class_name: for pods with its cards that set none; "" leaves them as they are.
        words: the words that are allowed in a pod's wishes, by annotation.
    """

    protocol: VendorProtocol
    runtime_class_name: str = ""
    words: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))

    # -- what a container asks for -----------------------------------------------------------------
    def read(self, container: Container) -> VendorRequest:
        """Check the container's values and work out what has to be written into it."""
        quantities = {**container.requests, **container.limits}
        named = tuple(name for name in self.protocol.resources if name in quantities)
        if not named:
            return VendorRequest()
        added = self.defaults_of(named)
        try:
            self.protocol.refuse_conflict(container)
            ask = self.ask_of(replace(container, limits={**container.limits, **added}))
        except WireError as e:
            problem = f"{e.key} is {shown(e.excerpt)}: {e.why} ({self.hint_of(e.key)})"
            return VendorRequest(named=named, problem=problem)
        return VendorRequest(
            named=named,
            ask=ask,
            added=added if ask is None else {**added, **self.implied_by(ask, named)},
            warnings=tuple(self.warnings_of(container, named, ask)),
        )

    def defaults_of(self, named: Sequence[str]) -> Mapping[str, str]:
        """Quantities to add by default for the resources that the container names."""
        del named
        return {}

    def ask_of(self, container: Container) -> Ask | None:
        """What the container asks for, once it has its defaults.

        Raises:
            WireError: a value that can't be served; `key` names the resource.
        """
        return self.protocol.ask_of(container)

    def implied_by(self, ask: Ask, named: Sequence[str]) -> Mapping[str, str]:
        """Quantities that follow from the ask and are not named."""
        del ask, named
        return {}

    def hint_of(self, resource: str) -> str:
        """What to write for a resource instead of a wrong value."""
        del resource
        return "write a whole number, such as 1"

    def warnings_of(
        self, container: Container, named: Sequence[str], ask: Ask | None
    ) -> Iterable[str]:
        """What is odd about a request that is admitted anyway."""
        del container, named, ask
        return ()

    # -- its environment ---------------------------------------------------------------------------
    def objection_to(self, var: EnvVar, container: Container, ask: Ask | None) -> str:
        """Why a container must not set a variable, as the end of a sentence; "" when it may.

        The pod requests the vendor's cards; `ask` is this container's own, None for nothing.
        """
        del var, container, ask
        return ""

    def env_of(self, container: Container, env: Env, ask: Ask | None) -> Mapping[str, str]:
        """The variables to add to a container with this environment, by name."""
        del container, env, ask
        return {}

    def env_of_the_node(self, ask: Ask | None) -> Collection[str]:
        """Variables that a container loses, so that those of the node count.

        Only what the node always writes: a container must not lose a value that it needs.
        """
        del ask
        return ()
