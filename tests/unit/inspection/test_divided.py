"""Divided cards as `inspect` shows them, from what their node has published."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from hami_node.cli.show.tables import show_cluster
from hami_node.inspection.cluster import inspect
from hami_node.inspection.views import ClusterView, PartView
from hami_node.model import Node, Pod
from hami_node.vendors import divided
from hami_node.vendors.divided import DividedCards, PartState
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.codec import encode_json
from hami_node.vendors.nvidia.mig.mark import encode_mig
from hami_node.vendors.nvidia.mig.shown import divided_cards
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from tests.fakes.cards import card, uuid
from tests.fakes.mig_cards import divided as mig_card
from tests.fakes.mig_cards import instance

LIVE = divided.PartView(
    card=uuid(0), kind="2g.10gb", start=0, size=2, state=PartState.LIVE, numbers=(3, 0),
    uuid="MIG-00000003-0000-5000-8000-000000000000", pod_uid="uid-p", container="main",
)  # fmt: skip
STALE = replace(
    LIVE, state=PartState.STALE, start=6, size=1, kind="1g.5gb", numbers=(13, 0), uuid="MIG-13",
    pod_uid="uid-gone", why="process 7 is on it",
)  # fmt: skip
POD = Pod(uid="uid-p", namespace="ml", name="train", node_name="n1")


def node_of(*cards: divided.DividedCard, hands_off: str = "") -> Node:
    mark = encode_mig(DividedCards(cards=cards, hands_off=hands_off))
    return Node(
        name="n1",
        annotations={names.NODE_REGISTER: encode_json((card(0),)), names.NODE_MIG: mark or ""},
    )


def view_of(node: Node) -> ClusterView:
    return inspect((node,), (POD,), (nvidia_protocol(),), 0.0)


def shown(**changes: object) -> divided.DividedCard:
    found = mig_card(0, instance(9, "1g.5gb", 2))
    (made,) = divided_cards([found], [LIVE, STALE], is_offered=False)
    return replace(made, **changes)  # type: ignore[arg-type]  # fields by name


def text_of(view: ClusterView, width: int = 240) -> str:
    out = StringIO()
    show_cluster(view, out, width)
    return out.getvalue()


def test_instances_with_their_pods_and_reasons() -> None:
    view = view_of(node_of(shown()))
    assert view.problems == ()
    ours, foreign, stale = view.parts
    assert ours == PartView(
        node="n1", index=0, kind="2g.10gb", start=0, size=2, numbers=(3, 0), uuid=LIVE.uuid,
        state="live", holder="ml/train/main",
    )  # fmt: skip
    assert (foreign.state, foreign.holder, foreign.numbers) == ("foreign", "", (9, 0))
    assert (stale.state, stale.holder, stale.why) == (
        "stale",
        "pod uid-gone/main",
        "process 7 is on it",
    )


def test_what_fits_now() -> None:
    (seen,) = view_of(node_of(shown())).divided
    free = {kind.name: kind.free for kind in seen.kinds}
    assert (free["1g.5gb"], free["2g.10gb"], free["3g.20gb"]) == ((3, 4, 5), (4,), ())
    assert seen.mode == "mig"


def test_pending_mode_hands_off_and_problem_are_said() -> None:
    changed = shown(mode="off", pending="mig", problem="process 12 uses the card")
    text = text_of(view_of(node_of(changed, hands_off="MIG Manager is at work")))
    assert "off, mig after the next reset" in text
    assert "process 12 uses the card" in text
    assert "hands off: MIG Manager is at work" in text
    assert "1g.5gb at" not in text, "nothing can be made there now"


def test_annotation_that_can_not_be_read_is_a_problem_and_hides_nothing() -> None:
    text = encode_json((card(0),))
    node = Node(name="n1", annotations={names.NODE_REGISTER: text, names.NODE_MIG: "rubbish"})
    view = view_of(node)
    assert [problem.where for problem in view.problems] == ["node n1"]
    assert names.NODE_MIG in view.problems[0].why
    assert len(view.cards) == 1
