"""The options of `run` and `extender`, made from the declarations in `settings`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from hami_node.config import (
    CONFIG_FILE_ENV,
    DEFAULT_NODE_CONFIG,
    ENV_PREFIX,
    IGNORED_FLAGS,
    IGNORED_SCHEDULER_FLAGS,
    NODE_CONFIG_FILE_ENV,
    Settings,
    plain,
)
from hami_node.config_values import allowed
from hami_node.setting_types import Names
from hami_node.settings import GROUPS, Role, names_of, settings_of

IGNORED_KEY: Final = "hami_node.ignored_flags"
"""Where the flags without effect are gathered, in click's `meta`."""
_FILES: Final = "Files"
_REST: Final = "Help"


class SettingOption(click.Option):
    """The flag of one setting, with all its spellings. Its text is checked by `config`."""

    def __init__(self, name: str, names: Names) -> None:
        """Make the option from the setting's declaration."""
        self.setting = name
        own = name.replace("_", "-")
        default = plain(Settings())[own]
        is_switch = isinstance(default, bool)
        bare: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if is_switch else {}
        super().__init__(
            [name, *(f"--{flag}" for flag in dict.fromkeys((own, *names.flags)))],
            metavar="[true|false]" if is_switch else "VALUE",
            **bare,
        )
        self._names, self._default = names, default

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Make the help text only when somebody asks: `run` has no time for it."""
        self.help = _help_of(self.setting, self._names, self._default)
        return super().get_help_record(ctx)


def _help_of(name: str, names: Names, default: object) -> str:
    shown = ",".join(map(str, default)) if isinstance(default, list) else str(default)
    variables = ", ".join((ENV_PREFIX + name.upper(), *names.env))
    wanted = "" if default is None or shown == "" else f"Default {shown}. "
    return f"{names.doc} Takes {allowed(name)}. {wanted}[env {variables}]"


class SettingsCommand(click.Command):
    """A command whose help shows the settings in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the files, the groups in order of declaration, then what is left."""
        groups: dict[str, list[tuple[str, str]]] = {_FILES: []}
        title = _REST
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is None:
                continue
            if isinstance(option, SettingOption):
                title = GROUPS.get(option.setting, title)
            else:
                title = _FILES if "file" in str(option.name) else _REST
            groups.setdefault(title, []).append(record)
        for shown, records in groups.items():
            with formatter.section(shown):
                formatter.write_dl(records, col_max=34)


def options_of(role: Role) -> list[click.Parameter]:
    """All options of `run` or of `extender`."""
    every = names_of()
    settings = [SettingOption(name, every[name]) for name in settings_of(role)]
    files = [_config_option(), *(_node_options() if role is Role.DAEMON else ())]
    ignored = IGNORED_FLAGS if role is Role.DAEMON else IGNORED_SCHEDULER_FLAGS
    return [*settings, *files, *(_ignored_option(name) for name in ignored)]


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
            f"Default {DEFAULT_NODE_CONFIG}, if it is there. [env {NODE_CONFIG_FILE_ENV}]",
        ),
        click.Option(
            ["kubelet_socket", "--kubelet-socket"], type=click.Path(path_type=Path), hidden=True
        ),
    ]


def _ignored_option(name: str) -> click.Option:
    """An option of HAMi's that is taken and only named in the log."""
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


def kubeconfig_of(env: Mapping[str, str]) -> Path | None:
    """The kubeconfig that kubectl would use; None when there is none."""
    named = env.get("KUBECONFIG", "").split(":")[0]
    if named:
        return Path(named)
    usual = Path(env.get("HOME", "/root")) / ".kube" / "config"
    return usual if usual.is_file() else None
