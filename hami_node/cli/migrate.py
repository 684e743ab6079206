"""The commands `migrate plan` and `migrate check`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from hami_node.cli.options import access_of, output_option, reach_options
from hami_node.cli.programs import Programs
from hami_node.cli.show.documents import print_json
from hami_node.errors import HamiError

if TYPE_CHECKING:
    from hami_node.migrate.found.findings import Finding
    from hami_node.migrate.plan import Plan
    from hami_node.migrate.values.mapping import Mapped

_FORMATS: Final = ("table", "json")
_FAILED: Final = 1
_LIMIT_S: Final = 600.0
"""For reading a whole cluster."""


@click.group(short_help="Plan and check the way over from HAMi or another device plugin.")
def migrate() -> None:
    """Say what gives out cards in this cluster now, what collides, and what to do in which order.

    \b
    hami-node migrate plan        what runs, and the steps with their commands
    hami-node migrate check       before, during and after: exit code 1 if something is wrong

    Nothing is written: the commands are for you to run. What may not be read is said, and left out.
    """


_values = click.option(
    "--from-hami-values",
    "values_file",
    type=click.File("rb"),
    metavar="FILE",
    help="HAMi's values: helm get values RELEASE -n NAMESPACE -o yaml; - is standard input.",
)


@migrate.command(short_help="Show what runs, and what to do in which order.")
@_values
@click.option(
    "-o",
    "--output",
    default="table",
    metavar="table|json|FILE",
    show_default=True,
    help="With --from-hami-values a file for our values; else they go to standard output.",
)
@reach_options
@click.pass_obj
def plan(
    programs: Programs,
    /,
    *,
    values_file: IO[bytes] | None,
    output: str,
    **reach: Any,  # noqa: ANN401 - options
) -> None:
    """Show what runs, what is wrong, and the steps: commands, how to see that each worked, undo.

    With --from-hami-values no cluster is asked: HAMi's values become values of our chart, and what
    is left out is named, with the reason.

    \b
    hami-node migrate plan
    helm get values hami -n kube-system -o yaml > hami-values.yaml
    hami-node migrate plan --from-hami-values hami-values.yaml -o hami-node-values.yaml
    """
    if values_file is not None:
        _convert(values_file, output)
        return
    if output not in _FORMATS:
        raise click.BadParameter(f"{output!r} is not table or json", param_hint="-o")
    found = _planned(programs, reach)
    if output == "json":
        print_json(found)
        return
    from hami_node.cli.show.migrate_tables import show_plan

    show_plan(found)


@migrate.command(short_help="Exit with 1 if something is wrong now.")
@_values
@output_option(*_FORMATS)
@reach_options
@click.pass_obj
def check(
    programs: Programs,
    /,
    *,
    values_file: IO[bytes] | None,
    output: str,
    **reach: Any,  # noqa: ANN401 - options
) -> None:
    """Look for what harms pods now: nodes served twice or by nobody, two schedulers, and so on.

    For before, between and after the steps. With --from-hami-values, misspelt values count, too.

    Exit code 0 if nothing is wrong, 1 for a problem, 3 if the API server can't be reached or lets
    us not read nodes, DaemonSets and Deployments.
    """
    mapped = _mapped(values_file) if values_file is not None else None
    found = _planned(programs, reach)
    wrong = _misspelt(mapped) if mapped is not None else ()
    if output == "json":
        print_json({"problems": (*found.problems, *wrong), "gaps": found.gaps})
    else:
        from hami_node.cli.show.migrate_tables import show_check

        show_check(found, wrong)
    click.get_current_context().exit(_FAILED if found.problems or wrong else 0)


def _planned(programs: Programs, reach: Mapping[str, Any]) -> Plan:
    from hami_node.clock import Deadline, SystemClock
    from hami_node.cluster.reading import Reader
    from hami_node.migrate.plan import plan_of
    from hami_node.migrate.seen.reading import read_cluster

    kube = programs.connect(access_of(programs.env(), **reach))
    reader = Reader(kube, Deadline.after(_LIMIT_S, SystemClock().monotonic))
    return plan_of(read_cluster(reader, programs.now()))


def _mapped(values_file: IO[bytes]) -> Mapped:
    from hami_node.config.files import MAX_FILE_BYTES
    from hami_node.migrate.values.mapping import map_values, read_values

    name = str(getattr(values_file, "name", "standard input"))
    return map_values(read_values(values_file.read(MAX_FILE_BYTES + 1), name))


def _misspelt(mapped: Mapped) -> tuple[Finding, ...]:
    from hami_node.migrate.found.findings import problem

    return tuple(
        problem(
            f"value {one.path}",
            "no chart of HAMi's has it, so that it never had an effect",
            f"did you mean {one.meant}?" if one.meant else "remove it",
        )
        for one in mapped.unknown
    )


def _convert(values_file: IO[bytes], output: str) -> None:
    from hami_node.cli.show.migrate_tables import show_values
    from hami_node.migrate.values.mapping import as_yaml

    mapped = _mapped(values_file)
    if output == "json":
        print_json(mapped)
        return
    if output in ("table", "-"):
        click.echo(as_yaml(mapped), nl=False)
    else:
        _write(Path(output), as_yaml(mapped))
    show_values(mapped)


def _write(path: Path, text: str) -> None:
    """Values may hold secrets: the file is the user's alone, and no link is followed.

    Raises:
        HamiError: it can't be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as e:
        raise HamiError(f"can't write {path}: {e.strerror or e}") from e
