from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import grpc
import pytest

from hami_node.clock import Deadline
from hami_node.errors import NoPendingPod
from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.node.cards.inventory import Inventory
from hami_node.node.kubelet.plugin import AllocatorSlot, DevicePlugin
from hami_node.vendors.on_node.answer import ContainerResponse
from hami_node.vendors.spec import PluginOptions
from tests.fakes.clock import RealClock

CONTEXT = cast(grpc.ServicerContext, SimpleNamespace(add_callback=lambda _: True))


class Fails:
    """An allocator that can't answer."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def allocate(self, device_ids: object, deadline: Deadline) -> list[ContainerResponse]:
        raise self.error

    def prefer(self, available: object, must: object, size: int, deadline: Deadline) -> list[str]:
        raise self.error


@pytest.mark.parametrize(
    "error", [NoPendingPod("who?"), RuntimeError("a bug")], ids=["unknown", "broken"]
)
def test_preference_without_an_answer_is_any_with_what_must_be(error: Exception) -> None:
    slot = AllocatorSlot(RealClock())
    slot.put(Fails(error))
    asked = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=["a", "b", "c"], must_include_deviceIDs=["c"], allocation_size=2
    )
    request = api.PreferredAllocationRequest(container_requests=[asked])
    plugin = DevicePlugin(
        Inventory(),
        slot,
        PluginOptions(),
        choose=lambda available, must, size: [*must, *available][:size],
        shows_numa=lambda: True,
    )
    (answer,) = plugin.GetPreferredAllocation(request, CONTEXT).container_responses
    assert list(answer.deviceIDs) == ["c", "a"]
