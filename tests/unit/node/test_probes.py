from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.errors import DriverUnavailable
from hami_node.model import Node
from hami_node.node.probes import node_probes
from tests.fakes.cards import card
from tests.fakes.live_kube import FakeCluster
from tests.fakes.two_vendors import acme_card
from tests.unit.node.served import Served

NOT_YET = "not registered with kubelet yet"
NEURON = Node(name="n1", capacity={"aws.amazon.com/neuron": "1"})


class View(FakeCluster):
    """What the probes ask of the watch."""

    synced = True
    silent_s: float | None = None

    def is_synced(self) -> bool:
        return self.synced

    def last_contact_age_s(self) -> float | None:
        return self.silent_s


class Asked(Served):
    """The probes of a node with both resources."""

    def __init__(self, folder: Path) -> None:
        self.watch = View()
        super().__init__(folder, self.watch)
        self.report_age_s: float | None = 0.0
        self.taken: dict[str, str] = {}
        self.questions = node_probes(
            self,
            report=lambda: self.report_age_s,
            why_taken=lambda name: self.taken.get(name, ""),
            limiter=str,
            hand_over=str,
        )

    def ready(self, name: str = "kubelet") -> str:
        return self.questions.ready[name]()

    def show(self, *, gpus: bool, cards: bool, registered: str) -> None:
        """Which resources have cards and which of them kubelet knows."""
        self.gpu_backend.cards = (card(0),) if gpus else ()
        self.card_backend.cards = (acme_card(),) if cards else ()
        self.scan()
        for resource in (self.gpu, self.card):
            if resource.name in registered.split():
                resource.lifecycle.registered.set()


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


GPU, CARD = "nvidia.com/gpu", "acme.example/card"


@pytest.mark.parametrize(
    ("gpus", "cards", "registered", "wanted"),
    [
        (True, True, f"{GPU} {CARD}", ""),
        (True, True, GPU, NOT_YET),
        (True, True, CARD, NOT_YET),
        (True, True, "", NOT_YET),
        (True, False, GPU, ""),
        (False, True, CARD, ""),
        (True, False, "", NOT_YET),
        (False, False, "", NOT_YET),
    ],
)
def test_ready_only_when_every_resource_with_cards_is_registered(
    asked: Asked, gpus: bool, cards: bool, registered: str, wanted: str
) -> None:
    asked.show(gpus=gpus, cards=cards, registered=registered)
    assert asked.ready() == wanted


@pytest.mark.parametrize(
    ("gpus", "wanted"), [(False, ""), (True, NOT_YET)], ids=["no-gpu", "gpu-not-registered"]
)
def test_node_whose_cards_others_serve_is_ready_without_a_registration(
    asked: Asked, gpus: bool, wanted: str
) -> None:
    asked.watch.shown_node = NEURON
    asked.show(gpus=gpus, cards=False, registered="")
    assert asked.ready() == wanted


@pytest.mark.parametrize(
    ("synced", "silent_s", "words"),
    [
        (True, None, ""),
        (False, None, "have not been listed yet"),
        (True, 180.0, ""),
        (True, 181.0, "nothing has been received from the API server for 181 s"),
    ],
    ids=["heard", "not-listed", "quiet", "silent"],
)
def test_api_server_is_heard_or_the_node_is_not_ready(
    asked: Asked, synced: bool, silent_s: float | None, words: str
) -> None:
    asked.watch.synced, asked.watch.silent_s = synced, silent_s
    found = asked.ready("api-server")
    assert words in found
    assert bool(found) == bool(words)


def test_report_is_awaited(asked: Asked) -> None:
    assert asked.ready("report") == ""
    asked.report_age_s = None
    assert asked.ready("report") == "the node object has not been written yet"


@pytest.mark.parametrize("ages", [(0.0, 0.0), (1000.0, 0.0), (0.0, 1000.0)])
def test_alive_while_every_backend_looks_at_its_cards(
    asked: Asked, ages: tuple[float, float]
) -> None:
    asked.gpu_backend.pass_age_s, asked.card_backend.pass_age_s = ages
    found = asked.questions.live["cards"]()
    assert bool(found) == (max(ages) > 0)
    assert ("1000 s" in found) == (max(ages) > 0)


def test_reason_why_a_resource_is_not_served_is_told(asked: Asked) -> None:
    asked.card_backend.error = DriverUnavailable("acme driver is not there")
    asked.show(gpus=True, cards=True, registered="")
    assert asked.ready() == "acme driver is not there"
    asked.card_backend.error = None
    asked.show(gpus=True, cards=True, registered=f"{GPU} {CARD}")
    assert asked.ready() == ""
    asked.gpu.lifecycle.registered.clear()
    asked.gpu.lifecycle.problem = "kubelet has ended the stream"
    assert asked.ready() == "kubelet has ended the stream"
    asked.taken[CARD] = "another device plugin has taken it"
    assert asked.ready() == "another device plugin has taken it"
