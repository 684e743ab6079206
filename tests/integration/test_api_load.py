"""What daemons cost the API server: every request of an outage and after it, with its query."""

from __future__ import annotations

from tests.fakes.pods import NODE
from tests.fakes.waiting import eventually
from tests.integration.rig import Rig
from tests.reliability import shows


@shows(
    "N5",
    fault="the API server is away for some seconds",
    happens="both watches go on where they were; the daemon lists nothing",
)
def test_outage_ends_with_resumed_watches_and_no_list(node: Rig) -> None:
    daemon = node.start()
    assert daemon.cluster is not None
    view = daemon.view
    listed = {request.resource: dict(request.query) for request in node.api.requests(verb="list")}
    assert {name: query["resourceVersion"] for name, query in listed.items()} == {
        "nodes": "0",
        "pods": "0",
    }
    assert not any("limit" in query for query in listed.values())
    known = {"nodes": view.node_watch.version(), "pods": view.pod_watch.version()}
    watches = (view.node_watch, view.pod_watch)
    node.api.go_down()
    eventually(lambda: all(watch._health.failures_in_a_row >= 3 for watch in watches), 60.0)
    node.api.forget_requests()
    node.api.start()
    node.api.annotate("nodes", NODE, {"after": "1"})
    eventually(lambda: (node := view.node()) and node.annotations.get("after") == "1", 60.0)
    eventually(lambda: len(node.api.requests(verb="watch")) == 2, 60.0)
    assert node.api.requests(verb="list") == ()
    for request in node.api.requests(verb="watch"):
        assert int(request.query["resourceVersion"]) >= known[request.resource]
