"""One cluster and one daemon for all tests; each test starts with all cards well and no pods."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from hami_node.wire import names
from tests.e2e import limiter, parts, toolkit
from tests.e2e.api import Api, ApiError
from tests.e2e.assets import IMAGE, IMAGE_NEXT, IMAGE_TAR
from tests.e2e.cards import COUNT, Cards
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.extender import Extender
from tests.e2e.kubelet import held_slices
from tests.e2e.pki import Authority
from tests.e2e.pods import Pods, describe
from tests.e2e.release import Release, remove_kustomization
from tests.e2e.scheduler import NODE_PATH, Scheduler
from tests.e2e.waiting import eventually
from tests.fakes.pods import Generation

_FOLDER = Path(__file__).parent
_WORTH_READING = re.compile("plugin|Allocate|admi|nvidia.com|unhealthy|killing", re.IGNORECASE)
_KEEP = "HAMI_E2E_KEEP"  # set: use the cluster that runs, and leave it running


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the cluster."""
    for item in items:
        if _FOLDER in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A fresh cluster with the product's image, removed at the end."""
    if not IMAGE_TAR.exists():
        pytest.fail("nothing is prepared: run `make e2e`, or `python -m tests.e2e.prepare`")
    one = Cluster()
    is_kept = _KEEP in os.environ
    with _only_one_at_a_time():
        if not (is_kept and one.pid("kubelet") is not None):
            one.up()
        one.import_image(IMAGE_TAR)
        one.ctr("images", "tag", "--force", IMAGE, IMAGE_NEXT)
        yield one
        if not is_kept:
            one.down()


@contextmanager
def _only_one_at_a_time() -> Iterator[None]:
    """Two runs would take each other's cluster down."""
    with open("/run/hami-e2e.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.exit("another run of the end-to-end tests holds this machine's cluster", 2)
        yield


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Iterator[Api]:
    """The API server as admin."""
    with Api(Authority(cluster.root / "pki").ca_file, parts.ADMIN.token) as one:
        yield one


@pytest.fixture(scope="session")
def authority(cluster: Cluster) -> Authority:
    """Who signs the cluster's certificates."""
    return Authority(cluster.root / "pki")


@pytest.fixture(scope="session")
def installed(cluster: Cluster, api: Api) -> Daemon:
    """The daemon, installed once with its limiter and its cards."""
    Cards().install()
    limiter.install()
    one = Daemon(cluster, api)
    one.install()
    if _KEEP in os.environ:
        one.forget_crashes()  # the image may have changed under its name
    return one


@pytest.fixture
def cards() -> Iterator[Cards]:
    """The node's cards; well again after the test."""
    one = Cards()
    yield one
    one.heal()


@pytest.fixture
def daemon(installed: Daemon) -> Daemon:
    """The daemon, ready, with every slice offered."""
    Cards().heal()
    _wait_for_rest(installed)
    return installed


@pytest.fixture(scope="module")
def changeable(installed: Daemon) -> Iterator[Daemon]:
    """The daemon, which a module's tests run in other ways; as installed after them."""
    yield installed
    installed.restore()


@pytest.fixture
def pods(api: Api, daemon: Daemon) -> Iterator[Pods]:
    """The test's pods; all gone after it, and the node's lock with them."""
    one = Pods(api)
    one.clear()
    eventually("kubelet holds no slices", lambda: not held_slices())
    yield one
    one.clear()
    api.patch(NODE_PATH, {"metadata": {"annotations": {names.NODE_LOCK: None}}})


@pytest.fixture(scope="session")
def runtimes(cluster: Cluster) -> None:
    """NVIDIA's runtimes with their classes, over a driver of our own, installed once."""
    toolkit.install(range(COUNT))
    for found in toolkit.class_objects():
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(found))


@pytest.fixture(scope="session")
def scheduling(cluster: Cluster, api: Api, installed: Daemon) -> Extender:
    """The extender, the webhook and their kube-scheduler, installed once."""
    assert installed
    one = Extender(cluster, api)
    one.install()
    return one


@pytest.fixture
def extender(scheduling: Extender, daemon: Daemon) -> Extender:
    """The same, with somebody who leads; pods need the daemon as well."""
    assert daemon
    scheduling.wait_ready()
    return scheduling


@pytest.fixture(scope="module")
def release(cluster: Cluster, api: Api, installed: Daemon) -> Iterator[Release]:
    """The chart, installed in place of the overlay, which is back after the module."""
    remove_kustomization(cluster)
    Extender(cluster, api).import_scheduler()
    one = Release(cluster)
    notes = one.install()
    assert "is installed in the namespace hami-system" in notes
    yield one
    Pods(api).clear()
    one.uninstall()
    mark = {names.NODE_READ_BY: None}  # it stays, and says which form the node's reports have
    api.patch(NODE_PATH, {"metadata": {"annotations": mark}})
    installed.install()


@pytest.fixture
def released(release: Release, cluster: Cluster, api: Api, daemon: Daemon) -> Release:
    """The same, with every part ready."""
    assert daemon
    Extender(cluster, api).wait_ready()
    return release


@pytest.fixture
def scheduler(api: Api, pods: Pods) -> Scheduler:
    """HAMi's scheduler of the newest generation."""
    return Scheduler(api, Generation.V2_10)


def _wait_for_rest(daemon: Daemon) -> None:
    daemon.wait_ready()
    daemon.wait_offered()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure what the cluster looked like at that moment."""
    report = yield
    daemon = item.funcargs.get("daemon") if isinstance(item, pytest.Function) else None
    if report.failed and report.when == "call" and isinstance(daemon, Daemon):
        report.sections.append(("the cluster", _story(daemon)))
        extender = item.funcargs.get("extender") if isinstance(item, pytest.Function) else None
        if isinstance(extender, Extender):
            report.sections.append(("the scheduler", _log_of(extender)))
    return report


def _log_of(extender: Extender) -> str:
    try:
        return extender.log()
    except (ApiError, httpx.TransportError) as error:
        return f"the API server does not tell: {error}"


def _story(daemon: Daemon) -> str:
    """Everything a person asks for first, as text."""
    cluster, api = daemon.cluster, daemon.api
    try:
        lines = [f"== daemon\n{daemon.log()}", "== node"]
        lines += [f"{k}: {v}" for k, v in daemon.annotations().items() if "hami" in k]
        lines += ["== pods"]
        for pod in api.read("/api/v1/namespaces/default/pods")["items"]:
            lines.append(f"{pod['metadata']['name']}: {describe(pod['status'])}")
            annotations = pod["metadata"].get("annotations", {})
            lines += [f"    {k}: {v}" for k, v in annotations.items()]
        lines += ["== events"]
        events = api.read("/api/v1/namespaces/default/events")["items"][-40:]
        lines += [
            f"{e['involvedObject']['name']} {e['reason']}: {e.get('message')}" for e in events
        ]
    except (ApiError, httpx.TransportError) as error:
        lines = [f"the API server does not tell: {error}"]
    kubelet = cluster.log_tail("kubelet", 400).splitlines()
    lines += ["== kubelet", *[k for k in kubelet if _WORTH_READING.search(k)][-30:]]
    return "\n".join(lines)
