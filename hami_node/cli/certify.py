"""The command `certify`."""

from __future__ import annotations

from pathlib import Path

import click

from hami_node.cli.options import access_of, kubeconfig_option
from hami_node.cli.programs import Programs


@click.command(short_help="Make the certificates of the extender and its caller.")
@click.option(
    "--service",
    "services",
    multiple=True,
    default=("hami-node-leader", "hami-node-webhook"),
    show_default=True,
    metavar="NAME",
    help="A Service that the server's certificate names; may be repeated.",
)
@click.option("--namespace", default="hami-system", show_default=True, metavar="NAME")
@click.option(
    "--secret",
    default="hami-node-extender-tls",
    show_default=True,
    metavar="NAME",
    help="The Secret for the server's tls.crt, tls.key and ca.crt.",
)
@click.option(
    "--client",
    default="hami-node-scheduler",
    show_default=True,
    metavar="NAME",
    help="Whom the client's certificate names: the extender's --client-name.",
)
@click.option(
    "--client-secret",
    default="hami-node-scheduler-client-tls",
    show_default=True,
    metavar="NAME",
    help="The Secret for kube-scheduler's tls.crt, tls.key and ca.crt.",
)
@click.option(
    "--authority-secret",
    default="hami-node-authority",
    show_default=True,
    metavar="NAME",
    help="The Secret of the authority that signs both; nobody else needs to read it.",
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
@kubeconfig_option
@click.pass_obj
def certify(
    programs: Programs,
    /,
    *,
    services: tuple[str, ...],
    days: int,
    dry_run: bool,
    kubeconfig: Path | None,
    **given: str,
) -> None:
    """Make the certificates of the extender and of kube-scheduler, or keep the existing ones.

    Keeps what is correct and valid for 30 more days, and renews the rest. A renewed certificate is
    trusted by who trusted the one before: nothing has to be restarted. It may be run repeatedly; a
    Job of the manifests runs it.

    \b
    hami-node certify
    hami-node certify --namespace gpu --dry-run
    """
    from hami_node.extender.http.certificate_secret import CertificateSecret, Target
    from hami_node.extender.http.certificate_secret import certify as write
    from hami_node.extender.http.certify import Subject, service_names

    namespace, client = given["namespace"], given["client"]
    names = tuple(name for service in services for name in service_names(service, namespace))
    target = Target(
        namespace=namespace,
        authority_secret=given["authority_secret"],
        holders=(
            CertificateSecret(
                secret=given["client_secret"], subject=Subject(names=(client,), is_client=True)
            ),
            CertificateSecret(secret=given["secret"], subject=Subject(names=names)),
        ),
        webhook=given["webhook"],
        days=days,
    )
    api = programs.connect(access_of(programs.env(), kubeconfig))
    for line in write(api, target, programs.now(), is_dry_run=dry_run):
        click.echo(line)
