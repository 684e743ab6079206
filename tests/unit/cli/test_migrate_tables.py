from __future__ import annotations

import io

import pytest

from hami_node.cli.show.migrate_tables import MAX_SHOWN, folded, show_check, show_plan, show_values
from hami_node.migrate.found.findings import Finding, Level, problem
from hami_node.migrate.found.overview import Row
from hami_node.migrate.plan import Plan
from hami_node.migrate.seen.reading import Gap
from hami_node.migrate.steps.steps import State, Step
from hami_node.migrate.values.mapping import map_values

STEP = Step(
    name="Canary",
    what="Hand over one node, " + "and say so at length, " * 8,
    commands=("kubectl " + "--a-long-flag=1 " * 9 + "end",),
    see=("a pod runs",),
    undo=("kubectl label node x y-",),
    gap="Nothing " + "much " * 30,
    state=State.NEXT,
)
PLAN = Plan(
    runs=(Row(what="HAMi 2.7.1", where="daemonset/" + "x" * 90, state="well " * 40),),
    findings=(problem("node a", "served twice " * 12, "take it off " * 12),),
    gaps=(Gap(what="leases", why="forbidden " * 20),),
    steps=(STEP,),
)


def shown(width: int = 80) -> list[str]:
    out = io.StringIO()
    show_plan(PLAN, out, width)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    assert [line for line in shown(width) if len(line) > width] == []


def test_sentences_keep_their_indent() -> None:
    lines = shown()
    first = lines.index("node a")
    assert lines[first + 1].startswith("    served twice")
    assert lines[first + 2].startswith("    twice")


def test_folded_command_is_the_same_words() -> None:
    text = folded("kubectl patch x -p '{\"a b\": 1}' " + "word " * 20)
    assert all(len(line) <= 78 for line in text.splitlines())
    assert (
        text.replace("\\\n", "").split()
        == ("kubectl patch x -p '{\"a b\": 1}' " + "word " * 20).split()
    )
    assert "'{\"a b\": 1}'" in text


def test_check_shows_the_first_problems_and_how_many_there_are() -> None:
    many = tuple(problem(f"node {n}", "why", "cure") for n in range(40))
    out = io.StringIO()
    show_check(Plan(runs=(), findings=many, gaps=(), steps=()), (), out, 80)
    assert out.getvalue().count("node ") == MAX_SHOWN
    assert f"and {40 - MAX_SHOWN} more" in out.getvalue()
    assert "problems: 40" in out.getvalue()


def test_check_without_problems_names_the_next_step() -> None:
    known = Finding(level=Level.CAUTION, where="x", why="y", cure="z")
    out = io.StringIO()
    show_check(Plan(runs=(), findings=(known,), gaps=(), steps=(STEP,)), (), out, 80)
    assert out.getvalue().splitlines()[0] == "nothing is wrong"
    assert "next step: Canary" in out.getvalue()


def test_values_that_are_all_defaults_are_said() -> None:
    out = io.StringIO()
    show_values(map_values({}), out, 80)
    assert "nothing to take over" in out.getvalue()
