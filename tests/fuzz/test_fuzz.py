"""A part of the fuzz run for every test run; the whole one is `python -m tests.fuzz.run`."""

from __future__ import annotations

import pytest

from hami_node.errors import WireError
from tests.fuzz.mutate import Source
from tests.fuzz.run import Report, run, run_case
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("cases", [8_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_fuzz_damaged_input_raises_only_named_errors(cases: int) -> None:
    report = run(cases, seed=2026)
    assert not report.failures, "\n".join(report.failures[:3])
    results = {target: set[str]() for target in TARGETS}
    for target, result in report.outcomes:
        results[target].add(result)
    # Every target has to get past its decoder as well, or nothing behind it is tried.
    assert all(found - {"WireError"} for found in results.values()), results
    assert "placed" in results["requests"]
    assert "placed" in results["register"]


def test_run_case_exception_is_a_failure_with_its_input() -> None:
    def broken(source: Source) -> str:
        raise KeyError(source.text(["GPU-A"], 0))

    def refusing(source: Source) -> str:
        raise WireError("key", source.text(["GPU-B"], 0))

    report = Report()
    for number in range(2):
        run_case(1, number, report, {"broken": broken, "refusing": refusing})
    assert report.outcomes == {("broken", "FAILED KeyError"): 1, ("refusing", "WireError"): 1}
    assert len(report.failures) == 1
    assert "case 1:0 (broken)\n'GPU-A'" in report.failures[0]


def test_run_case_endless_case_is_a_failure() -> None:
    def endless(source: Source) -> str:
        while source:
            pass
        return "never"

    report = Report()
    run_case(1, 0, report, {"endless": endless}, limit_s=0.05)
    assert report.outcomes == {("endless", "FAILED TooSlow"): 1}
