"""The command `install-limiter`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hami_node.cli.programs import Programs
from hami_node.vendors.registry import VENDORS

if TYPE_CHECKING:
    from hami_node.vendors.on_node.limiter import LimiterInstalled


@click.command("install-limiter", short_help="Put the limiter's library on this node, verified.")
@click.option(
    "--from",
    "source",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The folder with libvgpu.so or libvgpu.so.VERSION; of several the newest.",
)
@click.option(
    "--from-host",
    is_flag=True,
    help="Take what HAMi or people have left in the folder on the node, in place of --from.",
)
@click.option(
    "--hook-path",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The daemon's: DIR/vgpu gets the files. Default: $HOOK_PATH, then /usr/local.",
)
@click.option(
    "--sha256",
    "pins",
    multiple=True,
    metavar="HEX",
    help="What the library must have; amd64=HEX,arm64=HEX for each kind of processor. "
    "Default: $HAMI_NODE_LIMITER_SHA256, which the daemon reads too.",
)
@click.option(
    "--version-tag",
    default="",
    metavar="TEXT",
    help="What its version is called, such as v2.10.0. Default: as its name says.",
)
@click.option(
    "-o", "--output", type=click.Choice(["line", "json"]), default="line", show_default=True
)
@click.pass_obj
def install_limiter(
    programs: Programs,
    /,
    *,
    source: Path | None,
    from_host: bool,
    hook_path: Path | None,
    pins: tuple[str, ...],
    version_tag: str,
    output: str,
) -> None:
    """Put the limiter's library on this node, for the containers that start from now on.

    Checks it (a whole library for this processor, its sha256), writes it under a name of its own,
    libvgpu.so.VERSION-SHA256, and the ld.so.preload that loads it in containers. Running containers
    keep the library that they have. It may be run repeatedly and is meant for an init container.

    \b
    hami-node install-limiter --from /limiter --sha256 amd64=4f...,arm64=9c...
    hami-node install-limiter --from-host
    """
    from hami_node.vendors.on_node.limiter import LimiterOrder

    if (source is None) != from_host:
        raise click.UsageError("name --from DIR or --from-host, one of them")
    env = programs.env()
    folder = hook_path or Path(env.get("HOOK_PATH") or "/usr/local")
    if not folder.is_absolute():
        # containers load the library by this path
        raise click.UsageError(f"--hook-path or $HOOK_PATH is {folder}: write an absolute path")
    wanted = pins or (env.get("HAMI_NODE_LIMITER_SHA256", ""),)
    order = LimiterOrder(
        source=source,
        hook_path=folder,
        pins=tuple(part for text in wanted for part in text.split(",") if part),
        version=version_tag,
    )
    for vendor in VENDORS:
        if vendor.install_limiter is not None:
            _show(vendor.install_limiter(order), output)


def _show(done: LimiterInstalled, output: str) -> None:
    if output == "json":
        fields = {
            "path": str(done.path),
            "version": done.version,
            "sha256": done.sha256,
            "new": done.is_new,
        }
        click.echo(json.dumps(fields))
        return
    verb = "installed" if done.is_new else "already there"
    hint = f"; {done.hint}" if done.hint else ""
    click.echo(f"{verb}: {done.path}, version {done.version}, sha256 {done.sha256}{hint}")
