"""Calls `hami-node verify` and reads what it says."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from hami_node.cli.main import main
from hami_node.cli.programs import Programs
from tests.fakes.installed import Installed, Json


def call(cluster: Installed, *args: str) -> Result:
    programs = Programs(env=lambda: {"KUBECONFIG": str(cluster.kubeconfig)})
    return CliRunner().invoke(main, ["verify", *args], obj=programs)


def findings(cluster: Installed, *args: str) -> list[Json]:
    done = call(cluster, "-o", "json", *args)
    assert done.exit_code in (0, 1, 3), done.output
    report = json.loads(done.stdout)
    assert report["ok"] == (done.exit_code == 0)
    bad = any(one["state"] == "wrong" for one in report["findings"])
    assert bad == (done.exit_code == 1)
    return list(report["findings"])


def states(found: list[Json], state: str) -> list[tuple[str, str]]:
    return [(one["check"], one["what"]) for one in found if one["state"] == state]
