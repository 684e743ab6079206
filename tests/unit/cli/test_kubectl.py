"""The commands of `kubectl hami`, without a process of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from hami_node.cli.kubectl import _command_first, called_as, main
from hami_node.cli.main import main as hami_node
from hami_node.cli.programs import Programs
from hami_node.cluster.access import Access
from hami_node.cluster.client import KubeClient
from hami_node.errors import Forbidden, KubeError
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.listing import Listing
from tests.fakes.saved_cluster import (
    GPU,
    NOW_S,
    card_json,
    card_node_json,
    pending_json,
    pod_json,
    saved,
)

HELD = {nvidia_names.POD_ALLOCATED: f"{GPU},NVIDIA,4096,30:;", nvidia_names.POD_TO_ALLOCATE: ";"}
SICK = "GPU-22222222-2222-3333-4444-555555555555"
PROXY = Forbidden("can't get pods/proxy: forbidden", 403)


def labelled(item: dict[str, Any], **labels: str) -> dict[str, Any]:
    item["metadata"]["labels"] = labels
    return item


def of(item: dict[str, Any], namespace: str) -> dict[str, Any]:
    item["metadata"]["namespace"] = namespace
    return item


def cluster() -> tuple[dict[str, Any], ...]:
    sick = card_node_json("n2", card_json(SICK, health=False))
    sick["metadata"]["annotations"][names.NODE_CLOSED_CARDS] = json.dumps(  # type: ignore[index]
        {SICK: "XID 79: it fell off the bus"}
    )
    return (
        labelled(card_node_json("n1", card_json(GPU)), pool="a"),
        labelled(sick, pool="b"),
        labelled(pod_json("held", HELD), app="train"),
        of(pod_json("other", HELD), "ml"),
        pending_json("big", gpu=1, gpumem=50000),
    )


def call(
    *args: str,
    kube: Listing | None = None,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
    accesses: list[Access] | None = None,
) -> Result:
    def connect(access: Access) -> KubeClient:
        if accesses is not None:
            accesses.append(access)
        return kube or Listing(*cluster())

    parts = Programs(connect=connect, now=lambda: NOW_S, env=lambda: env or {"HOME": "/none"})
    return CliRunner().invoke(main, args, obj=parts, input=stdin)


@pytest.mark.parametrize(
    "args",
    [
        ("top", "-A", "-o", "json"),
        ("nodes", "n1"),
        ("nodes", "n7"),
        ("pods", "-A", "-o", "yaml"),
        ("pods", "-A", "-n", "x"),
        ("why", "default/big"),
    ],
    ids=" ".join,
)
def test_hami_node_has_the_same_commands(args: tuple[str, ...]) -> None:
    kube = Listing(*cluster())
    programs = Programs(connect=lambda _: kube, now=lambda: NOW_S, env=lambda: {"HOME": "/none"})
    other, done = CliRunner().invoke(hami_node, args, obj=programs), call(*args, kube=kube)
    assert (other.exit_code, other.stdout) == (done.exit_code, done.stdout)
    assert other.stderr.splitlines()[-1:] == done.stderr.splitlines()[-1:]


def text_of(done: Result) -> str:
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("command", ["top", "nodes", "pods", "why", "completion"])
def test_help_explains_with_examples(command: str) -> None:
    done = call(command, "--help")
    assert done.exit_code == 0
    assert f"kubectl hami {command}" in done.output


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/usr/bin/kubectl-hami", "kubectl hami"),
        ("kubectl-hami", "kubectl hami"),
        ("/x/kubectl.py", "kubectl hami"),
        ("kubectl-my_gpus-top", "kubectl my-gpus top"),
    ],
)
def test_help_says_what_kubectl_was_asked_for(program: str, said: str) -> None:
    assert called_as(program) == said


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("pods -n ml", "pods -n ml"),
        ("-n ml pods", "pods -n ml"),
        ("-A --context c pods x", "pods -A --context c x"),
        ("--context=c nodes", "nodes --context=c"),
        ("-h", "-h"),
        ("-A", "-A"),
        ("-n", "-n"),
        ("", ""),
    ],
)
def test_flags_may_stand_before_the_command(typed: str, meant: str) -> None:
    assert _command_first(typed.split()) == meant.split()


def test_nodes_have_a_line_each_with_what_is_wrong() -> None:
    text = text_of(call("nodes"))
    assert "n1 1 2/10 8192/40960 60/100" in text
    assert "n2 1 0/10 0/40960 0/100" in text
    assert "card 0 is unhealthy: XID 79: it fell off the bus" in text
    assert text.count("XID 79") == 1
    assert "total: 2 cards of 2 nodes" in text


def test_unhealthy_card_of_a_silent_node_is_shown_too() -> None:
    silent = card_node_json("n1", card_json(SICK, health=False))
    assert "card 0 is unhealthy" in text_of(call("nodes", kube=Listing(silent)))
    assert "its node does not say why" in text_of(call("nodes", "n1", kube=Listing(silent)))


def test_named_nodes_have_their_cards_and_holders() -> None:
    text = text_of(call("nodes", "n1"))
    assert f"n1 0 NVIDIA-NVIDIA A100 {GPU} ok 2/10" in text
    assert "default held main n1" in text
    assert "n2" not in text


def test_absent_node_is_named() -> None:
    done = call("nodes", "n1", "n7")
    assert (done.exit_code, done.stderr) == (1, "error: node n7 does not exist\n")


@pytest.mark.parametrize(
    ("selector", "shown"), [("pool=a", {"n1"}), ("pool in (a,b)", {"n1", "n2"}), ("!pool", set())]
)
def test_nodes_are_selected_by_labels(selector: str, shown: set[str]) -> None:
    found = json.loads(call("nodes", "-l", selector, "-o", "json").stdout)
    assert {node["name"] for node in found["nodes"]} == shown
    assert {card["node"] for card in found["cards"]} == shown


def test_pods_are_those_of_a_namespace_or_all() -> None:
    assert "default held" in text_of(call("pods"))
    assert "ml other" not in text_of(call("pods"))
    assert "default/big" in text_of(call("pods"))
    everywhere = text_of(call("pods", "-A"))
    assert "default held" in everywhere
    assert "ml other" in everywhere
    assert text_of(call("pods", "-n", "web")) == (
        "no pod of namespace web (-A: of all namespaces) holds a slice or waits for one"
    )


def test_pods_are_selected_by_labels_and_names() -> None:
    assert "big" not in text_of(call("pods", "-l", "app=train"))
    assert "held" not in text_of(call("pods", "big"))
    absent = "error: pod nobody of namespace default (-A: of all namespaces) does not exist\n"
    assert call("pods", "nobody").stderr == absent


def test_yaml_is_the_same_as_json() -> None:
    found = json.loads(call("pods", "-A", "-o", "json").stdout)
    assert yaml.safe_load(call("pods", "-A", "-o", "yaml").stdout) == found
    assert {holder["pod"] for holder in found["holders"]} == {"held", "other"}
    assert [pod["pod"] for pod in found["waiting"]] == ["big"]


@pytest.mark.parametrize(
    "args",
    [
        ("pods", "-A", "-n", "x"),
        ("why", "a/b/c"),
        ("why", "/b"),
        ("why", "a/b", "-n", "c"),
        ("top", "disks"),
        ("nodes", "--watch"),
        ("walk",),
        ("pods", "-o", "xml"),
    ],
)
def test_wrong_usage_ends_with_2(args: tuple[str, ...]) -> None:
    assert call(*args).exit_code == 2


def test_why_explains_and_takes_the_namespace_from_either() -> None:
    for args in (("why", "big"), ("why", "default/big"), ("why", "big", "-n", "default")):
        text = text_of(call(*args))
        assert "pod default/big: Pending, waiting; asks 1 x 50000 MiB" in text
        assert "- request at most 36864" in text or "- request at most" in text


def test_why_goes_on_without_events_that_it_may_not_see() -> None:
    kube = Listing(*cluster(), refusals={"events": Forbidden("can't list events", 403)})
    assert "Events and the scheduler's words are left out" in text_of(call("why", "big", kube=kube))


# -- whoever sees one namespace only ---------------------------------------------------------------


def tenant(*items: dict[str, Any]) -> Listing:
    no = Forbidden("can't list: forbidden", 403)
    return Listing(*(items or cluster()), refusals={"nodes": no, "pods": no})


def test_tenant_sees_the_slices_of_the_namespace() -> None:
    text = text_of(call("pods", kube=tenant()))
    assert "default held main n1" in text
    assert "what is free can't be seen with your rights" in text
    assert "only default is seen" in text
    assert "does not have" not in text


def test_tenant_gets_the_schedulers_words() -> None:
    big = pending_json("big", gpu=1)
    said = {"type": "PodScheduled", "status": "False", "message": "0/9 nodes"}
    big["status"] = {"phase": "Pending", "conditions": [said]}
    text = text_of(call("why", "big", kube=tenant(big)))
    assert "what is free can't be seen with your rights" in text
    assert "kube-scheduler said: 0/9 nodes" in text
    assert "no node has published cards" not in text


@pytest.mark.parametrize("args", [("pods", "-A"), ("nodes",), ("top",)])
def test_what_needs_the_whole_cluster_says_what_is_missing(args: tuple[str, ...]) -> None:
    done = call(*args, kube=tenant())
    assert (done.exit_code, done.stderr) == (3, "error: can't list: forbidden\n")


def test_refused_credentials_are_not_taken_for_missing_rights() -> None:
    kube = Listing(*cluster(), refusals={"nodes": Forbidden("who are you", 401)})
    assert call("pods", kube=kube).exit_code == 3


# -- granted and used ------------------------------------------------------------------------------

PAGE = f"""\
hami_node_card_memory_used_bytes{{uuid="{GPU}"}} {3 << 30}
hami_node_container_memory_used_bytes{{namespace="ml",pod="other",uuid="{GPU}"}} {1 << 30}
""".encode()


def with_daemon(**refusals: KubeError) -> Listing:
    daemon = of(pod_json("hami-node-x", {}, counts={}), "hami-system")
    labelled(daemon, **{"hami-node.io/metrics": "daemon"})
    kube = Listing(*cluster(), daemon, refusals=refusals)
    kube.pages["hami-node-x"] = PAGE
    return kube


def test_top_shows_granted_and_used() -> None:
    found = json.loads(call("top", "-A", "-o", "json", kube=with_daemon()).stdout)
    first, second = found["cards"]
    assert (first["memory_granted_mib"], first["memory_used_mib"]) == (8192, 3072)
    assert (second["memory_used_mib"], second["why"]) == (None, "XID 79: it fell off the bus")
    assert [(pod["pod"], pod["memory_used_mib"]) for pod in found["pods"]] == [
        ("other", 1024),
        ("held", None),
    ]
    text = text_of(call("top", "-A", kube=with_daemon()))
    assert "UNHEALTHY: XID 79: it fell off the bus" in text
    assert "ml other n1 1 1024 4096 - 30" in text


def test_top_without_the_right_to_ask_daemons_says_so() -> None:
    kube = with_daemon(**{"metrics of hami-node-x:9394": PROXY})
    text = text_of(call("top", "-A", kube=kube))
    assert "what is used can't be read: can't get pods/proxy: forbidden" in text
    assert "ml other n1 1 - 4096 - 30" in text


def test_top_goes_on_without_a_daemon_that_does_not_answer() -> None:
    kube = with_daemon()
    kube.pages.clear()
    assert "what is used on n1 can't be read" in text_of(call("top", kube=kube))


# -- files -----------------------------------------------------------------------------------------


def test_file_without_pods_does_not_say_that_nobody_holds_anything() -> None:
    for args in (("nodes",), ("pods",), ("top",)):
        text = text_of(call(*args, "-f", "-", stdin=saved(*cluster()[:2])))
        assert "the file has no pods: who holds what is not known" in text
        assert "no pod" not in text.replace("has no pods", "")


def test_pod_of_two_namespaces_of_a_file_must_be_named_in_full() -> None:
    twice = saved(pod_json("p", {}), of(pod_json("p", {}), "ml"))
    done = call("why", "p", "-f", "-", stdin=twice)
    assert done.exit_code == 1
    assert "default/p, ml/p: name one" in done.stderr


def test_events_of_a_file_are_part_of_the_story() -> None:
    event = {
        "kind": "Event",
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "big"},
        "message": "0/2 nodes are available",
    }
    everything = saved(*cluster(), event)
    text = text_of(call("why", "big", "-f", "-", stdin=everything))
    assert "0/2 nodes are available" in text


# -- access ----------------------------------------------------------------------------------------


def kubeconfig(path: Path, **contexts: str) -> Path:
    """A kubeconfig; `contexts` have a namespace each, and the first is the current one."""
    document = {
        "current-context": next(iter(contexts)),
        "contexts": [
            {"name": name, "context": {"cluster": "k", "namespace": namespace}}
            for name, namespace in contexts.items()
        ],
        "clusters": [{"name": "k", "cluster": {"server": "https://s"}}],
    }
    path.write_text(json.dumps(document))
    return path


def test_flags_say_how_the_cluster_is_reached(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "1", one="default")
    second = kubeconfig(tmp_path / "2", two="ml")
    accesses: list[Access] = []
    env = {"KUBECONFIG": f"{first}:{second}"}
    args = ("--context", "two", "--as", "jane", "--as-group", "ops")
    text = text_of(call("pods", *args, env=env, accesses=accesses))
    assert "ml other" in text
    assert accesses == [
        Access(kubeconfigs=(first, second), context="two", as_user="jane", as_groups=("ops",))
    ]


def test_unknown_context_is_an_error_in_a_line(tmp_path: Path) -> None:
    env = {"KUBECONFIG": str(kubeconfig(tmp_path / "1", one="default"))}
    done = call("pods", "--context", "three", env=env)
    assert done.exit_code == 1
    assert "contexts in the file: one" in done.stderr


# -- what tenants write ----------------------------------------------------------------------------


@pytest.mark.parametrize("hostile", ["\x1b[2J\x1b[31m", "\u202egpj.exe", "\x9b1m", "x" * 99_999])
def test_what_tenants_write_is_harmless(hostile: str) -> None:
    held = {nvidia_names.POD_ALLOCATED: f"{hostile},NVIDIA,1,1:;"}
    big = pending_json("big", {"nvidia.com/use-gputype": hostile}, gpu=1)
    said = {"type": "PodScheduled", "status": "False", "message": hostile}
    big["status"] = {"phase": "Pending", "conditions": [said]}
    kube = Listing(card_node_json("n1", card_json(GPU)), pod_json("p", held), big)
    for args in (("pods",), ("why", "big"), ("nodes", "n1"), ("top",)):
        for form in ("table", "wide", "json", "yaml"):
            done = call(*args, "-o", form, kube=kube)
            assert done.exit_code == 0
            assert all(char.isprintable() or char == "\n" for char in done.stdout)
            assert len(done.stdout) < 400_000
