"""What this cluster needs beyond the chart's values: a post-renderer of Helm, objects in and out.

It has no DNS, so that kube-scheduler finds the extender by its hosts file. The record of grants is
kept where the cluster's other files are, which go with it.
"""

from __future__ import annotations

import sys

import yaml

from tests.e2e.api import Json
from tests.e2e.assets import NODE_DIR

_ADDRESS = "10.232.0.80"
_LEADER = "hami-node-leader"


def patched(one: Json) -> Json:
    """The object as this cluster needs it."""
    match one["kind"], one["metadata"]["name"]:
        case "Service", name if name == _LEADER:
            one["spec"]["clusterIP"] = _ADDRESS
        case "Deployment", "hami-node-scheduler":
            host = f"{_LEADER}.{one['metadata']['namespace']}.svc"
            spec = one["spec"]["template"]["spec"]
            spec["hostAliases"] = [{"ip": _ADDRESS, "hostnames": [host]}]
        case "DaemonSet", _:
            for volume in one["spec"]["template"]["spec"]["volumes"]:
                if volume["name"] == "record":
                    volume["hostPath"]["path"] = str(NODE_DIR / "record")
    return one


if __name__ == "__main__":
    rendered = [one for one in yaml.safe_load_all(sys.stdin) if one]
    yaml.safe_dump_all([patched(one) for one in rendered], sys.stdout)
