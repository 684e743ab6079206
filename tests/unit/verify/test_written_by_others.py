"""Objects of any shape, hostile words, and many nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.simulate.apiserver import ApiServer
from tests.fakes.installed import Installed, Json
from tests.unit.verify.calling import call, findings
from tests.unit.verify.faults import lead, waiting

EVIL = "\x1b[2J\u202egpu\n" + "x" * 3000


def test_words_of_others_are_shown_harmless_and_short(cluster: Installed) -> None:
    cluster.unready("hami-node-gpu-1", **waiting(EVIL, EVIL))
    cluster.annotate("gpu-0", {"hami-node.io/hand-over": f"refused: {EVIL}"})
    lead(holderIdentity=EVIL)(cluster)
    for text in (call(cluster).output, call(cluster, "-o", "json").output):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert max(len(one["what"]) for one in findings(cluster)) < 1500


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("daemonsets", "hami-node"),
        ("deployments", "hami-node-extender"),
        ("deployments", "hami-node-scheduler"),
        ("mutatingwebhookconfigurations", "hami-node"),
        ("leases", "hami-node-extender"),
        ("endpointslices", "hami-node-leader"),
        ("configmaps", "hami-node-scheduler"),
        ("secrets", "hami-node-extender-tls"),
        ("nodes", "gpu-0"),
        ("pods", "hami-node-gpu-0"),
    ],
)
@pytest.mark.parametrize(
    "rest",
    [
        pytest.param({}, id="empty"),
        pytest.param({"spec": {}, "data": {}, "webhooks": []}, id="empty_parts"),
        pytest.param({"spec": 7, "data": 7, "webhooks": 7, "status": 7}, id="numbers"),
        pytest.param({"spec": None, "data": None, "webhooks": None, "status": None}, id="nulls"),
        pytest.param(
            {"data": {"config.yaml": "a: [", "tls.crt": "?", "tls.key": "AAAA"}}, id="garbage"
        ),
    ],
)
def test_object_of_any_shape_is_said_and_ends_nothing(
    cluster: Installed, resource: str, name: str, rest: Json
) -> None:
    def change(body: Json) -> None:
        for key in ("spec", "data", "webhooks", "status", "endpoints"):
            body.pop(key, None)
        body.update(rest)

    cluster.edit(resource, name, change)
    assert findings(cluster)


def test_many_nodes_are_read_in_pages_and_said_in_few_words(tmp_path: Path) -> None:
    with ApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "k")
        cluster = Installed(server, kubeconfig, nodes=1200, limited=200)
        done = call(cluster, "--timeout", "600")
    assert done.exit_code == 1
    assert "1,000 nodes gpu-1000, gpu-1001, gpu-1002 and 997 more" in " ".join(done.output.split())
    assert len(done.output.splitlines()) < 40
    lists = [one for one in server.requests(verb="list", resource="nodes")]
    assert len(lists) == 3
