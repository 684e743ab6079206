"""Specification document 002: a pod's way from its creation to its card. Tests by section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from hami_node.clock import SystemClock
from hami_node.config.sources import ConfigSources
from hami_node.engine.compat import V2_8
from hami_node.engine.ranking import device_score, node_score
from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants
from hami_node.errors import KubeError, WireError
from hami_node.model import Uuid
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.codec import decode_register, encode_csv7
from hami_node.vendors.nvidia.node.sharing import offered_cards
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.registry import SETTINGS_BLOCKS
from hami_node.wire.grants import decode_grants, encode_grants
from hami_node.wire.handshake import HandshakeKind, decode_handshake, encode_reported
from tests.fakes.pods import Box
from tests.fakes.settings import load
from tests.unit.daemonset.manifests import FOLDER, documents
from tests.unit.engine.cards import ask, card, device
from tests.unit.extender.desk import Desk
from tests.unit.extender.desk import card as desk_card
from tests.unit.extender.reviews import (
    CORES,
    GPU,
    MEM,
    PCT,
    PRIO,
    admitted,
    container,
    env_of,
    limits_of,
    pod,
    refusal,
    webhook_rules,
)
from tests.unit.seeds.bench import place

UUID = "GPU-7aebc545-cbd3-18a0-afce-76cae449702a"
REGISTERED = f"{UUID},10,24576,300,NVIDIA-NVIDIA GeForce RTX 3090,0,true:"
SCALED = f"{UUID},10,73728,300,NVIDIA-NVIDIA GeForce RTX 3090,0,true:"


# -- 3: settings in two places -------------------------------------------------------------------
NODE_CONFIG = """
{
  "nodeconfig": [
    {
      "name": "node1",
      "devicememoryscaling": 3,
      "devicesplitcount": 10,
      "migstrategy":"none",
      "filterdevices": {
        "uuid": [],
        "index": []
      }
    }
  ]
}
"""
DEVICE_CONFIG = """
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  deviceSplitCount: 10
  deviceMemoryScaling: 2
  deviceCoreScaling: 3
"""


@pytest.mark.parametrize(("node", "memory_scaling"), [("node1", 3), ("node2", 2)])
def test_seed_002_3_nodes_own_entry_wins_over_the_global_one(
    tmp_path: Path, node: str, memory_scaling: float
) -> None:
    global_file, node_file = tmp_path / "device-config.yaml", tmp_path / "config.json"
    global_file.write_text(DEVICE_CONFIG)
    node_file.write_text(NODE_CONFIG)
    found = load(
        ConfigSources(
            blocks=SETTINGS_BLOCKS,
            env={"NODE_NAME": node},
            config_file=global_file,
            node_config_file=node_file,
        )
    ).of(NvidiaSettings)
    assert found.memory_scaling == memory_scaling
    assert (found.core_scaling, found.split_count) == (3, 10)


# -- 3.1: the webhook ----------------------------------------------------------------------------
def test_seed_002_3_1_1_webhook_is_called_for_new_pods_without_the_label() -> None:
    (found,) = documents(FOLDER / "extender" / "webhook.yaml")[0]["webhooks"]
    opt_out = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
    assert found["clientConfig"]["service"]["path"] == "/webhook"
    assert found["clientConfig"]["service"]["port"] == 443
    assert opt_out in found["namespaceSelector"]["matchExpressions"]
    assert found["objectSelector"]["matchExpressions"] == [opt_out]
    (rule,) = found["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
    assert (found["matchPolicy"], found["sideEffects"]) == ("Equivalent", "None")
    assert (found["name"], found["timeoutSeconds"]) == ("vgpu.hami.io", 10)


def test_seed_002_3_1_2_pod_without_containers_is_denied() -> None:
    assert refusal(pod())[1].startswith("pod has no containers")


@pytest.mark.parametrize("limits", [{GPU: "1"}, {MEM: "3000"}, {PCT: "50"}, {CORES: "30"}])
def test_seed_002_3_1_2_pod_that_asks_gets_the_schedulers_name(limits: Mapping[str, str]) -> None:
    assert admitted(pod(container(limits)))["spec"]["schedulerName"] == "hami-scheduler"


def test_seed_002_3_1_2_pod_that_asks_nothing_keeps_its_scheduler() -> None:
    assert admitted(pod(container()))["spec"]["schedulerName"] == "default-scheduler"


def test_seed_002_3_1_2_pod_with_a_node_is_denied() -> None:
    assert refusal(pod(container({GPU: "1"}), nodeName="n1"))[1].startswith("pod has node assigned")


@pytest.mark.parametrize("level", ["0", "1"])
def test_seed_002_3_1_2_priority_becomes_a_variable(level: str) -> None:
    changed = admitted(pod(container({GPU: "1", MEM: "1000", PRIO: level})))
    assert env_of(changed) == [{"name": "CUDA_TASK_PRIORITY", "value": level}]


@pytest.mark.parametrize("limits", [{MEM: "3000"}, {PCT: "50"}, {CORES: "30"}])
def test_seed_002_3_1_2_share_without_a_count_gets_the_default_count(
    limits: Mapping[str, str],
) -> None:
    assert limits_of(admitted(pod(container(limits))))[GPU] == "1"
    two = webhook_rules(default_count=2)
    assert limits_of(admitted(pod(container(limits)), two))[GPU] == "2"


def test_seed_002_3_1_2_container_without_cards_sees_none_of_them_if_wanted() -> None:
    obj = pod(container({GPU: "1", MEM: "1000"}), container(None, "b"))
    assert env_of(admitted(obj), 1) == []
    changed = admitted(obj, webhook_rules(overwrite_env=True))
    assert env_of(changed, 1) == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


# -- 3.2: the extender ---------------------------------------------------------------------------
def test_seed_002_3_2_1_kube_scheduler_asks_filter_and_bind_about_the_resources() -> None:
    (config,) = (
        yaml.safe_load(text)
        for doc in documents(FOLDER / "extender" / "scheduler.yaml")
        if doc["kind"] == "ConfigMap"
        for text in doc["data"].values()
    )
    (extender,) = config["extenders"]
    assert (extender["filterVerb"], extender["bindVerb"]) == ("filter", "bind")
    assert extender["nodeCacheCapable"] is True
    assert extender["enableHTTPS"] is True
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["hami-scheduler"]
    managed = {
        item["name"]: item.get("ignoredByScheduler", False) for item in extender["managedResources"]
    }
    for resource in (MEM, PCT, CORES, PRIO):
        assert managed[resource] is True
    assert managed[GPU] is False, "differs: kube-scheduler counts what kubelet counts"


def test_seed_002_3_2_3_pod_that_asks_nothing_gets_every_node_back() -> None:
    desk = Desk("n1", "n2")
    desk.add_pod("plain", Box(cards=0))
    assert desk.ask("plain", "n1", "n2")["NodeNames"] == ["n1", "n2"]


def test_seed_002_3_2_3_what_is_no_call_is_an_error() -> None:
    with pytest.raises(WireError):
        Desk("n1").filter.answer(b"{")


def test_seed_002_3_2_3_answer_is_one_node_and_the_pod_carries_the_decision() -> None:
    desk = Desk("node1", is_patched=True)
    desk.add_pod("p", Box(memory_mib=5000, cores=80))
    desk.sync()
    assert desk.ask("p")["NodeNames"] == ["node1"]
    notes = desk.notes_of("p")
    assert notes["hami.io/vgpu-node"] == "node1"
    assert notes["hami.io/vgpu-time"] == str(int(desk.clock.now()))
    assert notes["hami.io/vgpu-devices-allocated"] == "GPU-node1-0,NVIDIA,5000,80:;"


def test_seed_002_3_2_3_patch_that_fails_takes_the_decision_back() -> None:
    desk = Desk("n1", is_patched=True)
    desk.add_pod("p")
    desk.sync()
    desk.kube.fail("patch_pod_exactly", KubeError("broken", 500))
    assert desk.ask("p")["Error"]
    assert desk.held() == {}
    assert desk.notes[-1].reason == "FilteringFailed"


def test_seed_002_3_2_3_1_use_of_all_pods_is_summed_up_by_card() -> None:
    usage = NodeUsage([device(0), device(1)])
    texts = ("GPU-0,NVIDIA,1000,10:;", "GPU-0,NVIDIA,2000,20:GPU-1,NVIDIA,5,0:;")
    for number, text in enumerate(texts):
        grants = decode_grants(text, nvidia_names.POD_ALLOCATED, NVIDIA)
        usage.add(f"p{number}", PodGrants(containers=grants))
    found = {
        uuid: (used.slots_used, used.memory_used_mib, used.cores_used)
        for uuid, used in usage.cards.items()
    }
    assert found == {"GPU-0": (2, 3000, 30), "GPU-1": (1, 5, 0)}


def test_seed_002_3_2_3_1_node_without_cards_is_unregistered() -> None:
    desk = Desk("n1")
    desk.add_pod("p")
    desk.sync()
    answer = desk.ask("p", "stranger")
    assert answer["FailedAndUnresolvableNodes"]["stranger"].startswith("node unregistered")


# -- 3.2.3.1.1: what a node registers ------------------------------------------------------------
def test_seed_002_3_2_3_1_1_register_annotation_of_the_example() -> None:
    (found,) = decode_register(REGISTERED)
    assert found.uuid == UUID
    assert (found.slots, found.memory_mib, found.cores) == (10, 24576, 300)
    assert found.model.endswith("NVIDIA GeForce RTX 3090")
    assert (found.numa, found.healthy) == (0, True)


@pytest.mark.parametrize("text", ["", "rubbish", "GPU-1,ten,1,1,NVIDIA-x,0,true:"])
def test_seed_002_3_2_3_1_1_register_annotation_without_cards_offers_nothing(text: str) -> None:
    desk = Desk("n1")
    desk.kube.merge_patch_node("n1", {nvidia_names.NODE_REGISTER: text})
    desk.add_pod("p")
    desk.sync()
    assert "n1" in desk.ask("p", "n1")["FailedAndUnresolvableNodes"]


def test_seed_002_3_2_3_1_1_new_register_annotation_takes_the_place_of_the_old() -> None:
    desk = Desk("n1")
    desk.add_pod("p", memory_mib=20000)
    desk.sync()
    assert desk.choose("p") == ""
    larger = encode_csv7([desk_card("n1", 0, memory_mib=24576)])
    desk.kube.merge_patch_node("n1", {nvidia_names.NODE_REGISTER: larger})
    desk.sync()
    assert desk.choose("p") == "n1"


# -- 3.2.3.3 and 3.2.3.4: scores and cards -------------------------------------------------------
def test_seed_002_3_2_3_3_node_score_is_of_what_is_used_now() -> None:
    cards = [card(0, (3, 6144, 40)), card(1)]
    assert node_score(cards) == pytest.approx(10 * (3 / 20 + 40 / 200 + 6144 / 32768))


def test_seed_002_3_2_3_4_card_score_is_of_what_would_be_used() -> None:
    wanted = ask(1, 4096, 20)
    expected = 10 * (4 / 10 + 60 / 100 + 10240 / 16384)
    assert device_score(card(0, (3, 6144, 40)), [wanted], V2_8) == expected


def test_seed_002_3_2_3_4_absolute_memory_wins_over_the_percentage() -> None:
    both = ask(1, 4096, 0, memory_percent=100)
    assert place([card(0, (1, 12288, 0))], both) == "GPU-0"


def test_seed_002_3_2_3_4_reservation_of_the_example() -> None:
    text = f"{UUID},NVIDIA,20000,80:;"
    ((held,),) = decode_grants(text, nvidia_names.POD_ALLOCATED, NVIDIA)
    assert (held.uuid, held.memory_mib, held.cores) == (UUID, 20000, 80)
    assert encode_grants(((held,),)) == text
    served = decode_grants(";", nvidia_names.POD_TO_ALLOCATE, NVIDIA)
    assert not any(served)


# -- 3.2.4: bind ---------------------------------------------------------------------------------
def _reserved(*, has_identity: bool) -> Desk:
    desk = Desk()
    desk.add_node("n1", has_identity=has_identity)
    desk.add_pod("p")
    desk.sync()
    assert desk.choose("p") == "n1"
    return desk


def test_seed_002_3_2_4_bind_locks_marks_and_binds() -> None:
    desk = _reserved(has_identity=False)
    assert desk.bind("p", "n1") == ""
    assert desk.lock("n1").endswith(",default,p")
    notes = desk.notes_of("p")
    assert notes["hami.io/bind-phase"] == "allocating"
    assert notes["hami.io/bind-time"] == str(int(desk.clock.now()))
    assert desk.pod("p").node_name == "n1"
    assert desk.notes[-1].reason == "BindingSucceed"


def test_seed_002_3_2_4_bind_that_fails_frees_the_lock_and_says_so() -> None:
    desk = _reserved(has_identity=False)
    desk.kube.fail("bind_pod", KubeError("broken", 500))
    assert "broken" in desk.bind("p", "n1")
    assert desk.lock("n1") == ""
    assert desk.notes[-1].reason == "BindingFailed"


def test_seed_002_3_2_4_bind_to_a_node_that_is_gone_is_an_error() -> None:
    desk = _reserved(has_identity=True)
    assert desk.bind("p", "gone") != ""
    assert desk.pod("p").node_name == ""


# -- 3.3: what the node writes -------------------------------------------------------------------
def test_seed_002_3_3_handshakes_of_the_example() -> None:
    key = nvidia_names.NODE_HANDSHAKE
    asked = decode_handshake("Requesting_2024.12.24 03:31:30", key)
    gone = decode_handshake("Deleted_2024.12.06 07:43:49", key)
    assert (asked.kind, gone.kind) == (HandshakeKind.REQUESTING, HandshakeKind.DELETED)


def test_seed_002_3_3_3_cards_are_scaled_as_set_and_written_as_in_the_example() -> None:
    real = device(
        0,
        uuid=Uuid(UUID),
        model="NVIDIA GeForce RTX 3090",
        memory_mib=24576,
        slots=1,
    )
    settings = NvidiaSettings(split_count=10, memory_scaling=3, core_scaling=3)
    offered = offered_cards((real,), settings)
    assert encode_csv7(offered) == SCALED
    assert (offered[0].memory_mib, offered[0].cores) == (73728, 300)


def test_seed_002_3_3_3_report_is_the_word_and_gos_time() -> None:
    text = encode_reported(SystemClock().now())
    assert text.startswith("Reported 2")
    assert text.endswith(" +0000 UTC")


def test_seed_002_3_3_3_unhealthy_card_is_written_as_false() -> None:
    bad = device(0, healthy=False)
    (found,) = decode_register(encode_csv7([bad]))
    assert not found.healthy
    assert place([DeviceUsage(device=found)], ask()) == "1/1 CardNotHealth"
