"""Pictures of saved clusters, as the tests of inspection need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hami_node.engine.place import Rules
from hami_node.inspection.picture import Basis, Listed, Picture, picture_of
from hami_node.inspection.pod import PodView, explain_pod
from hami_node.inspection.saved import read_saved
from hami_node.model import Grant, Uuid
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.wire import names
from hami_node.wire.grants import encode_grants
from tests.fakes.saved_cluster import NOW_S, saved

BASIS = Basis(vendors=(nvidia_protocol(), neuron_protocol()), rules=Rules())
SCHEDULER = "hami-scheduler"


def listed(*items: Mapping[str, object]) -> Listed:
    """What `kubectl get` has saved."""
    found = read_saved(saved(*items), "file")
    assert found.problems == ()
    return Listed(nodes=found.nodes, pods=found.pods, quotas=found.quotas)


def picture(*items: Mapping[str, object]) -> Picture:
    """The same as the extender sees it."""
    return picture_of(listed(*items), BASIS, NOW_S)


def explained(name: str, *items: Mapping[str, object], basis: Basis = BASIS) -> PodView:
    """The pod `default/name` among these objects."""
    found = listed(*items)
    (pod,) = (pod for pod in found.pods if pod.key == f"default/{name}")
    return explain_pod(found, pod, basis, NOW_S, SCHEDULER)


def with_memory_factor(factor: int) -> Basis:
    """Settings under which a unit of the memory resource is so many MiB."""
    nvidia = nvidia_protocol(NvidiaSettings(memory_factor=factor))
    return replace(BASIS, vendors=(nvidia, *BASIS.vendors[1:]))


def held(
    uuid: str, memory_mib: int, cores: int = 0, *, on: str = "", at_s: int = 0
) -> dict[str, str]:
    """Annotations of a pod with one slice; `on` a node that it is only reserved on."""
    grant = Grant(uuid=Uuid(uuid), vendor=NVIDIA, memory_mib=memory_mib, cores=cores)
    text = encode_grants(((grant,),))
    annotations = {
        nvidia_names.POD_ALLOCATED: text,
        nvidia_names.POD_TO_ALLOCATE: text if on else ";",
    }
    return {**annotations, names.POD_NODE: on, names.POD_TIME: str(at_s)} if on else annotations
