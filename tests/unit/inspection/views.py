"""Pictures of saved clusters, as the tests of inspection need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hami_node.extender.rules import ExtenderRules, rules_of
from hami_node.inspection.picture import Listed, Picture, picture_of
from hami_node.inspection.pod import PodView, explain_pod
from hami_node.inspection.saved import read_saved
from hami_node.model import Grant, Uuid, Vendor
from hami_node.settings import Settings
from hami_node.wire import names
from hami_node.wire.pod_codec import encode_grants
from tests.fakes.saved_cluster import NOW_S, saved

RULES = rules_of(Settings())
SCHEDULER = "hami-scheduler"


def listed(*items: Mapping[str, object]) -> Listed:
    """What `kubectl get` has saved."""
    found = read_saved(saved(*items), "file")
    assert found.problems == ()
    return Listed(nodes=found.nodes, pods=found.pods, quotas=found.quotas)


def picture(*items: Mapping[str, object]) -> Picture:
    """The same as the extender sees it."""
    return picture_of(listed(*items), RULES, NOW_S)


def explained(name: str, *items: Mapping[str, object], rules: ExtenderRules = RULES) -> PodView:
    """The pod `default/name` among these objects."""
    found = listed(*items)
    (pod,) = (one for one in found.pods if one.key == f"default/{name}")
    return explain_pod(found, pod, rules, NOW_S, SCHEDULER)


def with_memory_factor(factor: int) -> ExtenderRules:
    """Rules under which a unit of the memory resource is so many MiB."""
    return replace(RULES, config=replace(RULES.config, memory_factor=factor))


def held(
    uuid: str, memory_mib: int, cores: int = 0, *, on: str = "", at_s: int = 0
) -> dict[str, str]:
    """Annotations of a pod with one slice; `on` a node that it is only reserved on."""
    grant = Grant(uuid=Uuid(uuid), vendor=Vendor.NVIDIA, memory_mib=memory_mib, cores=cores)
    text = encode_grants(((grant,),))
    said = {names.POD_ALLOCATED: text, names.POD_TO_ALLOCATE: text if on else ";"}
    return {**said, names.POD_NODE: on, names.POD_TIME: str(at_s)} if on else said
