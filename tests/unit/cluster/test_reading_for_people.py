"""What commands for people ask the API server for: paths, headers, and how much they take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path

import pytest

from hami_node.clock import Deadline
from hami_node.cluster.access import Access
from hami_node.cluster.client import PAGE_BYTES, KubeClient, connect
from hami_node.errors import KubeError
from hami_node.model import Pod
from tests.fakes.clock import RealClock
from tests.fakes.http_servers import dripping_server, noting_server

DAEMON = Pod(uid="u", namespace="hami-system", name="hami-node-x")
Asked = list[tuple[str, Message]]


def kubeconfig(path: Path, url: str) -> Path:
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(json.dumps(document))
    return path


@contextmanager
def client(path: Path, body: bytes, asked: Asked, **access: object) -> Iterator[KubeClient]:
    with noting_server(body, asked) as url:
        files = (kubeconfig(path / "config", url),)
        reach = Access(kubeconfigs=files, **access)  # type: ignore[arg-type]  # its fields
        kube = connect(reach, component="test", clock=RealClock())
        yield kube
        kube.close()


def soon(limit_s: float = 20.0) -> Deadline:
    return Deadline.after(limit_s, RealClock().monotonic)


def test_impersonation_is_sent_with_each_group(tmp_path: Path) -> None:
    asked: Asked = []
    who = {"as_user": "jane", "as_groups": ("ops", "dev")}
    with client(tmp_path, b'{"rows": []}', asked, **who) as kube:
        kube.names_of("nodes", "", 5)
    ((_, headers),) = asked
    assert headers["Impersonate-User"] == "jane"
    assert headers.get_all("Impersonate-Group") == ["ops", "dev"]
    assert headers["Authorization"] == "Bearer t"


def test_oneself_sends_no_such_header(tmp_path: Path) -> None:
    asked: Asked = []
    with client(tmp_path, b'{"rows": []}', asked) as kube:
        kube.names_of("nodes", "", 5)
    assert not [name for name in asked[0][1] if name.startswith("Impersonate")]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"kind": "Table", "rows": [{"cells": ["n1", 7]}, {"cells": ["n2"]}]}', ("n1", "n2")),
        (b'{"kind": "NodeList", "items": [{"metadata": {"name": "n1"}}]}', ("n1",)),
        (b'{"rows": [{"cells": []}, {}], "items": null}', ()),
    ],
)
def test_names_are_read_from_tables_and_lists(
    tmp_path: Path, body: bytes, names: tuple[str, ...]
) -> None:
    asked: Asked = []
    with client(tmp_path, body, asked) as kube:
        assert kube.names_of("pods", "ml", 5) == names
    ((path, headers),) = asked
    assert path == "/api/v1/namespaces/ml/pods?limit=5&includeObject=None"
    assert headers["Accept"].startswith("application/json;as=Table")


def test_metrics_of_a_pod_come_through_the_proxy(tmp_path: Path) -> None:
    asked: Asked = []
    with client(tmp_path, b"page", asked) as kube:
        assert kube.read_pod_metrics(DAEMON, "9394", soon()) == b"page"
    (path, _) = asked[0]
    assert path == "/api/v1/namespaces/hami-system/pods/hami-node-x:9394/proxy/metrics"


def test_page_of_any_size_is_not_taken_as_a_whole(tmp_path: Path) -> None:
    asked: Asked = []
    with (
        client(tmp_path, b"#" * (PAGE_BYTES + 1), asked) as kube,
        pytest.raises(KubeError, match="more than"),
    ):
        kube.read_pod_metrics(DAEMON, "9394", soon())


def test_page_that_never_ends_is_left_at_the_deadline(tmp_path: Path) -> None:
    with dripping_server() as url:
        kube = connect(kubeconfig(tmp_path / "k", url), component="test", clock=RealClock())
        with pytest.raises(KubeError):
            kube.read_pod_metrics(DAEMON, "9394", soon(0.3))
        kube.close()


def test_events_are_those_of_the_name(tmp_path: Path) -> None:
    asked: Asked = []
    body = b'{"metadata": {}, "items": [{"reason": "FailedScheduling"}]}'
    with client(tmp_path, body, asked) as kube:
        assert kube.list_events("ml", "big") == ({"reason": "FailedScheduling"},)
    assert asked[0][0].startswith(
        "/api/v1/namespaces/ml/events?fieldSelector=involvedObject.name%3Dbig"
    )
