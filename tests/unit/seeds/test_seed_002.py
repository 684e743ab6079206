"""Specification document 002: a pod's way from its creation to its card. Tests by section."""

from __future__ import annotations

import yaml

from hami_node.model import Uuid
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_csv7
from hami_node.vendors.nvidia.node.sharing import offered_cards
from hami_node.vendors.nvidia.settings import NvidiaSettings
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
    pod,
    webhook_rules,
)
from tests.unit.seeds.bench import place

UUID = "GPU-7aebc545-cbd3-18a0-afce-76cae449702a"
SCALED = f"{UUID},10,73728,300,NVIDIA-NVIDIA GeForce RTX 3090,0,true:"


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


# -- 3.2.3.1.1: what a node registers ------------------------------------------------------------


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


def test_seed_002_3_2_3_4_absolute_memory_wins_over_the_percentage() -> None:
    both = ask(1, 4096, 0, memory_percent=100)
    assert place([card(0, (1, 12288, 0))], both) == "GPU-0"


# -- 3.3: what the node writes -------------------------------------------------------------------


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
