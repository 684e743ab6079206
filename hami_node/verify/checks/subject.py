"""What every check gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hami_node.cluster.paths import CORE, segment
from hami_node.cluster.reading import Gap, Reader
from hami_node.vendors.protocol import VendorProtocol
from hami_node.verify.findings import Finding, unknown
from hami_node.verify.installation import Installation


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An installation, and how to read more of the cluster.

    Attributes:
        vendors: how cards are read from nodes and pods, by the settings of the installation.
        now_s: Unix seconds.
    """

    installed: Installation
    reader: Reader
    vendors: tuple[VendorProtocol, ...]
    now_s: float

    @property
    def namespace(self) -> str:
        """Where it is installed."""
        return self.installed.namespace

    def path(self, group: str, resource: str, name: str = "") -> str:
        """The path of an object in the namespace, or of all of them."""
        base = f"{group}/namespaces/{segment(self.namespace)}/{resource}"
        return f"{base}/{segment(name)}" if name else base

    def core(self, resource: str, name: str = "") -> str:
        """The same for the kinds that Kubernetes began with."""
        return self.path(CORE, resource, name)


def gap_of(check: str, gap: Gap) -> Finding:
    """A check that was not made because of a gap."""
    return unknown(check, gap.why, is_outage=gap.is_outage)


def gaps_in(subject: Subject, check: str, *names: str) -> Iterator[Finding]:
    """The gaps of what was listed under these names."""
    for name in names:
        if name in subject.installed.gaps:
            yield gap_of(check, subject.installed.gaps[name])
