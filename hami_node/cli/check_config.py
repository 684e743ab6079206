"""The command `check-config`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hami_node.cli.options import output_option
from hami_node.cli.programs import Programs
from hami_node.config.settings import plain
from hami_node.config.sources import unknown_variables
from hami_node.vendors.registry import SETTINGS_BLOCKS

if TYPE_CHECKING:
    from hami_node.config.check import CheckedFile
    from hami_node.errors import ConfigError


@click.command("check-config", short_help="Check configuration files, also for one node.")
@click.argument(
    "paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--node", "node_name", metavar="NAME", help="Also show what this node would use.")
@output_option("table", "json")
@click.pass_obj
def check_config(
    programs: Programs, paths: Sequence[Path], node_name: str | None, output: str
) -> None:
    """Check device-config.yaml, config.json, or ConfigMaps with these files.

    Reports for each file that it is ok, or all its errors; exit code 1 for errors. A misspelt key
    or HAMI_NODE_... variable of ours is an error. Unknown keys that may be HAMi's are warnings,
    since its versions differ.

    \b
    hami-node check-config device-config.yaml config.json --node gpu-node-1
    kubectl -n hami-system get configmap hami-node-config -o yaml > cm.yaml
    hami-node check-config cm.yaml --node gpu-node-1
    """
    from hami_node.config.check import check_file, effective

    files = [checked for path in paths for checked in check_file(path, SETTINGS_BLOCKS)]
    errors = [error for file in files for error in file.found.errors]
    errors += unknown_variables(programs.env(), SETTINGS_BLOCKS).errors
    found = effective(files, node_name, SETTINGS_BLOCKS) if node_name else None
    if found is not None:
        errors += [error for error in found.errors if str(error) not in map(str, errors)]
    if output == "json":
        _print_as_json(files, errors, plain(found.settings) if found else None)
    else:
        _print(files, errors)
        if found is not None:
            from hami_node.cli.show.tables import show_settings

            origins = {name.replace("_", "-"): text for name, text in found.origins.items()}
            show_settings(plain(found.settings), origins)
    click.get_current_context().exit(1 if errors else 0)


def _print(files: Sequence[CheckedFile], errors: Sequence[ConfigError]) -> None:
    for file in files:
        if not file.found.errors:
            click.echo(f"{file.source}: {click.style('ok', fg='green')} ({file.kind})")
        for ignored in file.found.ignored:
            click.echo(f"{file.source}: without effect here: {ignored.partition(': ')[2]}")
        for warning in file.found.warnings:
            click.echo(f"{click.style('warning: ', fg='yellow')}{warning}")
    for error in errors:
        click.echo(click.style("wrong: ", fg="red") + str(error))


def _print_as_json(
    files: Sequence[CheckedFile], errors: Sequence[ConfigError], settings: object
) -> None:
    wrong = [
        {"source": e.source, "field": e.field, "value": e.value, "cure": e.hint} for e in errors
    ]
    report = {
        "ok": not errors,
        "errors": wrong,
        "warnings": [warning for file in files for warning in file.found.warnings],
        "ignored": [name for file in files for name in file.found.ignored],
        "settings": settings,
    }
    click.echo(json.dumps(report, indent=2, ensure_ascii=False))
