from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.model import Container, ContainerGrants, ContainerKind, Grant, Pod, Uuid
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire.grants import decode_grants, encode_grants
from hami_node.wire.slots import AmbiguousSlots, SlotMap, SlotMismatch, assign_slots

RECORDINGS = Path(__file__).parents[2] / "fixtures/recordings"
KINDS = {"i": ContainerKind.INIT, "s": ContainerKind.SIDECAR, "a": ContainerKind.APP}
Slots = tuple[ContainerGrants, ...]


def pod(*container_names: str) -> Pod:
    """A pod whose containers are named after their kind: i0, s0, a0, a1, ..."""
    return Pod(
        uid="u",
        namespace="default",
        name="p",
        containers=tuple(Container(name=name, kind=KINDS[name[0]]) for name in container_names),
    )


def card(name: str, memory_mib: int = 1000) -> Grant:
    return Grant(uuid=Uuid(name), vendor=NVIDIA, memory_mib=memory_mib, cores=0)


def solve(counts: Mapping[str, int], allocated: str, left: str) -> SlotMap:
    """Counts name every container of the pod; the texts hold one-letter cards for whole entries."""
    found = assign(counts, allocated, left)
    assert isinstance(found, SlotMap), found
    return found


def assign(
    counts: Mapping[str, int], allocated: str, left: str
) -> SlotMap | AmbiguousSlots | SlotMismatch:
    return assign_slots(pod(*counts), counts, slots_of(allocated), slots_of(left))


def decode(text: str) -> Slots:
    return decode_grants(text, nvidia_names.POD_ALLOCATED, NVIDIA)


def slots_of(text: str) -> Slots:
    """`AB;;C;` as if every letter were a whole entry."""
    return decode("".join(f"{c},NVIDIA,1000,0:" if c.isalpha() else c for c in text))


def letters(grants: ContainerGrants | None) -> str:
    return "".join(grant.uuid for grant in grants or ())


@pytest.mark.parametrize(
    ("counts", "allocated", "granted"),
    [
        pytest.param({"a0": 1}, "A;", {"a0": "A"}, id="one container"),
        pytest.param({"a0": 2}, "AB;", {"a0": "AB"}, id="two cards"),
        pytest.param({"a0": 2, "a1": 1}, "AB;C;", {"a0": "AB", "a1": "C"}, id="two containers"),
        pytest.param({"a0": 0, "a1": 1}, "A;", {"a1": "A"}, id="2.4 or 2.10, empty slot dropped"),
        pytest.param({"a0": 0, "a1": 1}, ";A;", {"a1": "A"}, id="2.7 or 2.9, empty slot kept"),
        pytest.param({"a0": 1, "a1": 0}, "A;;", {"a0": "A"}, id="empty slot at the end"),
        pytest.param(
            {"a0": 0, "a1": 1, "a2": 0, "a3": 0, "a4": 0},
            "A;;;;;",
            {"a1": "A"},
            id="2.4 with an injected sidecar",
        ),
        pytest.param({"i0": 1, "a0": 1}, "A;", {"a0": "A"}, id="2.4 to 2.8: no slot for init"),
        pytest.param({"i0": 1, "a0": 1}, "A;B;", {"i0": "A", "a0": "B"}, id="2.9: init has a slot"),
        pytest.param({"i0": 0, "a0": 1}, ";A;", {"a0": "A"}, id="2.9: empty init slot"),
        pytest.param({"i0": 0, "a0": 1, "a1": 1}, "A;B;", {"a0": "A", "a1": "B"}, id="2.10: lost"),
        pytest.param(
            {"i0": 0, "a0": 1, "a1": 1}, ";A;B;", {"a0": "A", "a1": "B"}, id="2.10 as meant"
        ),
        pytest.param({"i0": 0, "s0": 0, "a0": 1}, "A;", {"a0": "A"}, id="mesh sidecars, 2.8"),
        pytest.param({"i0": 0, "s0": 0, "a0": 2}, ";;AB;", {"a0": "AB"}, id="mesh sidecars, 2.9"),
        pytest.param({"s0": 1, "a0": 1}, "A;B;", {"s0": "A", "a0": "B"}, id="sidecar with a card"),
        pytest.param({"i0": 1}, "A;", {"i0": "A"}, id="only an init container"),
    ],
)
def test_assign_slots_layouts_in_the_field(
    counts: dict[str, int], allocated: str, granted: dict[str, str]
) -> None:
    found = solve(counts, allocated, allocated)

    assert {name: letters(grants) for name, grants in found.granted.items()} == granted
    assert set(found.waiting) == set(granted)


@pytest.mark.parametrize(
    ("counts", "allocated", "has_init_slots"),
    [
        ({"i0": 1, "a0": 1}, "A;", False),
        ({"i0": 1, "a0": 1}, "A;B;", True),
        ({"i0": 0, "a0": 1}, "A;", True),
        ({"s0": 1, "a0": 1}, "A;", False),
    ],
)
def test_assign_slots_says_whether_asking_init_containers_have_slots(
    counts: dict[str, int], allocated: str, has_init_slots: bool
) -> None:
    assert solve(counts, allocated, allocated).has_init_slots is has_init_slots


@pytest.mark.parametrize(
    ("counts", "allocated", "left", "why"),
    [
        pytest.param({"a0": 1}, "", "", "0 containers have a reservation, 1 ask", id="none"),
        pytest.param({"a0": 1}, "A;B;", "A;B;", "2 containers have", id="one too many"),
        pytest.param({"a0": 1, "a1": 1}, "A;", "A;", "1 containers have", id="one too few"),
        pytest.param({"a0": 2}, "A;", "A;", "a0 asks for 2 cards", id="too few cards"),
        pytest.param({"a0": 1}, "AB;", "AB;", "a0 asks for 1 cards", id="too many cards"),
        pytest.param({"a0": 0}, "A;", "A;", "0 ask for cards", id="nobody asks"),
        pytest.param({"a0": 1}, "", "A;", "0 containers have", id="forged to-allocate"),
        pytest.param({"a0": 1}, "A;", "B;", "left to allocate", id="another card left"),
        pytest.param({"a0": 1}, "A;", "A;A;", "left to allocate", id="more left than given"),
        pytest.param({"a0": 1, "a1": 1}, "A;B;", "B;A;", "left to allocate", id="other order"),
    ],
)
def test_assign_slots_contradiction_is_a_mismatch(
    counts: dict[str, int], allocated: str, left: str, why: str
) -> None:
    found = assign(counts, allocated, left)

    assert isinstance(found, SlotMismatch)
    assert why in found.why


@pytest.mark.parametrize(
    ("counts", "allocated", "left", "waiting"),
    [
        pytest.param({"a0": 1}, "A;", ";", set(), id="served, 2.4"),
        pytest.param({"a0": 1}, "A;", ";;", set(), id="served, 2.10 has grown"),
        pytest.param({"a0": 1}, "A;", "", set(), id="served, emptied"),
        pytest.param({"a0": 1, "a1": 1}, "A;B;", ";B;", {"a1"}, id="first served"),
        pytest.param({"a0": 1, "a1": 1}, "A;B;", ";B;;", {"a1"}, id="first served, grown"),
        pytest.param({"a0": 1, "a1": 1}, "A;A;", ";A;", {"a1"}, id="same grant, first served"),
        pytest.param({"a0": 1, "a1": 1}, "A;A;", "A;;", {"a0"}, id="same grant, second served"),
        pytest.param({"a0": 1, "a1": 1}, "A;A;", "A;", {"a1"}, id="same grant, places lost"),
        pytest.param({"a0": 1, "a1": 1, "a2": 1}, "A;A;A;", ";A;", {"a2"}, id="2.7: two served"),
        pytest.param({"a0": 0, "a1": 1, "a2": 1}, ";A;B;", ";B;", {"a2"}, id="2.7: moved left"),
        pytest.param({"i0": 1, "a0": 1}, "A;A;", ";A;;", {"a0"}, id="2.10: init served"),
        pytest.param({"i0": 1, "a0": 1}, "A;", "A;", {"a0"}, id="2.8: init served or not"),
        pytest.param({"a0": 1, "a1": 1, "a2": 1}, "A;B;C;", "B;", {"a1"}, id="middle, places lost"),
    ],
)
def test_assign_slots_waiting_is_what_has_not_been_served(
    counts: dict[str, int], allocated: str, left: str, waiting: set[str]
) -> None:
    found = solve(counts, allocated, left)

    assert set(found.waiting) == waiting
    for name in counts:
        assert found.is_waiting(name) is (name in waiting)


def test_assign_slots_several_meanings_are_all_told_and_none_is_picked() -> None:
    found = assign({"a0": 1, "a1": 1, "a2": 1}, "A;A;B;", "A;")

    assert isinstance(found, AmbiguousSlots)
    assert [set(item.waiting) for item in found.alternatives] == [{"a0"}, {"a1"}]
    assert found.why.endswith("a0 or a1")


def test_assign_slots_flood_of_equal_grants_stays_quick_and_short() -> None:
    counts = {f"a{i}": 1 for i in range(200)}

    found = assign(counts, "A;" * 199 + "B;", "A;" * 100)

    assert isinstance(found, AmbiguousSlots)
    assert len(found.alternatives) == 8


@pytest.mark.parametrize(
    ("counts", "left", "container", "text"),
    [
        pytest.param({"a0": 1}, "A;", "a0", ";", id="last one"),
        pytest.param({"a0": 1, "a1": 1}, "A;B;", "a0", ";B;", id="first of two"),
        pytest.param({"a0": 1, "a1": 1}, "A;B;", "a1", "A;;", id="second of two"),
        pytest.param({"a0": 1, "a1": 1}, ";B;", "a1", ";;", id="second after first"),
        pytest.param({"a0": 1, "a1": 1}, ";B;", "a0", ";B;", id="served already"),
    ],
)
def test_without_empties_the_slot_in_its_place(
    counts: dict[str, int], left: str, container: str, text: str
) -> None:
    found = solve(counts, "A;B;"[: 2 * len(counts)], left)

    assert decode(found.without(container)) == slots_of(text)


def test_grants_of_container_without_a_slot_is_none() -> None:
    found = solve({"i0": 1, "a0": 1}, "A;", "A;")

    assert found.grants_of("i0") is None
    assert letters(found.grants_of("a0")) == "A"


# -- What HAMi itself wrote, change by change ------------------------------------------------------
RECORDED_PODS = {
    "one": {"a0": 1},
    "two-containers": {"a0": 2, "a1": 1},
    "sidecar-without-gpu": {"a0": 0, "a1": 1},
    "init": {"i0": 1, "a0": 1},
}
NO_INIT_SLOTS = ("v2.4.1", "v2.7.1")


def recorded(version: str, pod_name: str) -> list[tuple[Slots, Slots]]:
    """Each state of (allocated, to-allocate) that the API server held."""
    timeline = json.loads((RECORDINGS / f"{version}.json").read_text())["timeline"]
    state: dict[str, str] = {}
    states = []
    for change in timeline:
        if change["kind"] == "pod" and change["name"] == pod_name:
            state |= change["set"]
            if nvidia_names.POD_TO_ALLOCATE in change["set"]:
                states.append(
                    (
                        decode(state[nvidia_names.POD_ALLOCATED]),
                        decode(state[nvidia_names.POD_TO_ALLOCATE]),
                    )
                )
    return states


@pytest.mark.parametrize("pod_name", list(RECORDED_PODS))
@pytest.mark.parametrize("version", ["v2.4.1", "v2.7.1", "v2.10.0"])
def test_recording_every_change_maps_to_the_right_containers(version: str, pod_name: str) -> None:
    counts = RECORDED_PODS[pod_name]
    asking = [name for name, count in counts.items() if count]
    if version in NO_INIT_SLOTS:
        asking = [name for name in asking if name != "i0"]

    states = recorded(version, pod_name)

    assert len(states) == len(asking) + 1
    for served, (allocated, left) in enumerate(states):
        found = assign_slots(pod(*counts), counts, allocated, left)
        assert isinstance(found, SlotMap)
        assert list(found.granted) == asking
        assert [len(found.granted[name]) for name in asking] == [counts[name] for name in asking]
        assert list(found.waiting) == asking[served:]


@pytest.mark.parametrize("version", ["v2.4.1", "v2.7.1", "v2.10.0"])
def test_recording_env_inside_the_container_agrees_with_the_mapping(version: str) -> None:
    recording = json.loads((RECORDINGS / f"{version}.json").read_text())
    checked = 0
    for key, container in recording["containers"].items():
        pod_name, _, name = key.partition("/")
        env = dict(line.split("=", 1) for line in container["env"])
        if not env:
            continue
        counts = RECORDED_PODS[pod_name]
        allocated, left = recorded(version, pod_name)[0]
        found = assign_slots(pod(*counts), counts, allocated, left)
        assert isinstance(found, SlotMap)
        grants = found.granted["a" + name[1:]]
        assert env[nvidia_names.ENV_VISIBLE_DEVICES] == ",".join(grant.uuid for grant in grants)
        assert [env[f"{nvidia_names.ENV_MEMORY_LIMIT}_{i}"] for i in range(len(grants))] == [
            f"{grant.memory_mib}m" for grant in grants
        ]
        checked += 1

    assert checked >= 4


# -- Every generation as writer, on any pod --------------------------------------------------------
def drop_empty(slots: Sequence[ContainerGrants]) -> Slots:
    return tuple(slot for slot in slots if slot)


def written_by_2_4(grants: Mapping[str, ContainerGrants]) -> Slots:
    return drop_empty([slot for name, slot in grants.items() if name[0] == "a"])


def written_by_2_7(grants: Mapping[str, ContainerGrants]) -> Slots:
    return tuple(slot for name, slot in grants.items() if name[0] == "a")


def written_by_2_9(grants: Mapping[str, ContainerGrants]) -> Slots:
    return tuple(grants.values())


def written_by_2_10(grants: Mapping[str, ContainerGrants]) -> Slots:
    return drop_empty(list(grants.values()))


def served_by_old_plugins(text: str) -> str:
    """2.4 to 2.8 drop empty slots when they read, and empty the first that is left."""
    return encode_grants(((), *drop_empty(decode(text))[1:]))


def served_by_new_plugins(text: str) -> str:
    """2.9 and 2.10 keep every slot, read one more at the end, and empty the first filled one."""
    slots = [*decode(text), ()]
    first = next(i for i, slot in enumerate(slots) if slot)
    return encode_grants([*slots[:first], (), *slots[first + 1 :]])


CARDS = st.builds(card, st.sampled_from("ABC"), st.sampled_from([1000, 2000]))
COUNTS = st.integers(0, 2)


@st.composite
def reservations(draw: st.DrawFn) -> dict[str, ContainerGrants]:
    """Any pod of 0 to 3 init and 1 to 5 app containers, with any cards, many of them equal."""
    inits = draw(st.lists(st.sampled_from("is"), max_size=3))
    apps = draw(st.integers(1, 5))
    container_names = [f"{kind}{i}" for i, kind in enumerate(inits)]
    container_names += [f"a{i}" for i in range(apps)]
    return {
        name: tuple(draw(st.lists(CARDS, min_size=n, max_size=n)))
        for name in container_names
        for n in [draw(COUNTS)]
    }


@pytest.mark.parametrize(
    ("write", "serve"),
    [
        pytest.param(written_by_2_4, served_by_old_plugins, id="2.4"),
        pytest.param(written_by_2_7, served_by_old_plugins, id="2.7"),
        pytest.param(written_by_2_9, served_by_new_plugins, id="2.9"),
        pytest.param(written_by_2_10, served_by_new_plugins, id="2.10"),
    ],
)
@given(grants=reservations())
def test_assign_slots_every_writer_on_any_pod_gives_its_own_meaning_at_every_step(
    write: Callable[[Mapping[str, ContainerGrants]], Slots],
    serve: Callable[[str], str],
    grants: dict[str, ContainerGrants],
) -> None:
    counts = {name: len(slot) for name, slot in grants.items()}
    has_init_slots = write in (written_by_2_9, written_by_2_10)
    meant = {
        name: slot for name, slot in grants.items() if slot and (has_init_slots or name[0] == "a")
    }
    allocated = encode_grants(write(grants))
    left = allocated

    for served in range(len(meant) + 1):
        found = assign_slots(pod(*counts), counts, decode(allocated), decode(left))
        assert isinstance(found, SlotMap)
        assert found.granted == meant
        assert list(found.waiting) == list(meant)[served:]
        left = serve(left) if served < len(meant) else left


@pytest.mark.parametrize("write", [written_by_2_4, written_by_2_7, written_by_2_9, written_by_2_10])
@given(grants=reservations(), data=st.data())
def test_without_in_any_order_leaves_the_rest_waiting_and_readable_by_every_plugin(
    write: Callable[[Mapping[str, ContainerGrants]], Slots],
    grants: dict[str, ContainerGrants],
    data: st.DataObject,
) -> None:
    counts = {name: len(slot) for name, slot in grants.items()}
    allocated = write(grants)
    found = assign_slots(pod(*counts), counts, allocated, allocated)
    assert isinstance(found, SlotMap)
    waiting = list(found.granted)

    for name in data.draw(st.permutations(waiting)):
        text = found.without(name)
        waiting.remove(name)
        after = assign_slots(pod(*counts), counts, allocated, decode(text))
        assert isinstance(after, SlotMap)
        found = after
        assert set(found.waiting) == set(waiting)
        assert drop_empty(decode(text)) == tuple(found.granted[item] for item in waiting)
    assert "NVIDIA" not in encode_grants(found.remaining)


@given(
    reservations(),
    st.lists(st.lists(CARDS, max_size=2).map(tuple), max_size=4).map(tuple),
    st.lists(st.lists(CARDS, max_size=2).map(tuple), max_size=4).map(tuple),
)
def test_assign_slots_any_slots_never_give_a_container_more_than_it_asks_for(
    grants: dict[str, ContainerGrants], allocated: Slots, left: Slots
) -> None:
    counts = {name: len(slot) for name, slot in grants.items()}
    found = assign_slots(pod(*counts), counts, allocated, left)
    alternatives: tuple[SlotMap, ...] = ()
    if isinstance(found, SlotMap):
        alternatives = (found,)
    elif isinstance(found, AmbiguousSlots):
        alternatives = found.alternatives

    for item in alternatives:
        assert all(len(slot) == counts[name] for name, slot in item.granted.items())
        assert all(
            item.remaining[place] == item.granted[name] for name, place in item.waiting.items()
        )
        assert sorted(item.waiting.values()) == [i for i, slot in enumerate(left) if slot]


def test_assign_slots_of_a_thousand_containers_is_refused_not_searched() -> None:
    names = [f"c{i}" for i in range(1100)]
    pod = Pod(
        uid="u", namespace="d", name="p", containers=tuple(Container(name=name) for name in names)
    )
    grant = Grant(uuid=Uuid("A"), vendor=NVIDIA, memory_mib=1, cores=0)
    allocated = [(grant,)] * 1099 + [(replace(grant, uuid=Uuid("B")),)]
    found = assign_slots(pod, dict.fromkeys(names, 1), allocated, [(grant,)] * 1098)
    assert isinstance(found, SlotMismatch)
