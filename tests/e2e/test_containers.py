"""(c) Pods of several containers: each gets its own slice, in every generation's layout."""

from __future__ import annotations

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e import cards
from tests.e2e.api import Api
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.fakes.pods import Generation

_A, _B, _C, _D = cards.UUIDS[:4]
_WITH_INIT_SLOTS = (Generation.V2_10, Generation.V2_10_COMPACT)
_WITHOUT_INIT_SLOTS = (Generation.V2_4, Generation.V2_7)
_DONE = RealContainer(name="init", cards=1, memory_mib=1000, script="true")


@pytest.mark.parametrize("generation", _WITH_INIT_SLOTS)
def test_init_container_has_its_own_slice(api: Api, pods: Pods, generation: Generation) -> None:
    pod = pods.create(
        "several",
        RealContainer(name="c0", cards=2, memory_mib=4000),
        RealContainer(name="plain"),
        RealContainer(name="c1", cards=1, memory_mib=2000, cores=10),
        inits=[_DONE],
    )
    reservation = {
        "init": (Slice(uuid=_D, memory_mib=1000),),
        "c0": (Slice(uuid=_A, memory_mib=4000), Slice(uuid=_B, memory_mib=4000)),
        "c1": (Slice(uuid=_C, memory_mib=2000, cores=10),),
    }
    Scheduler(api, generation).place(pod, reservation, is_locked=True)
    pods.wait_running("several")
    _check_several(pods)
    assert pods.inside("several", "init").cards == (_D,)
    assert pods.inside("several", "init").memory_limits == ("1000m",)


@pytest.mark.parametrize("generation", _WITHOUT_INIT_SLOTS)
def test_init_container_without_slot_borrows_the_app_containers(
    api: Api, pods: Pods, generation: Generation
) -> None:
    pod = pods.create(
        "several",
        RealContainer(name="c0", cards=2, memory_mib=4000),
        RealContainer(name="plain"),
        RealContainer(name="c1", cards=1, memory_mib=2000, cores=10),
        inits=[RealContainer(name="init", cards=2, memory_mib=4000, script="true")],
    )
    reservation = {
        "c0": (Slice(uuid=_A, memory_mib=4000), Slice(uuid=_B, memory_mib=4000)),
        "c1": (Slice(uuid=_C, memory_mib=2000, cores=10),),
    }
    Scheduler(api, generation).place(pod, reservation, is_locked=True)
    pods.wait_running("several")
    _check_several(pods)
    assert pods.inside("several", "init").cards == (_A, _B)
    assert pods.inside("several", "init").memory_limits == ("4000m", "4000m")


def _check_several(pods: Pods) -> None:
    two, plain, one = (pods.inside("several", name) for name in ("c0", "plain", "c1"))
    assert two.cards == (_A, _B)
    assert two.memory_limits == ("4000m", "4000m")
    assert one.cards == (_C,)
    assert one.memory_limits == ("2000m",)
    assert one.env[nvidia_names.ENV_CORE_LIMIT] == "10"
    assert plain.cards == ()
    assert nvidia_names.ENV_CACHE not in plain.env
    caches = {two.env[nvidia_names.ENV_CACHE], one.env[nvidia_names.ENV_CACHE]}
    assert len(caches) == 2
    assert pods.annotation("several", names.POD_BIND_PHASE) == names.PHASE_SUCCESS


@pytest.mark.parametrize("generation", list(Generation))
def test_card_of_the_second_container_is_not_given_to_the_first(
    api: Api, pods: Pods, generation: Generation
) -> None:
    pod = pods.create(
        "late", RealContainer(name="mesh"), RealContainer(name="gpu", cards=1, memory_mib=5000)
    )
    Scheduler(api, generation).place(pod, {"gpu": (Slice(uuid=_C, memory_mib=5000),)})
    pods.wait_running("late")
    assert pods.inside("late", "mesh").cards == ()
    assert pods.inside("late", "gpu").cards == (_C,)


def test_sidecar_with_a_card_keeps_its_slice(api: Api, pods: Pods) -> None:
    pod = pods.create(
        "with-sidecar",
        RealContainer(name="gpu", cards=1, memory_mib=5000),
        inits=[RealContainer(name="proxy", cards=1, memory_mib=700, is_sidecar=True)],
    )
    reservation = {
        "proxy": (Slice(uuid=_B, memory_mib=700),),
        "gpu": (Slice(uuid=_C, memory_mib=5000),),
    }
    Scheduler(api).place(pod, reservation)
    pods.wait_running("with-sidecar")
    assert pods.inside("with-sidecar", "proxy").cards == (_B,)
    assert pods.inside("with-sidecar", "gpu").memory_limits == ("5000m",)
