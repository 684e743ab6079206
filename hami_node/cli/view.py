"""The command `view`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hami_node.cli.options import access_of, config_file_option, reach_options
from hami_node.cli.programs import Programs, answering
from hami_node.errors import Forbidden

if TYPE_CHECKING:
    from hami_node.cluster.access import Access
    from hami_node.cluster.client import KubeClient

VIEW: Final = "view"
"""The extra that has what the page needs."""


@click.command(short_help="Show the cluster's cards as a live page in the browser.")
@click.option(
    "--bind",
    default="127.0.0.1:8450",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the page is served; port 0 takes a free one.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which browsers may ask for the page, beside localhost; may be repeated. "
    "Needed where others can reach the address.",
)
@config_file_option
@reach_options
@click.option(
    "--daemon-namespace",
    default="hami-system",
    show_default=True,
    metavar="NAME",
    help="Where the daemons run: a node's page shows what they say is used.",
)
@click.pass_obj
def view(
    programs: Programs,
    /,
    *,
    bind: str,
    allowed_hosts: tuple[str, ...],
    config_file: Path | None,
    daemon_namespace: str,
    **reach: Any,  # noqa: ANN401 - options
) -> None:
    """Serve a live page: who holds what, who waits and why, what a pod would find. It only reads.

    The page is served to this machine, with the rights of your kubeconfig: to list and watch nodes
    and pods, and, where allowed, resourcequotas, events and the daemons' pod proxy, for what is
    used. Nothing is written, and nothing is loaded from elsewhere. Ctrl-C ends it.

    \b
    hami-node view
    hami-node view --bind 127.0.0.1:0
    hami-node view --bind :8450 --allowed-host cards.example.com

    The page asks nobody who they are. Where others can reach the address, an ingress in front of it
    has to.
    """
    from hami_node.cli.extras import need

    need(VIEW)
    flags = _Flags(
        bind=bind,
        allowed_hosts=allowed_hosts,
        config_file=config_file,
        daemon_namespace=daemon_namespace,
        access=access_of(programs.env(), **reach),
    )
    click.get_current_context().exit(_serve(programs, flags))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flags:
    bind: str
    allowed_hosts: tuple[str, ...]
    config_file: Path | None
    daemon_namespace: str
    access: Access


def _serve(programs: Programs, flags: _Flags) -> int:
    from hami_node.signals import END_SIGNALS, SignalThread

    signals = SignalThread(*END_SIGNALS)  # before any thread: an interruption is never lost
    from hami_node.cli.snapshots import basis_of, settings_of
    from hami_node.clock import SystemClock
    from hami_node.view.http.addresses import check_address
    from hami_node.view.service import ViewOptions, ViewServer

    check_address(flags.bind, flags.allowed_hosts)
    settings, problems = settings_of(programs.env(), flags.config_file)
    clock, basis = SystemClock(), basis_of(settings)
    kube = answering(flags.access, clock, "view")
    options = ViewOptions(
        bind=flags.bind,
        allowed_hosts=flags.allowed_hosts,
        daemon_namespace=flags.daemon_namespace,
    )
    server = ViewServer(options, kube, basis, clock, settings.scheduler_name, problems)
    _check_rights(kube)
    server.start()
    signals.start(dict.fromkeys(END_SIGNALS, server.stop.set))
    click.echo(f"the page is at {server.url} until Ctrl-C")
    server.stop.wait()
    server.close()
    kube.close()
    return 1 if server.threads.died else 0


def _check_rights(kube: KubeClient) -> None:
    """Fail at once where the page would stay empty.

    Raises:
        KubeError: the API server can't be reached, or does not let us list nodes and pods.
    """
    for resource in ("nodes", "pods"):
        try:
            kube.request("GET", f"/api/v1/{resource}", query=(("limit", "1"),))
        except Forbidden as e:
            hint = f"the page needs to list and watch {resource} of the whole cluster"
            raise Forbidden(f"{hint}: {e}", e.status) from e
