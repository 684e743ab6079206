"""Our extender on MIG cards as our daemon registers them; the node accepts what it wrote."""

from __future__ import annotations

from typing import Any

import pytest

from hami_node.config.settings import Generation
from hami_node.engine.check import check_reservation
from hami_node.engine.compat import V2_8, V2_10
from hami_node.engine.usage import DeviceUsage, PodGrants, charged, collapse
from hami_node.model import Ask, Device, Grant, PodWishes, Uuid
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.choices import RegisterFormat
from hami_node.vendors.nvidia.codec import encode_csv9, encode_json
from hami_node.vendors.nvidia.node.mig.registered import RegisteredMig
from hami_node.vendors.nvidia.node.sharing import offered_cards
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.wire.grants import decode_grants
from tests.fakes.mig_cards import MIG, TEMPLATES, divided, instance
from tests.fakes.pods import Box
from tests.unit.extender.desk import Desk

COMPATS = {Generation.V2_8: V2_8, Generation.V2_10: V2_10}


class Node:
    """A node of ours with one card, and the extender that places pods on it."""

    def __init__(
        self,
        settings: NvidiaSettings,
        compat: Generation,
        physical: Device,
        form: RegisterFormat = RegisterFormat.JSON,
    ) -> None:
        self.compat = COMPATS[compat]
        (self.card,) = offered_cards((physical,), settings)
        registered = RegisteredMig(lambda: settings).as_registered((self.card,), form)
        encode = encode_json if form is RegisterFormat.JSON else encode_csv9
        values = {"compat": compat, "known_mig_geometries": settings.known_mig_geometries}
        self.desk = Desk(values=values)
        self.desk.add_node("n")
        self.desk.kube.merge_patch_node("n", {nvidia_names.NODE_REGISTER: encode(registered)})
        self.desk.sync()
        self.use = DeviceUsage(device=self.card)

    def place(self, name: str, box: Box, **ask: Any) -> tuple[Grant, ...] | None:
        """What a pod was given, once the node has accepted it too; None for no place."""
        self.desk.add_pod(name, box)
        self.desk.sync()
        if not self.desk.ask(name, "n")["NodeNames"]:
            return None
        self.desk.sync()
        assert self.desk.bind(name, "n") == ""
        self.desk.sync()
        pod = self.desk.pod(name)
        slots = decode_grants(
            pod.annotations[nvidia_names.POD_ALLOCATED], nvidia_names.POD_ALLOCATED, NVIDIA
        )
        grants = nvidia_protocol().with_parts(pod, slots)[0]
        live = {Uuid(self.card.uuid): self.use}
        wanted = Ask(vendor=NVIDIA, count=len(grants), **ask)
        objection = check_reservation(live, grants, wanted, PodWishes(), self.compat)
        assert objection is None, objection
        for charge in collapse(PodGrants(containers=(grants,))):
            self.use = charged(self.use, charge)
        return grants


ALL = pytest.mark.parametrize("compat", list(COMPATS))
BOTH = pytest.mark.parametrize("settings", [MIG, TEMPLATES], ids=["profiles", "geometries"])


@ALL
@BOTH
def test_the_whole_card_by_percent_is_one_instance(
    settings: NvidiaSettings, compat: Generation
) -> None:
    node = Node(settings, compat, divided())
    grants = node.place("p", Box(memory_percent=100), memory_percent=100)
    assert grants is not None
    assert [grant.memory_mib for grant in grants] in ([40192], [40960])


@ALL
@pytest.mark.parametrize(("percent", "count"), [(50, 2), (25, 3), (10, 7)])
def test_equal_shares_by_percent_of_a_card_of_geometries_fit_beside_each_other(
    compat: Generation, percent: int, count: int
) -> None:
    node = Node(TEMPLATES, compat, divided())
    placed = [
        node.place(f"p{at}", Box(memory_percent=percent), memory_percent=percent)
        for at in range(count + 1)
    ]
    assert [grants is not None for grants in placed] == [True] * count + [False]


@ALL
@BOTH
def test_first_pod_on_an_idle_card_and_those_after_it(
    settings: NvidiaSettings, compat: Generation
) -> None:
    node = Node(settings, compat, divided())
    for at, memory_mib in enumerate((9000, 4000, 9000)):
        box = Box(memory_mib=memory_mib)
        assert node.place(f"p{at}", box, memory_mib=memory_mib) is not None


def test_csv_forms_lead_to_slots() -> None:
    node = Node(TEMPLATES, Generation.V2_8, divided(), RegisterFormat.CSV9)
    grants = node.place("p", Box(memory_mib=4000), memory_mib=4000)
    assert grants is not None
    assert [grant.memory_mib for grant in grants] == [5120]


def test_places_of_a_strangers_instance_are_never_chosen() -> None:
    node = Node(MIG, Generation.V2_10, divided(0, instance(3, "2g.10gb", 0)))
    assert node.place("large", Box(memory_mib=40000), memory_mib=40000) is None
    placed = [node.place(f"p{at}", Box(memory_mib=4000), memory_mib=4000) for at in range(6)]
    assert [grants is not None for grants in placed] == [True] * 5 + [False]
