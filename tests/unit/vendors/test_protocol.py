"""What every vendor has in common, shown on one that overrides nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from hami_node.engine.card_rules import CardRules
from hami_node.model import (
    Ask,
    Container,
    ContainerGrants,
    ContainerKind,
    Grant,
    Node,
    Pod,
    Uuid,
)
from hami_node.vendors.protocol import NO_RESERVATION, VendorKeys, VendorProtocol
from hami_node.wire.reservation import GrantKeys

ACME: Final = CardRules("Acme")
COUNT, MEMORY, CORES = "acme.example/card", "acme.example/memory", "acme.example/cores"
ALLOCATED, WAITING = "acme.example/allocated", "acme.example/to-allocate"
REGISTER = "acme.example/register"
PROTOCOL: Final = VendorProtocol(
    cards=ACME,
    title="Acme",
    keys=VendorKeys(
        grants=GrantKeys(vendor=ACME, allocated=ALLOCATED, to_allocate=WAITING),
        register=REGISTER,
        reservation=(ALLOCATED, WAITING),
    ),
    resources=(COUNT, MEMORY, CORES),
    counted=(COUNT,),
    memory=MEMORY,
    cores=CORES,
)


def container(name: str = "main", **fields: Any) -> Container:
    return Container(name=name, **({"limits": {COUNT: "1"}} | fields))


def pod(allocated: str | None, *containers: Container, waiting: str | None = None) -> Pod:
    annotations = {ALLOCATED: allocated, WAITING: waiting}
    return Pod(
        uid="u",
        namespace="default",
        name="p",
        annotations={key: text for key, text in annotations.items() if text is not None},
        containers=containers or (container(),),
    )


def node(text: str | None, allocatable: str | None = "10") -> Node:
    return Node(
        name="n1",
        annotations={} if text is None else {REGISTER: text},
        allocatable={} if allocatable is None else {COUNT: allocatable},
    )


def grant(uuid: str, vendor: CardRules | str = ACME) -> Grant:
    return Grant(uuid=Uuid(uuid), vendor=vendor, memory_mib=100, cores=5)


@pytest.mark.parametrize(
    ("limits", "ask"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({COUNT: "0", MEMORY: "5"}, None, id="no card"),
        pytest.param({COUNT: "2"}, Ask(vendor=ACME, count=2, memory_percent=100), id="whole cards"),
        pytest.param(
            {COUNT: "1", MEMORY: "512", CORES: "30"},
            Ask(vendor=ACME, count=1, memory_mib=512, cores=30),
            id="a share",
        ),
        pytest.param(
            {COUNT: "1", MEMORY: "0"}, Ask(vendor=ACME, count=1, memory_percent=100), id="memory 0"
        ),
    ],
)
def test_ask_of_quantities(limits: dict[str, str], ask: Ask | None) -> None:
    assert PROTOCOL.ask_of(container(limits=limits)) == ask


def test_ask_of_a_vendor_with_a_count_alone() -> None:
    plain = replace(PROTOCOL, memory="", cores="")
    asked = container(limits={COUNT: "1", MEMORY: "512", CORES: "30"})

    assert plain.ask_of(asked) == Ask(vendor=ACME, count=1, memory_percent=100)


@pytest.mark.parametrize("where", ["limits", "requests"])
@pytest.mark.parametrize(("resource", "expected"), [(CORES, True), ("cpu", False)])
def test_is_named_by_any_of_its_resources(where: str, resource: str, expected: bool) -> None:
    quantities: dict[str, dict[str, str]] = {"limits": {}, where: {resource: "1"}}
    named = container("main", **quantities)
    assert PROTOCOL.is_named(named) is expected


def test_counted_in_is_the_first_resource_that_the_pod_counts() -> None:
    two = replace(PROTOCOL, counted=(COUNT, CORES))

    assert two.counted_in(pod(None, container(limits={CORES: "1"}))) == CORES
    assert two.counted_in(pod(None, container(limits={COUNT: "1", CORES: "1"}))) == COUNT
    assert two.counted_in(pod(None, container(limits={}))) == COUNT


GRANT = "a-1,Acme,100,5:;"


def test_held_by_a_waiting_pod() -> None:
    found = PROTOCOL.held_by(pod(GRANT, waiting=GRANT))

    assert found.by_container == {"main": (grant("a-1"),)}
    assert found.slots == ((grant("a-1"),),)
    assert found.is_waiting("main")
    assert not found.is_waiting("other")
    assert found.problem == ""


def test_held_by_a_served_pod_does_not_wait() -> None:
    found = PROTOCOL.held_by(pod(GRANT, waiting=";"))

    assert found.by_container == {"main": (grant("a-1"),)}
    assert not found.is_waiting("main")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param(pod(None), NO_RESERVATION, id="it has none"),
        pytest.param(pod(None, container(limits={})), "", id="it asks for nothing"),
        pytest.param(pod(GRANT, container(limits={})), "", id="what it says counts for nothing"),
        pytest.param(pod("a-1,Acme:;"), "can't be read", id="unreadable"),
    ],
)
def test_held_by_a_pod_that_holds_nothing(given: Pod, problem: str) -> None:
    found = PROTOCOL.held_by(given)

    assert (found.by_container, found.slots, found.slot_map) == ({}, (), None)
    assert problem in found.problem
    assert bool(found.problem) is bool(problem)


@pytest.mark.parametrize(
    ("waiting", "problem"),
    [
        pytest.param("a-1,Acme:;", "can't be read", id="unreadable"),
        pytest.param("a-9,Acme,1,1:;", "does not match", id="of another card"),
    ],
)
def test_held_by_a_pod_of_which_only_the_rest_is_unclear(waiting: str, problem: str) -> None:
    found = PROTOCOL.held_by(pod(GRANT, waiting=waiting))

    assert found.by_container == {"main": (grant("a-1"),)}
    assert found.slot_map is None
    assert not found.is_waiting("main")
    assert problem in found.problem


def test_held_by_a_pod_with_more_slots_than_asks_is_told_by_slots_alone() -> None:
    found = PROTOCOL.held_by(pod(GRANT * 2))

    assert found.by_container == {}
    assert found.slots == ((grant("a-1"),), (grant("a-1"),))
    assert "does not match" in found.problem


def test_held_by_names_only_containers_with_a_slot() -> None:
    found = PROTOCOL.held_by(pod(GRANT, container("a", limits={}), container("b")))

    assert found.by_container == {"b": (grant("a-1"),)}


@pytest.mark.parametrize(
    ("to_allocate", "keys"), [(WAITING, [ALLOCATED, WAITING]), ("", [ALLOCATED])]
)
def test_annotations_of_hold_the_grants(to_allocate: str, keys: list[str]) -> None:
    grants = GrantKeys(vendor=ACME, allocated=ALLOCATED, to_allocate=to_allocate)
    vendor = replace(PROTOCOL, keys=replace(PROTOCOL.keys, grants=grants))
    containers = (container("i", kind=ContainerKind.INIT), container("a"))
    given: tuple[ContainerGrants, ...] = ((), (grant("a-1"),))

    texts = vendor.annotations_of(node("[]"), containers, given, {})

    assert texts == dict.fromkeys(keys, f";{GRANT}")
