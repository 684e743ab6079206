"""The options of `run` and `extender`, made from the declarations in `settings`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from hami_node.cluster.access import Access
from hami_node.config.settings import Declaration, declarations, plain_value, settings_of
from hami_node.config.sources import (
    CONFIG_FILE_ENV,
    DEFAULT_NODE_CONFIG,
    ENV_PREFIX,
    NODE_CONFIG_FILE_ENV,
    ignored_flags,
)
from hami_node.config.values import allowed
from hami_node.setting_types import Blocks, Role

IGNORED_KEY: Final = "hami_node.ignored_flags"
"""Where the flags without effect are collected, in click's `meta`."""
_FILES: Final = "Files"
_REST: Final = "Help"


class SettingOption(click.Option):
    """The flag of a setting, with all its spellings. Its text is checked by `config`."""

    def __init__(self, setting: Declaration, role: Role) -> None:
        """Make the option of this program from the setting's declaration."""
        self.setting, self._role = setting, role
        is_switch = isinstance(setting.default, bool)
        bare: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if is_switch else {}
        spellings = dict.fromkeys((setting.flag, *setting.names.flags))
        super().__init__(
            [setting.name, *(f"--{flag}" for flag in spellings)],
            metavar="[true|false]" if is_switch else "VALUE",
            **bare,
        )

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Make the help text only when it is shown: `run` must start quickly."""
        self.help = _help_of(self.setting, self._role)
        return super().get_help_record(ctx)


def _help_of(setting: Declaration, role: Role) -> str:
    default = plain_value(setting.default_of(role))
    shown = ",".join(map(str, default)) if isinstance(default, list) else str(default)
    variables = ", ".join((ENV_PREFIX + setting.name.upper(), *setting.names.env))
    wanted = "" if default is None or shown == "" else f"Default {shown}. "
    return f"{setting.names.doc} Takes {allowed(setting)}. {wanted}[env {variables}]"


class SettingsCommand(click.Command):
    """A command whose help shows the settings in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the files, the groups in order of declaration, then the other options."""
        groups: dict[str, list[tuple[str, str]]] = {_FILES: []}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is None:
                continue
            if isinstance(option, SettingOption):
                title = str(option.setting.group)
            else:
                title = _FILES if "file" in str(option.name) else _REST
            groups.setdefault(title, []).append(record)
        for shown, records in groups.items():
            with formatter.section(shown):
                formatter.write_dl(records, col_max=34)


def options_of(role: Role, blocks: Blocks) -> list[click.Parameter]:
    """All options of `run` or of `extender`."""
    every = declarations(blocks)
    settings = [SettingOption(every[name], role) for name in settings_of(role, blocks)]
    files = [_config_option(), *(_node_options() if role is Role.DAEMON else ())]
    ignored = [_ignored_option(name) for name in ignored_flags(role, blocks)]
    return [*settings, *files, *ignored]


def _config_option() -> click.Option:
    return click.Option(
        ["config_file", "--config-file", "--device-config-file"],
        metavar="FILE",
        type=click.Path(path_type=Path),
        help=f"HAMi's device-config.yaml. [env {CONFIG_FILE_ENV}]",
    )


def _node_options() -> list[click.Option]:
    return [
        click.Option(
            ["node_config_file", "--node-config-file"],
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="HAMi's config.json: settings of single nodes. "
            f"Default {DEFAULT_NODE_CONFIG}, if it exists. [env {NODE_CONFIG_FILE_ENV}]",
        ),
        click.Option(
            ["kubelet_socket", "--kubelet-socket"], type=click.Path(path_type=Path), hidden=True
        ),
    ]


def _ignored_option(name: str) -> click.Option:
    """An option of HAMi's that is accepted, has no effect and is logged."""
    return click.Option(
        [f"-{name}" if len(name) == 1 else f"--{name}"],
        hidden=True,
        is_flag=False,
        flag_value="true",
        expose_value=False,
        callback=_note_ignored,
    )


def _note_ignored(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta.setdefault(IGNORED_KEY, []).append(str(option.name).replace("_", "-"))


def kubeconfigs_of(env: Mapping[str, str]) -> tuple[Path, ...]:
    """The kubeconfigs that kubectl would use; () when there is none."""
    named = tuple(Path(name) for name in env.get("KUBECONFIG", "").split(os.pathsep) if name)
    if named:
        return named
    usual = Path(env.get("HOME", "/root")) / ".kube" / "config"
    return (usual,) if usual.is_file() else ()


def access_of(
    env: Mapping[str, str],
    kubeconfig: Path | None = None,
    context: str = "",
    as_user: str = "",
    as_groups: tuple[str, ...] = (),
) -> Access:
    """Access as flags and environment say it: a named kubeconfig is the only one."""
    files = kubeconfigs_of(env) if kubeconfig is None else (kubeconfig,)
    return Access(kubeconfigs=files, context=context, as_user=as_user, as_groups=as_groups)


# -- options that several commands have ------------------------------------------------------------
F = TypeVar("F", bound=Callable[..., object])
DOCUMENTS: Final = ("table", "wide", "json", "yaml")


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator."""

    def decorated(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def completed(what: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes a word with names from the cluster."""

    def find(ctx: click.Context, _: click.Parameter, word: str) -> list[str]:
        from hami_node.cli.plugin.complete import candidates

        return candidates(what, ctx, word)

    return find


def output_option(*forms: str) -> Callable[[F], F]:
    """-o with these forms, of which the first is the default."""
    return click.option(
        "-o", "--output", type=click.Choice(forms), default=forms[0], show_default=True
    )


kubeconfig_option: Final = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Default: the files of $KUBECONFIG, merged; then ~/.kube/config; then the pod's service "
    "account.",
)
context_option: Final = click.option(
    "--context",
    default="",
    metavar="NAME",
    help="A context of the kubeconfig.",
    shell_complete=completed("contexts"),
)
reach_options: Final = together(
    kubeconfig_option,
    context_option,
    click.option("--as", "as_user", default="", metavar="USER", help="Act as somebody else."),
    click.option("--as-group", "as_groups", multiple=True, metavar="GROUP", hidden=True),
)
config_file_option: Final = click.option(
    "--config-file",
    "--device-config-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="HAMi's device-config.yaml: names of resources, defaults and policies. [env CONFIG_FILE]",
)
files_option: Final = click.option(
    "-f",
    "--filename",
    "--file",
    "files",
    multiple=True,
    type=click.File("rb"),
    metavar="FILE",
    help="What `kubectl get nodes,pods,resourcequotas,events -A -o json` saved, in place of a "
    "cluster; - is standard input; may be repeated.",
)
namespace_option: Final = click.option(
    "-n",
    "--namespace",
    default="",
    metavar="NAME",
    help="Default: that of the context.",
    shell_complete=completed("namespaces"),
)
daemons_option: Final = click.option(
    "--daemon-namespace",
    default="hami-system",
    show_default=True,
    metavar="NAME",
    help="Where the daemons run that say what is used.",
    shell_complete=completed("namespaces"),
)
