"""The command `certify`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from hami_node.cli.options import kubeconfig_of

if TYPE_CHECKING:
    from hami_node.extender.http.certificate_secret import Api


class _CertifyParts(Protocol):
    """What the command uses of `cli.Programs`."""

    @property
    def api(self) -> Callable[[Path | None], Api]:
        """Connects to the API server."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds since the epoch."""

    @property
    def env(self) -> Callable[[], Mapping[str, str]]:
        """The environment."""


@click.command(short_help="Make the extender's certificate and configure the webhook with it.")
@click.option("--service", default="hami-node-extender", show_default=True, metavar="NAME")
@click.option("--namespace", default="hami-system", show_default=True, metavar="NAME")
@click.option(
    "--secret",
    default="hami-node-extender-tls",
    show_default=True,
    metavar="NAME",
    help="The Secret for tls.crt, tls.key and ca.crt.",
)
@click.option(
    "--webhook",
    default="hami-node",
    show_default=True,
    metavar="NAME",
    help="The MutatingWebhookConfiguration that gets caBundle; an empty name leaves it out.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 36500),
    default=3650,
    show_default=True,
    help="How long a new certificate is valid.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and write nothing.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Default: $KUBECONFIG, then ~/.kube/config, then the pod's service account.",
)
@click.pass_obj
def certify(
    parts: _CertifyParts,
    *,
    service: str,
    namespace: str,
    secret: str,
    webhook: str,
    days: int,
    dry_run: bool,
    kubeconfig: Path | None,
) -> None:
    """Make the extender's certificate, or keep the existing certificate.

    Keeps a certificate that is correct and valid for 30 more days, else makes a new certificate
    with its own authority. Writes it into the Secret, and the authority into the webhook. It may be
    run repeatedly; a Job of the manifests runs it.

    \b
    hami-node certify
    hami-node certify --namespace gpu --dry-run
    """
    from hami_node.extender.http.certificate_secret import Target
    from hami_node.extender.http.certificate_secret import certify as write
    from hami_node.extender.http.certify import service_names

    target = Target(
        names=service_names(service, namespace),
        namespace=namespace,
        secret=secret,
        webhook=webhook,
        days=days,
    )
    api = parts.api(kubeconfig or kubeconfig_of(parts.env()))
    for line in write(api, target, parts.now(), is_dry_run=dry_run):
        click.echo(line)
