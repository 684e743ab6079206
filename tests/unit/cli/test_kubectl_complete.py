from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from hami_node.cli.kubectl import main
from hami_node.cli.plugin.complete import FILES, NO_FILES, complete
from hami_node.cluster.access import Access

OBJECTS = {
    ("nodes", ""): ("gpu-1", "gpu-2", "cpu-1"),
    ("namespaces", ""): ("ml", "web"),
    ("pods", "default"): ("train-0", "train-1"),
    ("pods", "ml"): ("big",),
}


class Names:
    def __init__(self) -> None:
        self.accesses: list[Access] = []

    def __call__(self, access: Access, resource: str, namespace: str) -> Sequence[str]:
        self.accesses.append(access)
        return OBJECTS.get((resource, namespace), ())


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("no", ["nodes"]),
        ("nodes gpu", ["gpu-1", "gpu-2"]),
        ("nodes --kubeconfig x gpu-2", ["gpu-2"]),
        ("pods tr", ["train-0", "train-1"]),
        ("pods -n ml ", ["big"]),
        ("pods --namespace=ml ", ["big"]),
        ("pods -n m", ["ml"]),
        ("pods --namespace=w", ["--namespace=web"]),
        ("why train-1", ["train-1"]),
        ("why ml/", ["ml/big"]),
        ("pods ml/", []),
        ("top ", ["cards", "pods"]),
        ("pods -o j", ["json"]),
        ("pods --all", ["--all-namespaces"]),
        ("completion ", []),
        ("walk ", []),
    ],
)
def test_last_word_is_completed(line: str, found: list[str]) -> None:
    words = line.split(" ")
    assert complete(main, words, {"HOME": "/none"}, Names()) == (found, NO_FILES)


def test_nothing_is_completed_with_the_commands() -> None:
    found, _ = complete(main, [], {}, Names())
    assert found[:4] == ["top", "nodes", "pods", "why"]


@pytest.mark.parametrize("line", ["nodes -f ", "pods --kubeconfig ", "nodes --filename=x"])
def test_files_are_left_to_the_shell(line: str) -> None:
    assert complete(main, line.split(" "), {}, Names()) == ([], FILES)


def test_contexts_are_those_of_all_kubeconfigs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        context = {"name": f"to-{name}", "context": {"cluster": "k"}}
        (tmp_path / name).write_text(json.dumps({"contexts": [context]}))
    env = {"KUBECONFIG": f"{tmp_path / 'a'}:{tmp_path / 'b'}"}
    assert complete(main, ["nodes", "--context", ""], env, Names())[0] == ["to-a", "to-b"]


def test_names_are_those_of_the_named_cluster() -> None:
    names = Names()
    complete(main, ["nodes", "--kubeconfig", "/k", "--context=c", "--as", "jane", "g"], {}, names)
    assert names.accesses == [Access(kubeconfigs=(Path("/k"),), context="c", as_user="jane")]
