"""All checks, in the order in which their causes come: what is to be done first is found first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from hami_node.cluster.reading import Reader
from hami_node.config.settings import Settings, make_settings
from hami_node.errors import HamiError
from hami_node.setting_types import Blocks
from hami_node.text import shown
from hami_node.vendors.spec import AnyVendor, protocols_of
from hami_node.verify.checks.agreement import check_settings
from hami_node.verify.checks.certificates import check_certificates
from hami_node.verify.checks.collisions import check_collisions
from hami_node.verify.checks.leading import check_leading
from hami_node.verify.checks.nodes import check_nodes
from hami_node.verify.checks.pods import check_parts
from hami_node.verify.checks.policies import check_policies
from hami_node.verify.checks.subject import Subject
from hami_node.verify.checks.webhook import check_webhooks
from hami_node.verify.findings import Finding
from hami_node.verify.installation import Installation, Runs, read_installation

CHECKS: Final[Sequence[Callable[[Subject], Iterator[Finding]]]] = (
    check_settings,
    check_certificates,
    check_parts,
    check_leading,
    check_webhooks,
    check_policies,
    check_nodes,
    check_collisions,
)


def read_subject(
    reader: Reader,
    namespace: str,
    vendors: Sequence[AnyVendor],
    *,
    node_name: str | None,
    now_s: float,
) -> Subject:
    """What the checks look at.

    Raises:
        KubeError: the API server can't be reached, or does not know us.
        HamiError: there is no node of that name.
    """
    reader.reach()
    blocks: Blocks = tuple(vendor.settings for vendor in vendors)
    installed = read_installation(reader, namespace, blocks, node_name)
    if node_name is not None and not installed.nodes and "nodes" not in installed.gaps:
        raise HamiError(f"there is no node {shown(node_name)}")
    protocols = protocols_of(vendors, _settings(installed, blocks))
    return Subject(installed=installed, reader=reader, vendors=protocols, now_s=now_s)


def _settings(installed: Installation, blocks: Blocks) -> Settings:
    for runs in (Runs.EXTENDER, Runs.DAEMON):
        if found := installed.settings_of(runs):
            return found
    return make_settings({}, blocks)


def check_all(subject: Subject) -> Iterator[Finding]:
    """Every finding, as it is found."""
    for check in CHECKS:
        yield from check(subject)
