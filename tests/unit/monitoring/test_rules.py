"""Recording rules and alerts: the right series make each alert fire, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.cases import GIB, NODE_CASES, SCHEDULER_CASES, Case, X, held
from tests.monitoring.files import ALERTS_PAGE, RULES, rule_files, rules
from tests.unit.monitoring.promtool import check_rules, needs_promtool, promtool

CASES = {"node": NODE_CASES, "scheduler": SCHEDULER_CASES}
ALERTS = [rule for rule in rules() if rule.is_alert]


@needs_promtool
def test_promtool_takes_the_files() -> None:
    promtool("check", "rules", *rule_files())


def test_every_alert_has_a_case_and_every_case_an_alert() -> None:
    for file, cases in CASES.items():
        assert {rule.name for rule in ALERTS if rule.file == file} == set(cases)


def fired(name: str, case: Case, *, is_quiet: bool) -> dict[str, Any]:
    """A test of one alert in promtool's form."""
    labels = ", ".join(f'{key}="{value}"' for key, value in case.labels.items())
    alert = f'ALERTS{{alertname="{name}", alertstate="firing"}}'
    kept = ", ".join(case.labels)
    expected = [] if is_quiet else [{"labels": f"{{{labels}}}", "value": 1}]
    series = case.quiet if is_quiet else case.fires
    return {
        "name": f"{name} {'quiet' if is_quiet else 'fires'}",
        "interval": "1m",
        "input_series": [{"series": key, "values": text} for key, text in series.items()],
        "promql_expr_test": [
            {
                "expr": f"sum by ({kept}) ({alert})",
                "eval_time": f"{case.minutes}m",
                "exp_samples": expected,
            }
        ],
    }


@needs_promtool
@pytest.mark.parametrize("file", CASES)
def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path, file: str) -> None:
    tests = [
        fired(name, case, is_quiet=is_quiet)
        for name, case in CASES[file].items()
        for is_quiet in (False, True)
    ]
    check_rules(tmp_path, RULES / f"{file}.yaml", tests)


@needs_promtool
def test_a_new_pod_of_the_daemon_is_no_new_alert(tmp_path: Path) -> None:
    """The alert goes on, in place of ending and beginning anew, when its target changes."""
    series = 'hami_node_card_healthy{{node="n1",uuid="GPU-1",index="0",type="A",pod="{}"}}'
    case = Case(
        fires={series.format("d-1"): "0x30 stale", series.format("d-2"): "_x31 0x100"},
        quiet={},
        labels={"node": "n1", "uuid": "GPU-1", "index": "0", "type": "A"},
        minutes=32,
    )
    check_rules(tmp_path, RULES / "node.yaml", [fired("HamiCardUnhealthy", case, is_quiet=False)])


def free(card: str, memory: int, granted: int, slots: int, used: int) -> dict[str, str]:
    labels = f'{{node="n1",uuid="{card}"}}'
    return {
        f"{X}card_memory_bytes{labels}": held(memory),
        f"{X}card_memory_granted_bytes{labels}": held(granted),
        f"{X}card_slots{labels}": held(slots),
        f"{X}card_slots_used{labels}": held(used),
        f"hami_node_card_healthy{labels}": held(0 if card == "sick" else 1),
    }


@needs_promtool
@pytest.mark.parametrize(
    ("size", "count"), [("1Gi", 14), ("4Gi", 5), ("8Gi", 2), ("16Gi", 1), ("64Gi", 0)]
)
def test_free_slices_are_bounded_by_memory_and_slots(tmp_path: Path, size: str, count: int) -> None:
    series = {
        **free("most", 24 * GIB, 8 * GIB, 10, 1),  # 16 GiB, 9 slots
        **free("some", 8 * GIB, 3 * GIB, 10, 1),  # 5 GiB
        **free("small", 1 * GIB, GIB // 2, 10, 1),  # nothing of a GiB
        **free("full", 80 * GIB, 10 * GIB, 2, 2),  # no slot
        **free("over", 16 * GIB, 20 * GIB, 10, 1),  # more is granted than there is
        **free("sick", 80 * GIB, 0, 10, 0),
        **free("cordoned", 0, 8 * GIB, 0, 1),
    }
    recorded = f'hami_node:slices_free:sum{{size="{size}"}}'
    expected = {"labels": recorded, "value": count}
    test = {
        "interval": "1m",
        "input_series": [{"series": key, "values": text} for key, text in series.items()],
        "promql_expr_test": [
            {"expr": recorded, "eval_time": "5m", "exp_samples": [expected]},
        ],
    }
    check_rules(tmp_path, RULES / "scheduler.yaml", [test])


def test_every_alert_is_complete() -> None:
    for rule in ALERTS:
        body = rule.body
        assert body["labels"]["severity"] in ("info", "warning", "critical"), rule.name
        notes = body["annotations"]
        assert set(notes) == {"summary", "description", "runbook_url"}, rule.name
        assert notes["runbook_url"] == f"docs/monitoring.md#{rule.name.lower()}"
        assert len(notes["summary"]) <= 120, rule.name


def test_every_alert_has_a_section_in_the_runbook_and_every_section_an_alert() -> None:
    page = ALERTS_PAGE.read_text()
    sections = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert sorted(sections) == sorted(rule.name for rule in ALERTS)
    for rule in ALERTS:
        part = page.split(f"### {rule.name}\n")[1].split("\n##")[0]
        for word in ("**Meaning.**", "**Look.**", "**Remedy.**"):
            assert word in part, (rule.name, word)


def test_names_are_unique_and_records_say_whose_they_are() -> None:
    names = [rule.name for rule in ALERTS]
    assert len(set(names)) == len(names)
    for rule in rules():
        if not rule.is_alert:
            assert re.fullmatch(r"hami_node:[a-z0-9_]+(:[a-z0-9]+)?", rule.name), rule.name
