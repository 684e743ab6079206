"""What the chart makes is found, whatever is switched on or off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_node.simulate.apiserver import ApiServer
from tests.fakes.installed import RESOURCES, SPACE, Installed
from tests.unit.chart.helm import needs_helm, template
from tests.unit.verify.calling import findings

pytestmark = needs_helm


@pytest.mark.parametrize(
    ("values", "checks"),
    [
        pytest.param({}, {"certificate", "leader", "webhook", "daemon", "limiter"}, id="default"),
        pytest.param({"scheduler": {"certManager": {"enabled": True}}}, {"certificate"}, id="cm"),
        pytest.param({"neuron": {"enabled": True}}, {"daemon"}, id="neuron"),
        pytest.param({"scheduler": {"overwriteEnv": True}}, {"webhook"}, id="all_pods"),
        pytest.param({"scheduler": {"enabled": False}}, {"daemon", "policies"}, id="no_scheduler"),
        pytest.param({"limiter": {"source": "host"}}, {"limiter"}, id="limiter_of_the_host"),
    ],
)
def test_chart_is_found_and_right(values: dict[str, Any], checks: set[str], tmp_path: Path) -> None:
    made = [one for one in yaml.safe_load_all(template(values)) if one and one["kind"] in RESOURCES]
    text = yaml.safe_dump_all(made).replace("gpus", SPACE)
    with ApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        cluster = Installed(server, kubeconfig, objects=yaml.safe_load_all(text))
        found = findings(cluster)
    assert [one for one in found if one["state"] not in ("ok", "warn")] == []
    assert checks <= {one["check"] for one in found if one["state"] == "ok"}
