"""The command line. Heavy imports wait until a command needs them: `run` must register quickly."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from hami_node import __version__, logs
from hami_node.cli.certify import certify
from hami_node.cli.check_config import check_config
from hami_node.cli.commands import HELP, Commands, ExitCode
from hami_node.cli.inspect import inspect
from hami_node.cli.install_limiter import install_limiter
from hami_node.cli.migrate import migrate
from hami_node.cli.options import IGNORED_KEY, SettingsCommand, options_of
from hami_node.cli.verify import verify
from hami_node.cli.view import view
from hami_node.config.settings import Settings
from hami_node.config.sources import ConfigSources, environment, resolve
from hami_node.errors import ConfigError, HamiError, KubeError
from hami_node.setting_types import Role
from hami_node.vendors.registry import SETTINGS_BLOCKS, VENDORS

if TYPE_CHECKING:
    from hami_node.cluster.access import Access
    from hami_node.cluster.client import KubeClient
    from hami_node.extender.http.certificate_secret import Api
    from hami_node.migrate.seen.reading import PlainKube
    from hami_node.verify.probe import BoundedApi

log: Final = logging.getLogger(__name__)


def _run_daemon(settings: Settings, sources: ConfigSources) -> int:
    from hami_node.node.daemon import run_daemon

    return run_daemon(settings, sources, VENDORS)


def _run_extender(settings: Settings, sources: ConfigSources) -> int:
    from hami_node.extender.service import run_extender

    return run_extender(settings, sources, VENDORS)


def _run_demo(keep: bool) -> int:
    from hami_node.cli.extras import EXTENDER, need
    from hami_node.signals import END_SIGNALS, SignalThread

    ends = (*END_SIGNALS, signal.SIGHUP)
    signals = SignalThread(*ends)  # before the slow imports: an interruption is never lost
    need(EXTENDER)  # it starts one, as a program of its own
    from hami_node.demo.demo import run
    from hami_node.demo.stage import Stage

    stop, taken = threading.Event(), list[int]()

    def end(number: int) -> None:
        taken.append(number)
        stop.set()

    signals.start({number: partial(end, number) for number in ends})
    code = run(Stage(VENDORS, stop=stop), keep=keep)
    return ExitCode.SIGNALLED + taken[-1] if stop.is_set() else code


def _connect(access: Access | Path | None) -> KubeClient:
    from hami_node.clock import SystemClock
    from hami_node.cluster.client import connect

    return connect(access, component="command", clock=SystemClock()).with_retries()


def _now() -> float:
    from hami_node.clock import SystemClock

    return SystemClock().now()


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What the commands call, loaded when called; tests pass their own as click's `obj`."""

    run_daemon: Callable[[Settings, ConfigSources], int] = _run_daemon
    run_extender: Callable[[Settings, ConfigSources], int] = _run_extender
    run_demo: Callable[[bool], int] = _run_demo
    connect: Callable[[Access], KubeClient] = _connect
    api: Callable[[Path | None], Api] = _connect
    plain: Callable[[Access], PlainKube] = _connect
    bounded: Callable[[Access], BoundedApi] = _connect
    now: Callable[[], float] = _now
    env: Callable[[], Mapping[str, str]] = environment


class _Commands(Commands):
    """The commands of `hami-node`."""

    make_parts = Programs


@click.group(
    cls=_Commands,
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
    See which pod holds which slice:           hami-node inspect
    See why a pod waits:                       hami-node inspect pod NAMESPACE/NAME
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


main.add_command(certify)


main.add_command(inspect)


main.add_command(install_limiter)


main.add_command(verify)


main.add_command(migrate)


main.add_command(view)


main.add_command(check_config)


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
