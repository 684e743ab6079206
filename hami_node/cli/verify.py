"""The command `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from hami_node.cli.commands import ExitCode
from hami_node.cli.options import access_of, output_option, reach_options
from hami_node.cli.programs import Programs
from hami_node.vendors.registry import VENDORS

if TYPE_CHECKING:
    from hami_node.cli.show.screen import Styled as StyledText
    from hami_node.cluster.reading import BoundedApi
    from hami_node.verify.checks.subject import Subject
    from hami_node.verify.findings import Finding
    from hami_node.verify.probe import ProbeOrder

_STYLES: Final = {"ok": "green", "warn": "yellow", "wrong": "red", "skip": "dim"}
_OWN_IMAGE: Final = "own"


@click.command(short_help="Check an installation: every part, the nodes, and with a probe.")
@click.option("--namespace", "-n", default="hami-system", show_default=True, metavar="NAME")
@click.option("--node", "node_name", metavar="NAME", help="Look at this node only.")
@click.option(
    "--probe",
    "probe_image",
    is_flag=False,
    flag_value=_OWN_IMAGE,
    metavar="[IMAGE]",
    help="Also create a pod with one slice, of this image or of our own, and remove it.",
)
@click.option(
    "--probe-namespace",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Where that pod is created: a namespace in which the webhook is called.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(5, 600),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="For all checks together; the probe has as much again.",
)
@output_option("table", "json")
@reach_options
@click.pass_obj
def verify(
    programs: Programs,
    /,
    *,
    node_name: str | None,
    probe_image: str | None,
    timeout_s: float,
    output: str,
    namespace: str,
    probe_namespace: str,
    **reach: Any,  # noqa: ANN401 - options
) -> None:
    """Check an installation from outside: all parts, certificate, webhook, policies, every node.

    Reads only, but for --probe. What may not be read with these rights is "not checked", and no
    failure. The table has the causes first; below it is what to do first.

    \b
    hami-node verify
    hami-node verify --namespace gpu --node gpu-node-1
    hami-node verify --probe
    hami-node verify --probe=registry.example/cuda:12 --probe-namespace ml -o json

    \b
    Exit codes: 0 nothing is wrong; 1 something is; 3 the API server failed meanwhile, or nothing
    could be checked.
    """
    from hami_node.clock import Deadline, SystemClock
    from hami_node.cluster.reading import Reader
    from hami_node.verify.verify import check_all, read_subject

    deadline = Deadline.after(timeout_s, SystemClock().monotonic)
    api = programs.connect(access_of(programs.env(), **reach))
    subject = read_subject(
        Reader(api, deadline),
        namespace,
        VENDORS,
        node_name=node_name,
        now_s=programs.now(),
    )
    findings, code = list(check_all(subject)), None
    if probe_image is not None:
        order = _order(probe_image, probe_namespace, node_name or "")
        probed, code = _probed(subject, order, api, timeout_s)
        findings += probed
    _show(findings, output)
    click.get_current_context().exit(_code_of(findings) if code is None else code)


def _order(image: str, namespace: str, node: str) -> ProbeOrder:
    """The pod that is tried, under a name that no other has."""
    import secrets

    from hami_node.verify.probe import ProbeOrder

    return ProbeOrder(
        name=f"hami-node-probe-{secrets.token_hex(4)}",
        namespace=namespace,
        image="" if image == _OWN_IMAGE else image,
        node=node,
    )


def _probed(
    subject: Subject, order: ProbeOrder, api: BoundedApi, timeout_s: float
) -> tuple[Sequence[Finding], int | None]:
    """What the probe found; the exit code if a signal ended it, after the pod was removed."""
    from hami_node.clock import Deadline, SystemClock
    from hami_node.signals import END_SIGNALS, SignalThread
    from hami_node.verify.probe import probe

    limit, taken = Deadline.after(timeout_s, SystemClock().monotonic), list[int]()

    def end(number: int) -> None:
        taken.append(number)
        limit.stop.set()

    signals = SignalThread(*END_SIGNALS)
    signals.start({number: partial(end, number) for number in END_SIGNALS})
    try:
        found = tuple(probe(subject, order, api, limit))
    finally:
        signals.hand_back()
    return found, ExitCode.SIGNALLED + taken[-1] if taken else None


def _code_of(findings: Sequence[Finding]) -> ExitCode:
    from hami_node.verify.findings import State

    if any(one.state is State.WRONG for one in findings):
        return ExitCode.FAILED
    is_blind = not any(one.state in (State.OK, State.WARNING) for one in findings)
    is_outage = any(one.is_outage for one in findings)
    return ExitCode.NO_API if is_outage or is_blind else ExitCode.OK


def _show(findings: Sequence[Finding], output: str) -> None:
    if output == "json":
        from hami_node.cli.show.documents import print_json

        is_ok = _code_of(findings) is ExitCode.OK
        print_json({"ok": is_ok, "findings": [asdict(one) for one in findings]})
        return
    from hami_node.cli.show.screen import Styled, Table, heads, screen_of

    screen = screen_of()
    columns = heads("check | state | found ...")
    rows = [
        (one.check, Styled(str(one.state), _STYLES[one.state]), Styled(one.what, _tone(one)))
        for one in findings
    ]
    screen.table(Table("", columns, rows))
    first = next((one for one in findings if one.state == "wrong"), None)
    if first is None:
        screen.line(_without_wrong(findings))
        return
    screen.line(Styled("do this first:", "bold"))
    screen.line(first.remedy, 2)
    more = sum(one.state == "wrong" for one in findings) - 1
    if more:
        screen.line(
            f"then run it again: {more} more may have the same cause; -o json has all cures"
        )


def _without_wrong(findings: Sequence[Finding]) -> StyledText:
    """The last line; what could not be checked is no good news."""
    from hami_node.cli.show.screen import Styled

    skipped = sum(one.state == "skip" for one in findings)
    if not any(one.state in ("ok", "warn") for one in findings):
        return Styled("nothing could be checked", "yellow")
    odd = skipped + sum(one.state == "warn" for one in findings)
    text = "nothing wrong was found" if skipped else "nothing is wrong"
    return Styled(text + (f"; {odd} to look at" if odd else ""), "yellow" if skipped else "green")


def _tone(finding: Finding) -> str:
    return "red" if finding.state == "wrong" else ""
