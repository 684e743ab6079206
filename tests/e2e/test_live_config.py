"""(j) The configuration changes under the running daemon; a wrong one changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from tests.e2e import cards
from tests.e2e.api import Api
from tests.e2e.daemon import CONFIG_MAP, Daemon
from tests.e2e.kubelet import healthy_slices
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually, stays

_FILE = "device-config.yaml"


@pytest.fixture
def config(api: Api, daemon: Daemon) -> Iterator[dict[str, str]]:
    """The ConfigMap's files; put back after the test."""
    before: dict[str, str] = api.read(CONFIG_MAP)["data"]
    yield before
    _write_text(api, daemon, before[_FILE])
    daemon.wait_offered()


def _write(api: Api, daemon: Daemon, before: dict[str, str], **changes: object) -> None:
    """Change keys below `nvidia:`; touch the daemon's pod, which makes kubelet look at once."""
    content = yaml.safe_load(before[_FILE]) or {}
    content.setdefault("nvidia", {}).update(changes)
    _write_text(api, daemon, yaml.safe_dump(content))


def _write_text(api: Api, daemon: Daemon, text: str) -> None:
    api.patch(CONFIG_MAP, {"data": {_FILE: text}})
    meta = daemon.pod()["metadata"]
    annotation = {"e2e.hami-node/touched": str(abs(hash(text)))}
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
    api.patch(path, {"metadata": {"annotations": annotation}})


def test_split_and_scaling_change_under_running_pods(
    api: Api, daemon: Daemon, pods: Pods, scheduler: Scheduler, config: dict[str, str]
) -> None:
    pod = pods.create("steady", RealContainer(name="c0", cards=1, memory_mib=2000))
    scheduler.place(pod, {"c0": (Slice(uuid=cards.uuid_of(0), memory_mib=2000),)})
    pods.wait_running("steady")
    running, pid = pods.incarnations(), daemon.pid()
    _write(api, daemon, config, deviceSplitCount=5, deviceMemoryScaling=2.0)
    eventually(
        "five slices a card",
        lambda: daemon.allocatable(nvidia_names.RESOURCE_GPU) == 40,
    )
    devices = eventually(
        "the annotation follows",
        lambda: [
            d
            for d in decode_register(daemon.annotations()[nvidia_names.NODE_REGISTER])
            if d.slots == 5
        ],
    )
    assert {d.memory_mib for d in devices} == {2 * cards.MEMORY_MIB}
    wide = pods.create("wide", RealContainer(name="c0", cards=1, memory_mib=100_000))
    scheduler.place(wide, {"c0": (Slice(uuid=cards.uuid_of(1), memory_mib=100_000),)})
    pods.wait_running("wide")
    assert pods.inside("wide", "c0").env[nvidia_names.ENV_OVERSUBSCRIBE] == "true"
    assert daemon.pid() == pid
    assert {k: v for k, v in pods.incarnations().items() if k in running} == running


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nvidia: {deviceSplitCount: many}", "deviceSplitCount"),
        ("nvidia: {deviceMemoryScaling: -1}", "deviceMemoryScaling"),
        ("nvidia: [", _FILE),
    ],
    ids=["not-a-number", "out-of-range", "not-yaml"],
)
def test_wrong_file_keeps_the_old_settings_and_says_so(
    api: Api, daemon: Daemon, config: dict[str, str], text: str, named: str
) -> None:
    assert config
    pid = daemon.pid()
    _write_text(api, daemon, text)
    eventually(
        "the log names what is wrong",
        lambda: any(named in line for line in daemon.log(50).splitlines() if "config" in line),
    )
    stays("all slices at kubelet", lambda: healthy_slices().total() == 80, 2)
    assert daemon.pid() == pid
