"""What is published of cards in MIG mode, and when their mode is changed: the real chain."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami_node.vendors.nvidia.codec import decode_register
from hami_node.vendors.nvidia.mig.layout import layout_of
from hami_node.vendors.nvidia.nvml.use import sees_all_processes
from tests.fakes.waiting import eventually
from tests.integration.mig_rig import (
    BY_ROWS,
    BY_TEMPLATE,
    SPARE,
    TEMPLATE_MODEL,
    MigRig,
    Row,
    Slot,
)
from tests.integration.rig import LIMIT_S
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


def registered(rig: MigRig, number: int) -> dict[str, Any]:
    found: dict[str, Any] = next(
        row for row in json.loads(rig.register_text) if row["id"] == UUIDS[number]
    )
    return found


def is_healthy(rig: MigRig, number: int) -> bool:
    return registered(rig, number).get("health", False) is True


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


@shows(
    "M4",
    fault="an instance that somebody else has made is at places that a scheduler may choose",
    happens="these places are withdrawn, a pod reserved there is refused, other places are served; "
    "the instance is never touched, and its places are offered again once it is gone",
    lost="the pod that was reserved there before",
)
def test_hazard_04_foreign_instance_is_published_as_taken(bare_mig: MigRig) -> None:
    foreign = bare_mig.hardware.make(UUIDS[BY_ROWS], "2g.10gb", 4)
    bare_mig.launch()
    blocked = {("1g.5gb", 4), ("1g.5gb", 5), ("2g.10gb", 4), ("3g.20gb", 4), ("7g.40gb", 0)}
    eventually(lambda: bare_mig.offered() == ALL - blocked, LIMIT_S)
    bare_mig.divide("there", {"main": [Row("1g.5gb", 5)]})
    answer = bare_mig.admit("there")
    assert not answer.is_admitted
    assert bare_mig.serve("beside", Row("1g.5gb", 6)) == bare_mig.at(6).uuid
    later = bare_mig.hardware.make(UUIDS[BY_ROWS], "1g.5gb", 0)
    blocked |= {("1g.5gb", 0), ("2g.10gb", 0), ("3g.20gb", 0)}
    eventually(lambda: bare_mig.offered() == ALL - blocked, LIMIT_S)
    assert {it.gi for it in bare_mig.instances()} >= {foreign.gi, later.gi}
    bare_mig.hardware.destroy(UUIDS[BY_ROWS], foreign.gi)
    bare_mig.delete("there")
    bare_mig.delete("beside")
    bare_mig.wait_places(("1g.5gb", 0))


@shows(
    "M4",
    fault="an instance of somebody else is on a card that HAMi 2.5 to 2.9 divides by geometries",
    happens="the card is unhealthy with the reason, since their register can't say what is taken",
    lost="that card, until the instance is gone",
)
def test_hazard_04_foreign_instance_closes_a_card_of_geometries(bare_mig: MigRig) -> None:
    foreign = bare_mig.hardware.make(UUIDS[BY_TEMPLATE], "1g.5gb", 6)
    bare_mig.launch(slots=14)
    assert [is_healthy(bare_mig, number) for number in range(3)] == [True, False, True]
    assert "GPU instance 13 (1g.5gb at 6)" in bare_mig.reason(BY_TEMPLATE)
    assert f"nvidia-smi mig -i {UUIDS[BY_TEMPLATE]} -gi 13 -dci;" in bare_mig.reason(BY_TEMPLATE)
    bare_mig.hardware.destroy(UUIDS[BY_TEMPLATE], foreign.gi)
    eventually(lambda: is_healthy(bare_mig, BY_TEMPLATE), LIMIT_S)
    assert bare_mig.serve("p", Slot(1)) == bare_mig.instances(BY_TEMPLATE)[0].uuid


@shows(
    "M8",
    fault="a monitor holds a card whose MIG mode is to be switched on: the driver says IN_USE",
    happens="the change is pending; that card is unhealthy in the register and for kubelet, an "
    "Event says who holds it, and it is not asked for again at once; other cards serve",
    lost="the card, until nobody uses it",
)
@sees_host
def test_hazard_08_pending_mode_closes_its_card_only(bare_mig: MigRig) -> None:
    bare_mig.stub.write(*off(SPARE, clients=1, name='"NVIDIA A100-SXM4-40GB"'))
    bare_mig.launch(slots=14)
    eventually(lambda: bare_mig.events("MigModeWaits"), LIMIT_S)
    (said,) = bare_mig.events("MigModeWaits")
    assert UUIDS[SPARE] in said
    assert "still use the card" in said
    assert [is_healthy(bare_mig, number) for number in range(3)] == [True, True, False]
    state = bare_mig.hardware.look()[UUIDS[SPARE]]
    assert (state.current, state.pending) == (0, 1)
    assert bare_mig.serve("p", Row()) == bare_mig.at(6).uuid
    bare_mig.divide("q", {"main": [Row(card=SPARE)]})
    assert "waits for a reset" in bare_mig.admit("q").refusal
    asked = [it for it in bare_mig.hardware.changes(UUIDS[SPARE]) if "SetMigMode" in it.function]
    assert len(asked) == 1, "no storm"
    assert {it.function for it in bare_mig.hardware.changes(UUIDS[BY_TEMPLATE])} == set()


@shows(
    "G23",
    fault="a card of a node with operatingmode mig has no MIG",
    happens="it is unhealthy with the reason; the others serve",
    lost="that card, on this node",
)
def test_card_without_mig_is_closed_beside_others(bare_mig: MigRig) -> None:
    bare_mig.stub.write(*off(SPARE, mig="unsupported"))
    bare_mig.launch(slots=14)
    assert [is_healthy(bare_mig, number) for number in range(3)] == [True, True, False]
    assert "has no MIG" in bare_mig.reason(SPARE)
    assert bare_mig.serve("p", Row()) == bare_mig.at(6).uuid


@shows(
    "M15",
    fault="MIG Manager, or an administrator, lays out cards of a node that hami-node divides",
    happens="what they made is left alone, and its places are withdrawn; the pod whose instance "
    "they destroyed has an Event with the remedy; a card whose mode they switched off is unhealthy "
    "with the remedy; other pods keep their instances, and are served",
    lost="what they destroyed, and the card in the other mode",
)
def test_hazard_15_layout_by_others_costs_what_they_took_and_no_more(bare_mig: MigRig) -> None:
    bare_mig.launch()
    bare_mig.serve("loses", Row())
    own = bare_mig.serve("keeps", Row(start=5))
    bare_mig.hardware.destroy(UUIDS[BY_ROWS], bare_mig.at(6).gi)
    theirs = bare_mig.hardware.make(UUIDS[BY_ROWS], "2g.10gb", 0)
    changes = bare_mig.hardware.changes()
    eventually(lambda: bare_mig.events("MigInstanceGone"), LIMIT_S)
    (said,) = bare_mig.events("MigInstanceGone")
    assert "delete the pod" in said
    eventually(lambda: ("2g.10gb", 0) not in bare_mig.offered(), LIMIT_S)
    assert bare_mig.hardware.changes() == changes, "nothing is made in place of what is gone"
    assert (bare_mig.at(5).uuid, bare_mig.at(0).gi) == (own, theirs.gi)
    assert bare_mig.serve("next", Row(start=4)) == bare_mig.at(4).uuid
    bare_mig.stub.write(*off(SPARE))
    eventually(lambda: not is_healthy(bare_mig, SPARE), LIMIT_S)
    assert "switch it on" in bare_mig.reason(SPARE)
    assert not [it for it in bare_mig.hardware.changes() if "SetMigMode" in it.function]


@shows(
    "M11",
    fault="another driver gives instances less memory than was registered",
    happens="the register has the new numbers by itself, and a running pod keeps the old ones",
)
def test_hazard_11_memory_follows_the_driver(bare_mig: MigRig) -> None:
    bare_mig.launch()
    bare_mig.serve("before", Row())
    bare_mig.stop()
    bare_mig.show(f"profile {BY_ROWS} 1g.5gb memory_mib=4736")
    bare_mig.launch()
    eventually(lambda: registered(bare_mig, BY_ROWS)["migProfiles"][0]["memoryMB"] == 4736, LIMIT_S)
    assert ",4864,15" in bare_mig.pod("before").annotations["hami.io/vgpu-devices-allocated"]
    assert bare_mig.serve("other", Row("2g.10gb", 0)) == bare_mig.at(0).uuid
    (first, *_) = decode_register(bare_mig.register_text)
    assert layout_of(first).profiles[0].memory_mib == 4736


def test_lists_of_profiles_and_geometries_take_effect_at_once(
    bare_mig: MigRig,
) -> None:
    bare_mig.launch()
    own = bare_mig.serve("before", Row("2g.10gb", 4))
    profiles = [{"models": ["A100-PCIE-40GB", "A100-SXM4-40GB"], "profiles": ["1g.5gb"]}]
    fresh = bare_mig.config_path.with_suffix(".new")
    fresh.write_text(json.dumps({"nvidia": {"migProfileAllowlist": profiles}}))
    fresh.replace(bare_mig.config_path)
    only = {("1g.5gb", start) for start in range(7)}
    eventually(lambda: all(bare_mig.offered(number) == only for number in range(3)), LIMIT_S)
    assert bare_mig.serve("after", Row()) == bare_mig.at(6).uuid
    assert bare_mig.at(4).uuid == own
