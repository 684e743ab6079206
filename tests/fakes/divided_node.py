"""A node with one card in MIG mode, whose instances a test names."""

from __future__ import annotations

from pathlib import Path

from hami_node.config.settings import make_settings
from hami_node.model import Pod
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from hami_node.vendors.on_node.parts import PartsState
from tests.fakes.backend import FakeBackend
from tests.fakes.cards import uuid
from tests.fakes.live_kube import FakeCluster
from tests.fakes.mig_cards import divided, instance
from tests.fakes.nodes import FakeNode, moved
from tests.fakes.parts import FakeParts

POD = Pod(uid="uid-p", namespace="ml", name="train", node_name="n1")


def own_part(number: int, start: int, **changes: object) -> PartView:
    """The 1g.5gb with that number, which the container `main` of `POD` has."""
    made = instance(number, "1g.5gb", start).device
    assert made is not None
    fields: dict[str, object] = {
        "card": uuid(0),
        "kind": "1g.5gb",
        "start": start,
        "size": 1,
        "state": PartState.LIVE,
        "numbers": (number, 0),
        "uuid": made.uuid,
        "pod_uid": POD.uid,
        "container": "main",
    }
    return PartView(**(fields | changes))  # type: ignore[arg-type]  # fields by name


class DividedNode(FakeNode):
    """A card in MIG mode with the instances 7 (of `POD`) and 8 (somebody else's)."""

    def __init__(self, plugin_dir: Path, *own: PartView, **settings: object) -> None:
        found = divided(0, instance(7, "1g.5gb", 0), instance(8, "1g.5gb", 1), ours=(7,))
        self.backend, self.parts = FakeBackend(found), FakeParts()
        self.parts.on_record = PartsState(own=own or (own_part(7, 0),))
        named = {"plugin_dir": plugin_dir, **settings}
        vendor = moved(NVIDIA_SPEC, self.backend, self.parts)
        super().__init__(
            make_settings(named, (NVIDIA_SPEC.settings,)), vendor, cluster=FakeCluster(POD)
        )
        (self.owner,) = self.vendor_cards
        self.owner.find_cards()
        self.owner.offer()
        assert self.owner.parts is self.parts
