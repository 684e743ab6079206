"""The limits of a running container change: up where there is room, down to what is used."""

from __future__ import annotations

import json

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.e2e import cards, tenants
from tests.e2e.api import Api
from tests.e2e.daemon import Daemon
from tests.e2e.extender import DEFAULT
from tests.e2e.pods import Pods
from tests.e2e.waiting import eventually

_KEY = "hami-node.io/resize"
_STATE = "hami-node.io/resize-state"


@pytest.fixture(autouse=True)
def program() -> None:
    tenants.install()


def _ask(api: Api, pod: str, mib: int, cores: int | None = None) -> None:
    amounts = {"gpumem": mib} | ({} if cores is None else {"gpucores": cores})
    text = json.dumps({"c0": amounts})
    api.patch(f"{Pods.path}/{pod}", {"metadata": {"annotations": {_KEY: text}}})


def _reserved_mib(pods: Pods, name: str) -> int:
    return int(pods.annotation(name, nvidia_names.POD_ALLOCATED).split(",")[2])


def _state(pods: Pods, name: str) -> str:
    return str(json.loads(pods.annotation(name, _STATE) or "{}").get("state", ""))


def _events(api: Api, pod: str) -> str:
    path = "/api/v1/namespaces/default/events"
    found = api.read(path, fieldSelector=f"involvedObject.name={pod}")["items"]
    return "\n".join(f"{event['reason']}: {event.get('message')}" for event in found)


def _granted_mib(daemon: Daemon) -> float:
    return daemon.metric("hami_node_card_memory_granted_bytes") / 2**20


def _start(pods: Pods, name: str, mib: int) -> None:
    box = tenants.tenant(name, memory_mib=mib, cores=30)
    pods.create(name, box, scheduler=DEFAULT)
    pods.wait_running(name)


@pytest.mark.usefixtures("extender")
def test_running_container_grows_and_shrinks(pods: Pods, api: Api, daemon: Daemon) -> None:
    _start(pods, "grows", 3000)
    tenants.hold("grows", 2000)
    tenants.wait_said(api, "grows", "holds 2000 of 3000")
    tenants.hold("grows", 4000)
    tenants.wait_said(api, "grows", "refused 4000 of 3000")
    running = pods.incarnations()
    _ask(api, "grows", 5000, 50)
    tenants.wait_said(api, "grows", "holds 4000 of 5000")
    eventually("it is done", lambda: _state(pods, "grows") == "done")
    assert _reserved_mib(pods, "grows") == 5000
    assert pods.incarnations() == running
    eventually("the metric follows", lambda: _granted_mib(daemon) == 5000)
    _ask(api, "grows", 1000)
    eventually("it is refused", lambda: _state(pods, "grows") == "refused")
    tenants.wait_limit(api, "grows", 5000)
    assert _reserved_mib(pods, "grows") == 5000
    eventually("the Event says what is used", lambda: "4000" in _events(api, "grows"))
    tenants.hold("grows", 500)
    tenants.wait_said(api, "grows", "holds 500 of 5000")
    _ask(api, "grows", 1001)
    tenants.wait_limit(api, "grows", 1001)
    eventually("less is reserved", lambda: _reserved_mib(pods, "grows") == 1001)


@pytest.mark.usefixtures("extender", "daemon")
def test_more_than_the_card_has_is_refused(pods: Pods, api: Api) -> None:
    _start(pods, "greedy", 3000)
    _ask(api, "greedy", cards.MEMORY_MIB + 1)
    eventually("it is refused", lambda: _state(pods, "greedy") == "refused")
    tenants.wait_limit(api, "greedy", 3000)
    assert _reserved_mib(pods, "greedy") == 3000


@pytest.mark.usefixtures("extender")
def test_restarted_container_keeps_its_new_limit(pods: Pods, api: Api, daemon: Daemon) -> None:
    box = tenants.tenant("again", memory_mib=3000)
    pods.create("again", box, scheduler=DEFAULT, restart_policy="Always")
    pods.wait_running("again")
    _ask(api, "again", 6000)
    tenants.wait_limit(api, "again", 6000)
    eventually("it is done", lambda: _state(pods, "again") == "done")
    before = pods.incarnations()
    daemon.cluster.ctr("tasks", "kill", "--signal", "KILL", _container_id(pods, "again"))
    eventually("it runs again", lambda: pods.incarnations() != before)
    pods.wait_running("again")
    tenants.wait_limit(api, "again", 6000)


def _container_id(pods: Pods, name: str) -> str:
    (found,) = (found for found, _ in pods.incarnations().values())
    return found.removeprefix("containerd://")
