"""Completion of `kubectl hami ...`: kubectl starts it, and takes a name a line.

It ends within two seconds, says nothing when it fails, and asks for names only.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

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


def complete(
    commands: Mapping[str, click.Command],
    args: Sequence[str],
    env: Mapping[str, str],
    names: Names,
) -> Answer:
    """Candidates for the last of these words."""
    *before, word = args or [""]
    command = next((commands[arg] for arg in before if arg in commands), None)
    if command is None and before and not before[0].startswith("-"):
        return [], NO_FILES  # no command of ours
    if command is None:
        return [name for name in commands if name.startswith(word)], NO_FILES
    options = {
        name: option
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
        for name in option.opts
    }
    return _Line(str(command.name), tuple(before), options, env, names).candidates(word)


@dataclass(frozen=True, slots=True)
class _Line:
    """A command with the words before the one that is completed."""

    command: str
    before: tuple[str, ...]
    options: Mapping[str, click.Option]
    env: Mapping[str, str]
    names: Names

    def candidates(self, word: str) -> Answer:
        flag, equals, value = word.partition("=")
        if equals and flag in self.options:
            found, more = self._values(self.options[flag], value)
            return [f"{flag}={text}" for text in found], more
        last = self.options.get(self.before[-1]) if self.before else None
        if last is not None and not last.is_flag:
            return self._values(last, word)
        if word.startswith("-"):
            return sorted(name for name in self.options if name.startswith(word)), NO_FILES
        return [name for name in self._arguments(word) if name.startswith(word)], NO_FILES

    def _values(self, option: click.Option, word: str) -> Answer:
        if isinstance(option.type, click.Path | click.File):
            return [], FILES
        found: Sequence[str] = ()
        if isinstance(option.type, click.Choice):
            found = [str(choice) for choice in option.type.choices]
        elif option.name in ("namespace", "daemon_namespace"):
            found = self.names(self._access(), "namespaces", "")
        elif option.name == "context":
            from hami_node.cluster.transport.kubeconfig import read_kubeconfigs

            found = tuple(read_kubeconfigs(self._access().kubeconfigs).contexts)
        return [text for text in found if text.startswith(word)], NO_FILES

    def _arguments(self, word: str) -> Sequence[str]:
        """Nodes or pods; for `why` pods with their namespace, once there is a slash."""
        if self.command == "top":
            return ("cards", "pods")
        if self.command == "nodes":
            return self.names(self._access(), "nodes", "")
        if self.command not in ("pods", "why"):
            return ()
        namespace, slash, _ = word.rpartition("/")
        if slash and self.command == "why":
            return [f"{namespace}/{name}" for name in self._pods(namespace)]
        from hami_node.cli.plugin.look import namespace_of

        return self._pods(self._given("namespace") or namespace_of(self._access()))

    def _pods(self, namespace: str) -> Sequence[str]:
        return self.names(self._access(), "pods", namespace)

    def _given(self, name: str) -> str:
        """What an option was given so far; "" for nothing."""
        words = iter(self.before)
        for word in words:
            flag, equals, value = word.partition("=")
            option = self.options.get(flag)
            if option is not None and option.name == name:
                return value if equals else next(words, "")
        return ""

    def _access(self) -> Access:
        file = self._given("kubeconfig")
        access = access_of(self.env, Path(file) if file else None, self._given("context"))
        return replace(access, as_user=self._given("as_user"))


def names_of(access: Access, resource: str, namespace: str) -> Sequence[str]:
    """Names from the API server."""
    from hami_node.clock import Deadline, SystemClock
    from hami_node.cluster.client import connect

    clock = SystemClock()
    kube = connect(access, component="completion", clock=clock)
    kube = kube.within(Deadline.after(LIMIT_S, clock.monotonic))
    return kube.names_of(resource, namespace, MOST)


def run(
    commands: Mapping[str, click.Command],
    args: Sequence[str],
    env: Mapping[str, str],
    names: Names = names_of,
) -> None:
    """Print the candidates; whatever fails or takes too long has none."""
    answers: list[Answer] = []

    def work() -> None:
        try:
            answers.append(complete(commands, args, env, names))
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
