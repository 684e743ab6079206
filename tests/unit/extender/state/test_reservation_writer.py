from __future__ import annotations

import pytest

from hami_node.errors import NotFound, PodTaken
from hami_node.model import Pod
from hami_node.vendors.holding import reservation_keys
from hami_node.wire import names
from tests.unit.extender.desk import Desk


@pytest.fixture
def desk() -> Desk:
    """`a` is reserved on n1."""
    desk = Desk("n1", "n2", is_patched=True)
    desk.add_pod("a")
    desk.sync()
    desk.choose("a", "n1")
    return desk


def test_clear_takes_everything_off(desk: Desk) -> None:
    cleared = desk.writer.clear(desk.pod("a"), desk.fence())
    assert not set(reservation_keys(desk.state.rules.vendors)) & set(cleared.annotations)
    assert names.POD_NODE not in cleared.labels
    assert desk.notes_of("a") == cleared.annotations


def test_clear_leaves_what_is_not_ours(desk: Desk) -> None:
    desk.edit_pod("a", annotations={"note": "mine"})
    assert desk.writer.clear(desk.pod("a"), desk.fence()).annotations == {"note": "mine"}


def test_clear_of_an_older_reservation_leaves_the_newer(desk: Desk) -> None:
    old = desk.pod("a")
    desk.clock.advance(10.0)
    desk.choose("a", "n2")
    desk.writer.clear(old, desk.fence())
    assert desk.notes_of("a")[names.POD_NODE] == "n2"


def test_clear_reads_again_where_the_pod_was_written_since(desk: Desk) -> None:
    old = desk.pod("a")
    desk.edit_pod("a", annotations={"note": "mine"})
    assert desk.writer.clear(old, desk.fence()).annotations == {"note": "mine"}


@pytest.mark.parametrize("call", ["clear", "write"])
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "found out"])
def test_nothing_is_written_on_a_bound_pod(desk: Desk, call: str, is_known: bool) -> None:
    old = desk.pod("a")
    desk.edit_pod("a", spec={"nodeName": "n2"})
    before = desk.notes_of("a")
    with pytest.raises(PodTaken) as caught:
        called(desk, call, desk.pod("a") if is_known else old)
    assert caught.value.pod.node_name == "n2"
    assert desk.notes_of("a") == before


@pytest.mark.parametrize("call", ["clear", "write"])
def test_nothing_is_written_on_another_pod_of_that_name(desk: Desk, call: str) -> None:
    old = desk.pod("a")
    desk.delete_pod("a")
    body = desk.add_pod("a")
    desk.kube.store.delete("pods", "default", "a")
    body = body | {"metadata": {"name": "a", "uid": "uid-new", "namespace": "default"}}
    desk.kube.store.create("pods", "default", body)
    with pytest.raises(PodTaken):
        called(desk, call, old)
    assert desk.notes_of("a") == {}


@pytest.mark.parametrize("call", ["clear", "write"])
def test_pod_that_is_gone_is_not_found(desk: Desk, call: str) -> None:
    old = desk.pod("a")
    desk.delete_pod("a")
    with pytest.raises(NotFound):
        called(desk, call, old)


def called(desk: Desk, call: str, pod: Pod) -> None:
    if call == "write":
        written(desk, pod, "n1")
    else:
        desk.writer.clear(pod, desk.fence())


def test_label_is_left_out_where_the_nodes_name_is_too_long(desk: Desk) -> None:
    desk.add_pod("b")
    pod = written(desk, desk.pod("b"), "n" * 64)
    assert names.POD_NODE not in pod.labels
    assert pod.annotations[names.POD_NODE] == "n" * 64


def written(desk: Desk, pod: Pod, node: str) -> Pod:
    return desk.writer.write(pod, {names.POD_NODE: node}, lambda: True, desk.fence())
