"""How a setting is declared, and the kinds of values: ranges and patterns with descriptions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, Self, TypeAlias, TypeVar

from msgspec import Meta

from hami_node.errors import ConfigError

Address = Annotated[
    str,
    Meta(
        pattern=r"^(off|(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]*):[0-9]{1,5})\Z",
        description="HOST:PORT, :PORT, or off",
    ),
]
ObjectName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?\Z",
        description="a Kubernetes name: lower-case letters, digits, - and .",
    ),
]
LabelPair = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
        r"=([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?\Z",
        description="a label as key=value",
    ),
]
GpuPolicy = Annotated[
    str,
    Meta(
        pattern=r"^(binpack|spread|topology-aware|mutex|numa)(,(binpack|spread|topology-aware|mutex|numa))*\Z",
        description="binpack, spread, topology-aware, mutex, numa, or several with commas",
    ),
]
Scaling = Annotated[float, Meta(gt=0, le=100)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Mebibytes = Annotated[int, Meta(ge=0, le=2**31)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Count = Annotated[int, Meta(ge=1, le=100_000)]

T = TypeVar("T")
S = TypeVar("S")


class WrittenValue(ABC):
    """A setting's value that is written in forms of its own. Compared by value.

    The setting's type is `Annotated[..., Meta(description=...)]`, which tells people the forms.
    """

    @classmethod
    @abstractmethod
    def read(cls, value: object) -> Self:
        """From a flag or an environment variable (text), or from a file (any plain value).

        Raises:
            ValueError: not understood, or out of range.
        """

    @abstractmethod
    def plain(self) -> object:
        """As a plain value for JSON and YAML."""


class Role(StrEnum):
    """Which program the settings are for."""

    DAEMON = "run"
    EXTENDER = "extender"


class Group(StrEnum):
    """Titles of the groups of settings, in the order in which people see them."""

    NODE = "Node"
    API_SERVER = "API server"
    CARDS = "Cards"
    SHARING = "Sharing"
    REQUESTS = "Resources and requests"
    CONTAINER = "What a container gets"
    REPORTS = "Reports"
    RULES = "Rules"
    SCHEDULING = "Scheduling"
    EXTENDER = "Extender"
    PATHS = "Paths"
    METRICS_AND_LOGS = "Metrics and logs"

    def is_read_by(self, role: Role) -> bool:
        """Whether a program reads the settings of this group."""
        return self in _SHARED or (self in _OF_EXTENDER) == (role is Role.EXTENDER)


_SHARED: Final = (Group.API_SERVER, Group.REQUESTS, Group.RULES, Group.METRICS_AND_LOGS)
_OF_EXTENDER: Final = (Group.SCHEDULING, Group.EXTENDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a setting is called outside, what it means, and what else is known of it.

    Attributes:
        doc: one sentence for people, with the unit.
        flags: other spellings of its flag, without the leading dashes.
        env: other environment variables, in order of precedence, after ours.
        yaml: its key below its vendor's section in device-config.yaml.
        node: its key in an entry of config.json's `nodeconfig`; a dot leads into an object.
        refused: the values of an enumeration that are not served, each with why, and what to do.
        is_quoted: HAMi's files write this number in quotes.
    """

    doc: str
    flags: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    yaml: str = ""
    node: str = ""
    refused: Mapping[Any, str] = field(default_factory=dict)
    is_quoted: bool = False


def setting(
    default: T,
    doc: str,
    *,
    flags: tuple[str, ...] = (),
    env: tuple[str, ...] = (),
    yaml: str = "",
    node: str = "",
    refused: Mapping[Any, str] = MappingProxyType({}),
    is_quoted: bool = False,
) -> T:
    """Declare a field of `Settings`, or of a vendor's block, with its default and its names."""
    names = Names(
        doc=doc,
        flags=flags,
        env=env,
        yaml=yaml,
        node=node,
        refused=refused,
        is_quoted=is_quoted,
    )
    return field(default=default, metadata={"names": names})


def _no_problems(_values: object, _role: Role) -> tuple[ConfigError, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SettingsBlock(Generic[S]):
    """What one vendor adds to the settings.

    Attributes:
        kind: a frozen dataclass whose fields are declared by `setting(...)`. Their names are unique
            among all vendors: flag and environment variable are made from them.
        groups: the group of each field, by the first field of a group.
        section: its section of device-config.yaml; "" for none.
        resources: the fields that name extended resources; each needs a name of its own.
        fixed: the fields that a running daemon can't change.
        ignored_flags: HAMi's flags of the daemon for this vendor that change nothing here.
        ignored_env: HAMi's environment variables for this vendor that change nothing here.
        idle_node_keys: HAMi's keys of a node's entry in config.json that change nothing here, each
            with the values that need no warning.
        own_node_keys: the keys of such an entry that HAMi never had: a misspelt one is an error.
        problems: contradictions between its values, for one of the programs.
    """

    kind: type[S]
    groups: Mapping[str, Group]
    section: str = ""
    resources: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    ignored_flags: tuple[str, ...] = ()
    ignored_env: tuple[str, ...] = ()
    idle_node_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own_node_keys: tuple[str, ...] = ()
    problems: Callable[[S, Role], tuple[ConfigError, ...]] = _no_problems


Blocks: TypeAlias = tuple[SettingsBlock[Any], ...]
