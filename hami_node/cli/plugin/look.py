"""What people's commands look at, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from hami_node.cli import snapshots
from hami_node.cli.options import access_of
from hami_node.cli.show.documents import text_of
from hami_node.cli.show.screen import Screen, screen_of
from hami_node.cli.snapshots import Snapshot
from hami_node.cluster.transport.kubeconfig import read_kubeconfigs
from hami_node.config.settings import Settings
from hami_node.errors import Forbidden

if TYPE_CHECKING:
    from hami_node.cli.programs import Programs
    from hami_node.cluster.access import Access
    from hami_node.cluster.client import KubeClient

_OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Shows = Callable[[Snapshot, "KubeClient | None", Screen], object]
"""Prints a snapshot; or returns what JSON and YAML have of it, where these are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the flags of a command say."""

    programs: Programs
    access: Access
    namespace: str
    is_all: bool
    selector: str
    files: Sequence[IO[bytes]]
    output: str
    config_file: Path | None
    daemon_namespace: str
    resource_name: str | None
    has_own_namespace: bool

    @classmethod
    def of(
        cls,
        programs: Programs,
        **given: Any,  # noqa: ANN401 - options
    ) -> Look:
        """Read the options.

        Raises:
            ConfigError: the kubeconfig is broken.
            click.UsageError: flags that contradict each other.
        """
        reach = ("kubeconfig", "context", "as_user", "as_groups")
        access = access_of(programs.env(), **{name: given[name] for name in reach})
        files, is_all = given["files"], given.get("is_all", False)
        if is_all and given.get("namespace"):
            raise click.UsageError("use either -n or -A")
        namespace = given.get("namespace", "")
        if files and not namespace:
            is_all = True  # whose context it is says nothing about a file
        elif not is_all and not namespace:
            namespace = namespace_of(access)
        return cls(
            programs=programs,
            access=access,
            namespace=namespace,
            is_all=is_all,
            selector=given.get("selector", ""),
            files=files,
            output=given["output"],
            config_file=given["config_file"],
            daemon_namespace=given.get("daemon_namespace", ""),
            resource_name=given.get("resource_name"),
            has_own_namespace=bool(given.get("namespace")),
        )

    @property
    def is_wide(self) -> bool:
        """Nothing is left out."""
        return self.output == "wide"

    @property
    def is_document(self) -> bool:
        """JSON or YAML is wanted."""
        return self.output in ("json", "yaml")

    @property
    def where(self) -> str:
        """Which pods are looked for, as part of a sentence."""
        of = "of any namespace" if self.is_all else f"of namespace {self.namespace}"
        more = "" if self.is_all else " (-A: of all namespaces)"
        selected = f" with {self.selector}" if self.selector else ""
        return f"{of}{selected}{more}"

    def has_namespace(self, namespace: str) -> bool:
        """Whether pods of that namespace are looked for."""
        return self.is_all or namespace == self.namespace

    def show(
        self, shows: Shows, *, node_name: str | None = None, is_partial_enough: bool = False
    ) -> None:
        """Show it.

        Args:
            shows: prints a snapshot.
            node_name: the only node to look at; None for all.
            is_partial_enough: one namespace's pods are of use, where we may see no more.
        """
        env = self.programs.env()
        settings, problems = snapshots.settings_of(env, self.config_file, self.resource_name)
        kube = None if self.files else self.programs.connect(self.access)
        if kube is None:
            snapshot = snapshots.saved(self.files, node_name, settings, self.programs.now())
        elif node_name is not None:
            snapshot = snapshots.listed_of_node(kube, node_name, settings, self.programs.now())
        else:
            snapshot = self._listed(settings, kube, is_partial_enough=is_partial_enough)
        snapshot = replace(snapshot, problems=(*problems, *snapshot.problems))
        screen = screen_of(is_wide=self.is_wide)
        document = shows(snapshot, kube, screen)
        if self.is_document:
            click.echo(text_of(document, self.output), nl=False)

    def _listed(self, settings: Settings, kube: KubeClient, *, is_partial_enough: bool) -> Snapshot:
        """Everything; of a cluster whose other namespaces we may not see, what we may."""
        now_s = self.programs.now()
        try:
            return snapshots.listed(kube, settings, now_s)
        except Forbidden as error:
            if self.is_all or not is_partial_enough or error.status == 401:
                raise
            return snapshots.listed_in(kube, self.namespace, settings, now_s, error)


def namespace_of(access: Access) -> str:
    """The namespace that commands mean without -n, as kubectl has it.

    Raises:
        ConfigError: the kubeconfig is broken, or lacks the context.
    """
    if access.kubeconfigs:
        context = read_kubeconfigs(access.kubeconfigs).context(access.context)
        return context.namespace or "default"
    try:
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
    except (OSError, UnicodeDecodeError):
        return "default"
