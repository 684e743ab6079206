"""What is published of cards in MIG mode, and when their mode is changed: the real chain."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami_node.simulate.store import Json
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.vendors.nvidia.mig.details import layout_of
from hami_node.vendors.nvidia.nvml.use import sees_all_processes
from tests.fakes.pods import NODE, Box, reservation
from tests.integration.mig_rig import (
    BY_ROWS,
    BY_TEMPLATE,
    SPARE,
    TEMPLATE_MODEL,
    MigRig,
    Row,
    Slot,
)
from tests.nvml_stub.control import UUIDS, card
from tests.reliability import shows

sees_host = pytest.mark.skipif(
    not sees_all_processes(), reason="the tests run outside the host's PID namespace"
)
ALL: Any = {
    *(("1g.5gb", start) for start in range(7)),
    *(("2g.10gb", start) for start in (0, 2, 4)),
    ("3g.20gb", 0),
    ("3g.20gb", 4),
    ("7g.40gb", 0),
}


@pytest.fixture
def bare(bare_mig: MigRig) -> MigRig:
    """A node in MIG mode whose daemon does not run yet."""
    return bare_mig


def registered(rig: MigRig, number: int) -> dict[str, Any]:
    found: dict[str, Any] = next(
        row for row in json.loads(rig.register_text) if row["id"] == UUIDS[number]
    )
    return found


def is_healthy(rig: MigRig, number: int) -> bool:
    return registered(rig, number).get("health", False) is True


def label(rig: MigRig, **labels: str) -> None:
    """MIG Manager, or an administrator, labels the node."""

    def change(body: Json) -> None:
        ours = {f"nvidia.com/mig.{key.replace('_', '.')}": value for key, value in labels.items()}
        body["metadata"].setdefault("labels", {}).update(ours)

    rig.api.edit("nodes", NODE, change)


def set_mode(rig: MigRig, mode: str) -> None:
    """The operator's `operatingmode`; the daemon watches the file."""
    fresh = rig.node_config.with_suffix(".new")
    fresh.write_text(json.dumps({"nodeconfig": [{"name": NODE, "operatingmode": mode}]}))
    fresh.replace(rig.node_config)


def off(*numbers: int, **changes: object) -> list[str]:
    """The cards, of which these are not in MIG mode."""
    return [
        card(number, **({"mig": "disabled"} | changes))
        if number in numbers
        else card(
            number,
            mig="enabled",
            **({"name": f'"{TEMPLATE_MODEL}"'} if number == BY_TEMPLATE else {}),
        )
        for number in range(3)
    ]


def test_both_protocols_are_registered_each_on_its_cards(bare: MigRig) -> None:
    bare.launch()
    row, slots = registered(bare, BY_ROWS), registered(bare, BY_TEMPLATE)
    assert (row["mode"], row["count"], row["devmem"], row["devcore"]) == ("mig", 7, 40192, 100)
    assert [item["name"] for item in row["migProfiles"]] == [
        "1g.5gb",
        "2g.10gb",
        "3g.20gb",
        "7g.40gb",
    ]
    assert bare.offered() == ALL
    assert (slots["mode"], slots["count"], slots["devmem"]) == ("mig", 7, 40960)
    assert "migProfiles" not in slots
    assert "migTemplates" not in slots


@shows(
    "M4",
    fault="an instance that somebody else has made is at places that a scheduler may choose",
    happens="these places are withdrawn, a pod reserved there is refused, other places are served; "
    "the instance is never touched, and its places are offered again once it is gone",
    lost="the pod that was reserved there before",
)
def test_hazard_04_foreign_instance_is_published_as_taken(bare: MigRig) -> None:
    foreign = bare.hardware.make(UUIDS[BY_ROWS], "2g.10gb", 4)
    bare.launch()
    blocked = {("1g.5gb", 4), ("1g.5gb", 5), ("2g.10gb", 4), ("3g.20gb", 4), ("7g.40gb", 0)}
    bare.wait(lambda: bare.offered() == ALL - blocked)
    bare.divide("there", {"main": [Row("1g.5gb", 5)]})
    answer = bare.admit("there")
    assert not answer.is_admitted
    assert bare.serve("beside", Row("1g.5gb", 6)) == bare.at(6).uuid
    later = bare.hardware.make(UUIDS[BY_ROWS], "1g.5gb", 0)
    blocked |= {("1g.5gb", 0), ("2g.10gb", 0), ("3g.20gb", 0)}
    bare.wait(lambda: bare.offered() == ALL - blocked)
    assert {it.gi for it in bare.instances()} >= {foreign.gi, later.gi}
    bare.hardware.destroy(UUIDS[BY_ROWS], foreign.gi)
    bare.delete("there")
    bare.delete("beside")
    bare.wait_places(("1g.5gb", 0))


@shows(
    "M4",
    fault="an instance of somebody else is on a card that HAMi 2.5 to 2.9 divides by geometries",
    happens="the card is unhealthy with the reason, since their register can't say what is taken",
    lost="that card, until the instance is gone",
)
def test_hazard_04_foreign_instance_closes_a_card_of_geometries(bare: MigRig) -> None:
    foreign = bare.hardware.make(UUIDS[BY_TEMPLATE], "1g.5gb", 6)
    bare.launch(slots=14)
    assert [is_healthy(bare, number) for number in range(3)] == [True, False, True]
    assert "GPU instance 13 (1g.5gb at 6)" in bare.log
    assert f"nvidia-smi mig -i {UUIDS[BY_TEMPLATE]} -gi 13 -dci;" in bare.log
    bare.hardware.destroy(UUIDS[BY_TEMPLATE], foreign.gi)
    bare.wait(lambda: is_healthy(bare, BY_TEMPLATE))
    assert bare.serve("p", Slot(1)) == bare.instances(BY_TEMPLATE)[0].uuid


@shows(
    "M8",
    fault="a monitor holds a card whose MIG mode is to be switched on: the driver says IN_USE",
    happens="the change is pending; that card is unhealthy in the register and for kubelet, an "
    "Event says who holds it, and it is not asked for again at once; other cards serve",
    lost="the card, until nobody uses it",
)
@sees_host
def test_hazard_08_pending_mode_closes_its_card_only(bare: MigRig) -> None:
    bare.stub.write(*off(SPARE, clients=1, name='"NVIDIA A100-SXM4-40GB"'))
    bare.launch(slots=14)
    bare.wait(lambda: bare.events("MigModeWaits"))
    (said,) = bare.events("MigModeWaits")
    assert UUIDS[SPARE] in said
    assert "still use the card" in said
    assert [is_healthy(bare, number) for number in range(3)] == [True, True, False]
    state = bare.hardware.look()[UUIDS[SPARE]]
    assert (state.current, state.pending) == (0, 1)
    assert bare.serve("p", Row()) == bare.at(6).uuid
    bare.divide("q", {"main": [Row(card=SPARE)]})
    assert "waits for a reset" in bare.admit("q").refusal
    asked = [it for it in bare.hardware.changes(UUIDS[SPARE]) if "SetMigMode" in it.function]
    assert len(asked) == 1, "no storm"
    assert {it.function for it in bare.hardware.changes(UUIDS[BY_TEMPLATE])} == set()


@sees_host
def test_mode_is_switched_on_where_nobody_uses_the_card(bare: MigRig) -> None:
    bare.stub.write(*off(SPARE))
    bare.launch()
    bare.wait(lambda: is_healthy(bare, SPARE))
    bare.wait(lambda: bare.events("MigModeOn"))  # Events are written beside everything else
    assert bare.offered(SPARE) == ALL
    assert bare.serve("p", Row(card=SPARE)) == bare.at(6, SPARE).uuid


def test_mode_is_left_alone_under_a_process_and_switched_on_after_it(bare: MigRig) -> None:
    bare.stub.write(*off(SPARE, processes="4711"))
    bare.launch(slots=14)
    bare.wait(lambda: any("4711" in said for said in bare.events("MigModeWaits")))
    assert not [it for it in bare.hardware.changes() if "SetMigMode" in it.function]
    assert bare.hardware.look().get(UUIDS[SPARE]) is None or (
        bare.hardware.look()[UUIDS[SPARE]].pending == 0
    )


@shows(
    "G23",
    fault="a card of a node with operatingmode mig has no MIG",
    happens="it is unhealthy with the reason; the others serve",
    lost="that card, on this node",
)
def test_card_without_mig_is_closed_beside_others(bare: MigRig) -> None:
    bare.stub.write(*off(SPARE, mig="unsupported"))
    bare.launch(slots=14)
    assert [is_healthy(bare, number) for number in range(3)] == [True, True, False]
    assert "has no MIG" in bare.log
    assert bare.serve("p", Row()) == bare.at(6).uuid


@shows(
    "M15",
    fault="MIG Manager begins to lay out the cards of a node that hami-node divides",
    happens="an Event says so, no call changes a card until its label says that it is done, and "
    "running pods keep their instances",
    lost="the cards are unhealthy meanwhile, and get no pods",
)
def test_hazard_15_hands_off_while_mig_manager_is_at_work(bare: MigRig) -> None:
    # from the start: a label that is new is a layout for half a minute
    label(bare, config="all-disabled", config_state="success")
    bare.launch()
    own = bare.serve("before", Row())
    assert bare.serve("default-label", Row(start=5)) == bare.at(5).uuid
    label(bare, config_state="pending")
    bare.wait(lambda: bare.events("MigHandsOff"))
    bare.wait(lambda: not is_healthy(bare, BY_ROWS))
    before = bare.hardware.changes()
    bare.divide("meanwhile", {"main": [Row(start=4)]}, [Box(name="main", memory_mib=4000)])
    assert "Available: 0" in bare.admit("meanwhile").refusal
    bare.delete("default-label")
    bare.delete("meanwhile")
    assert bare.hardware.changes() == before
    assert bare.at(6).uuid == own
    label(bare, config_state="success")
    bare.wait(lambda: is_healthy(bare, BY_ROWS))
    bare.wait_places(("1g.5gb", 6))
    assert bare.serve("after", Row(start=4)) == bare.at(4).uuid


@shows(
    "M11",
    fault="another driver gives instances less memory than was registered",
    happens="the register has the new numbers by itself, and a running pod keeps the old ones",
)
def test_hazard_11_memory_follows_the_driver(bare: MigRig) -> None:
    bare.launch()
    bare.serve("before", Row())
    bare.kill()
    bare.show(f"profile {BY_ROWS} 1g.5gb memory_mib=4736")
    bare.launch()
    bare.wait(
        lambda: registered(bare, BY_ROWS)["migProfiles"][0]["memoryMB"] == 4736,
    )
    assert ",4864,15" in bare.pod("before").annotations["hami.io/vgpu-devices-allocated"]
    assert bare.serve("other", Row("2g.10gb", 0)) == bare.at(0).uuid
    (first, *_) = decode_register(bare.register_text)
    assert layout_of(first).profiles[0].memory_mib == 4736


@sees_host
def test_live_change_to_mig_waits_for_containers_that_share_the_card(bare: MigRig) -> None:
    """Nobody is disturbed: the card is switched once its last container has ended."""
    bare.stub.write(*off(0, 1, 2))
    set_mode(bare, "hami-core")
    bare.launch(slots=30)
    bare.bind("shares", [Box(memory_mib=4000)], reservation(f"{UUIDS[SPARE]},NVIDIA,4000,0:;"))
    assert bare.admit("shares").is_admitted
    bare.set_phase("shares", "Running")
    set_mode(bare, "mig")
    bare.wait(lambda: any("default/shares" in said for said in bare.events("MigModeWaits")))
    bare.wait(lambda: is_healthy(bare, BY_ROWS) and is_healthy(bare, BY_TEMPLATE))
    assert not is_healthy(bare, SPARE)
    assert not bare.hardware.changes(UUIDS[SPARE])
    bare.delete("shares")
    bare.wait(lambda: is_healthy(bare, SPARE))
    assert bare.offered(SPARE) == ALL


def test_lists_of_profiles_and_geometries_take_effect_while_the_daemon_runs(bare: MigRig) -> None:
    bare.launch()
    own = bare.serve("before", Row("2g.10gb", 4))
    profiles = [{"models": ["A100-PCIE-40GB", "A100-SXM4-40GB"], "profiles": ["1g.5gb"]}]
    fresh = bare.config_path.with_suffix(".new")
    fresh.write_text(json.dumps({"nvidia": {"migProfileAllowlist": profiles}}))
    fresh.replace(bare.config_path)
    only = {("1g.5gb", start) for start in range(7)}
    bare.wait(lambda: all(bare.offered(number) == only for number in range(3)))
    assert bare.serve("after", Row()) == bare.at(6).uuid
    assert bare.at(4).uuid == own
