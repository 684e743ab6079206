"""The command line. Heavy imports wait until a command needs them: `run` must register quickly."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from hami_node import __version__, logs
from hami_node.cli.certify import certify
from hami_node.cli.check_config import check_config
from hami_node.cli.commands import HELP, Commands, ExitCode
from hami_node.cli.install_limiter import install_limiter
from hami_node.cli.migrate import migrate
from hami_node.cli.options import IGNORED_KEY, SettingsCommand, options_of
from hami_node.cli.people import PEOPLE, as_of, inspect
from hami_node.cli.programs import Programs
from hami_node.cli.verify import verify
from hami_node.cli.view import view
from hami_node.config.settings import Settings
from hami_node.config.sources import ConfigSources, resolve
from hami_node.errors import ConfigError, HamiError, KubeError
from hami_node.setting_types import Role
from hami_node.vendors.registry import SETTINGS_BLOCKS

log: Final = logging.getLogger(__name__)


@click.group(
    "hami-node",
    cls=Commands,
    context_settings=HELP,
)
@click.version_option(__version__, "--version", prog_name="hami-node")
def main() -> None:
    """Share GPUs and AWS Neuron devices between the containers of a Kubernetes cluster.

    \b
    See it work, without a cluster or a GPU:   hami-node demo
    Serve the cards of this node:              hami-node run --config-file device-config.yaml
    Decide which pod gets which slice:         hami-node extender
    Make the extender's certificate:           hami-node certify
    See cards and pods, granted and used:      hami-node top -A
    See which pod holds which slice:           hami-node pods -A
    See why a pod waits:                       hami-node why NAMESPACE/POD
    See all that as a page in the browser:     hami-node view
    Check a configuration:                     hami-node check-config device-config.yaml
    Check an installation:                     hami-node verify
    Put the limiter on this node:              hami-node install-limiter --from DIR
    Move from HAMi or NVIDIA's plugin:         hami-node migrate plan

    \b
    Exit codes: 0 success; 1 a check failed or settings were refused; 2 wrong usage;
    3 the API server can't be reached or refuses; 130 interrupted by Ctrl-C.
    """


def _run(
    config_file: Path | None,
    node_config_file: Path | None,
    kubelet_socket: Path | None,
    **given: str | None,
) -> None:
    """Serve the cards of this node to kubelet and the scheduler, until SIGTERM.

    \b
    NODE_NAME=node-1 hami-node run --config-file /config/device-config.yaml
    hami-node run --node-name node-1 --kubeconfig /root/.kube/config --limiter optional
    hami-node run --node-name node-1 --backend simulated --simulated-file /etc/cards.yaml

    \b
    A setting comes from the first of these that sets it:
      1. a flag
      2. an environment variable: HAMI_NODE_..., or HAMi's own name
      3. this node's entry in config.json
      4. device-config.yaml (section nvidia:, awsneuron:, or hami-node: with the flags' names)
      5. the default
    Both files are watched; a change takes effect without a restart.

    HAMi's flags are accepted in HAMi's spelling; those without effect here are logged once.
    """
    context = click.get_current_context()
    programs = context.ensure_object(Programs)
    if kubelet_socket is not None and given.get("plugin_dir") is None:
        given["plugin_dir"] = str(kubelet_socket.parent)
    sources = ConfigSources(
        blocks=SETTINGS_BLOCKS,
        flags={name: text for name, text in given.items() if text is not None},
        env=programs.env(),
        config_file=config_file,
        node_config_file=node_config_file,
        ignored_flags=tuple(context.meta.get(IGNORED_KEY, ())),
    )
    settings = _loaded(sources)
    context.exit(_served(programs.run_daemon, settings, sources))


def _loaded(sources: ConfigSources) -> Settings:
    """The settings, with logging set up; names everything that is wrong with them, and exits."""
    found = resolve(sources)
    if found.errors:
        logs.configure(logs.LogFormat.KV, logs.LogLevel.INFO)
        raise _refused(*found.errors)
    logs.configure(found.settings.log_format, found.settings.log_level)
    return found.settings


def _served(
    program: Callable[[Settings, ConfigSources], int], settings: Settings, sources: ConfigSources
) -> int:
    """Run a program that logs: the error that ends it goes to its log, where users look for it."""
    try:
        return program(settings, sources)
    except ConfigError as e:
        raise _refused(e) from e
    except HamiError as e:
        log.error("failed", extra=logs.kv(error=str(e)))  # noqa: TRY400 - a trace would not add anything
        code = ExitCode.NO_API if isinstance(e, KubeError) else ExitCode.FAILED
        raise click.exceptions.Exit(code) from e


def _refused(*errors: ConfigError) -> click.exceptions.Exit:
    for error in errors:
        fields = logs.kv(source=error.source, field=error.field, value=error.value, hint=error.hint)
        log.error("settings_refused", extra=fields)
    return click.exceptions.Exit(ExitCode.FAILED)


main.add_command(
    SettingsCommand(
        "run",
        callback=_run,
        params=options_of(Role.DAEMON, SETTINGS_BLOCKS),
        help=_run.__doc__,
        short_help="Serve the cards of this node.",
    )
)


def _extend(config_file: Path | None, **given: str | None) -> None:
    """Decide which pod gets which slice: kube-scheduler's extender, and the webhook.

    \b
    KUBECONFIG=~/.kube/config hami-node extender --http-bind 127.0.0.1:9080 \\
        --config-file device-config.yaml
    hami-node extender --http-bind :8443 --cert-file tls.crt --key-file tls.key --leader-elect

    \b
    Serves POST /filter, /bind and /webhook, GET /healthz, /readyz, /metrics and /version.
    A setting comes from a flag, else from the environment (HAMI_NODE_...), else from
    device-config.yaml, else it has its default.

    Flags of HAMi's scheduler are accepted in HAMi's spelling; those without effect here are logged
    once.
    """
    context = click.get_current_context()
    programs = context.ensure_object(Programs)
    sources = ConfigSources(
        blocks=SETTINGS_BLOCKS,
        flags={name: text for name, text in given.items() if text is not None},
        env=programs.env(),
        config_file=config_file,
        ignored_flags=tuple(context.meta.get(IGNORED_KEY, ())),
        role=Role.EXTENDER,
    )
    settings = _loaded(sources)
    context.exit(_served(programs.run_extender, settings, sources))


main.add_command(
    SettingsCommand(
        "extender",
        callback=_extend,
        params=options_of(Role.EXTENDER, SETTINGS_BLOCKS),
        help=_extend.__doc__,
        short_help="Schedule: kube-scheduler's extender and the webhook.",
    )
)


for _command in (
    *(as_of("hami-node", each) for each in PEOPLE),
    *(inspect, view, verify, migrate, certify, install_limiter, check_config),
):
    main.add_command(_command)


@main.command(short_help="Show daemon and extender at work on simulated cards.")
@click.option("--keep", is_flag=True, help="Leave everything running for curl and inspect.")
@click.pass_obj
def demo(programs: Programs, *, keep: bool) -> None:
    """Show daemon and extender at work on simulated cards: no cluster and no GPU needed.

    \b
    hami-node demo
    hami-node demo --keep

    The real daemon and extender run as separate processes against an embedded kubelet and API
    server; pods are created unscheduled, and a simulated kube-scheduler calls the extender.
    Exit code 0 only if every step passed its checks; 130 if Ctrl-C interrupted it. With --keep
    Ctrl-C is the usual end. Nothing is left behind in any case.
    """
    click.get_current_context().exit(programs.run_demo(keep))
