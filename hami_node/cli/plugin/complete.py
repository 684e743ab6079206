"""Completion of `kubectl hami ...`: kubectl starts it, and takes a name a line.

It ends within two seconds, says nothing when it fails, and asks for names only.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import click
from click.shell_completion import ShellComplete

from hami_node.cli.options import access_of
from hami_node.cluster.access import Access

SCRIPT: Final = """\
#!/bin/sh
# kubectl 1.26 and later start this to complete `kubectl hami ...`.
exec kubectl-hami __complete "$@"
"""
LIMIT_S: Final = 2.0
MOST: Final = 500
"""Names that are asked for."""
FILES, NO_FILES = ":0", ":4"
"""What kubectl's shells do besides: offer files, or not."""

Names = Callable[[Access, str, str], Sequence[str]]
"""The names of a resource in a namespace."""
Answer = tuple[list[str], str]
"""Candidates, and what kubectl should do besides."""


@dataclass(frozen=True, slots=True)
class _Asking:
    """How the names in a cluster are found out."""

    env: Mapping[str, str]
    names: Names


def complete(
    group: click.Group, args: Sequence[str], env: Mapping[str, str], names: Names
) -> Answer:
    """Candidates for the last of these words."""
    *before, word = args or [""]
    if before and not before[0].startswith("-") and before[0] not in group.commands:
        return [], NO_FILES  # no command of ours
    shell = ShellComplete(group, {"obj": _Asking(env, names)}, "kubectl hami", "")
    found = shell.get_completions(before, word)
    if any(one.type in ("file", "dir") for one in found):
        return [], FILES
    flag, equals, _ = word.partition("=")
    head = f"{flag}=" if equals and flag.startswith("--") else ""
    return [f"{head}{one.value}" for one in found], NO_FILES


def candidates(what: str, ctx: click.Context, word: str) -> list[str]:
    """Names for a word: of nodes, namespaces, contexts, pods; for `why` of pods with namespace."""
    asking, given = ctx.find_object(_Asking), ctx.params
    if asking is None:
        return []
    access = access_of(
        asking.env,
        given.get("kubeconfig"),
        given.get("context") or "",
        given.get("as_user") or "",
        given.get("as_groups") or (),
    )
    if what == "contexts":
        from hami_node.cluster.transport.kubeconfig import read_kubeconfigs

        found: Sequence[str] = tuple(read_kubeconfigs(access.kubeconfigs).contexts)
    elif what in ("nodes", "namespaces"):
        found = asking.names(access, what, "")
    elif what == "keys" and "/" in word:
        namespace = word.partition("/")[0]
        found = [f"{namespace}/{name}" for name in asking.names(access, "pods", namespace)]
    else:
        from hami_node.cli.plugin.look import namespace_of

        found = asking.names(access, "pods", given.get("namespace") or namespace_of(access))
    return [name for name in found if name.startswith(word)]


def names_of(access: Access, resource: str, namespace: str) -> Sequence[str]:
    """Names from the API server."""
    from hami_node.clock import Deadline, SystemClock
    from hami_node.cluster.client import connect

    clock = SystemClock()
    kube = connect(access, component="completion", clock=clock)
    kube = kube.within(Deadline.after(LIMIT_S, clock.monotonic))
    return kube.names_of(resource, namespace, MOST)


def run(
    group: click.Group,
    args: Sequence[str],
    env: Mapping[str, str],
    names: Names = names_of,
) -> None:
    """Print the candidates; whatever fails or takes too long has none."""
    answers: list[Answer] = []

    def work() -> None:
        try:
            answers.append(complete(group, args, env, names))
        except Exception:  # noqa: BLE001 - a shell that completes shows no errors
            answers.append(([], NO_FILES))

    # a program that issues credentials may hang, which nothing but our end stops
    worker = threading.Thread(target=work, name="completion", daemon=True)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    worker.start()
    worker.join(LIMIT_S)
    found, more = answers[0] if answers else ([], NO_FILES)
    sys.stdout.write("\n".join((*(name for name in found if name.isprintable()), more)) + "\n")
    sys.stdout.flush()
