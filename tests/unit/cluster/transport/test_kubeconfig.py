"""Kubeconfigs with several files, contexts, impersonation, and programs that issue credentials."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hami_node.cluster.access import Access
from hami_node.cluster.client import connect
from hami_node.cluster.transport.credentials import acting_as, load_configuration
from hami_node.cluster.transport.kubeconfig import read_kubeconfigs
from hami_node.errors import ConfigError, KubeError
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import RealClock

V1 = "client.authentication.k8s.io/v1"


def config(
    path: Path,
    *,
    current: str = "",
    servers: Mapping[str, str] | None = None,
    users: Mapping[str, Mapping[str, Any]] | None = None,
    contexts: Mapping[str, tuple[str, str]] | None = None,
) -> Path:
    """A kubeconfig; `contexts` have a cluster and a user each."""
    document: dict[str, object] = {
        "clusters": [
            {"name": name, "cluster": {"server": server}}
            for name, server in (servers or {}).items()
        ],
        "users": [{"name": name, "user": user} for name, user in (users or {}).items()],
        "contexts": [
            {"name": name, "context": {"cluster": cluster, "user": user}}
            for name, (cluster, user) in (contexts or {}).items()
        ],
    }
    if current:
        document["current-context"] = current
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two files as people have them: the second has what the first lacks, and rivals of it."""
    first = config(
        tmp_path / "a" / "config",
        servers={"k": "https://first"},
        contexts={"one": ("k", "u")},
    )
    second = config(
        tmp_path / "b" / "config",
        current="one",
        servers={"k": "https://second", "other": "https://other"},
        users={"u": {"client-certificate": "me.crt", "client-key": "me.key"}},
        contexts={"one": ("other", "u"), "two": ("other", "u")},
    )
    return first, second


def test_first_file_that_says_something_wins_and_names_files_beside_itself(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for files in (two, (tmp_path / "none", empty, *two)):
        configuration = load_configuration(Access(kubeconfigs=files))
        assert configuration.host == "https://first"
        assert configuration.cert_file == str(two[1].parent / "me.crt")
    named = load_configuration(Access(kubeconfigs=two, context="two"))
    assert named.host == "https://other"


def test_only_missing_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none of these files exists"):
        read_kubeconfigs((tmp_path / "a", tmp_path / "b"))


def test_unknown_context_names_those_that_there_are(two: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match=r"--context: 'three'.*one, two"):
        load_configuration(Access(kubeconfigs=two, context="three"))


def test_context_without_any_kubeconfig_is_an_error() -> None:
    with pytest.raises(ConfigError, match="there is no kubeconfig"):
        load_configuration(Access(context="three"))


def test_kubeconfig_of_eight_mebibytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"#" * (8 << 20) + b"\n")
    with pytest.raises(ConfigError, match="more than"):
        read_kubeconfigs((path,))


# -- whom to act as --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "headers"),
    [
        ({}, [("Impersonate-User", "file"), ("Impersonate-Group", "g")]),
        ({"as_user": "flag"}, [("Impersonate-User", "flag")]),
        (
            {"as_user": "flag", "as_groups": ("a", "b")},
            [
                ("Impersonate-User", "flag"),
                ("Impersonate-Group", "a"),
                ("Impersonate-Group", "b"),
            ],
        ),
    ],
)
def test_flags_say_whom_to_act_as_else_the_file(
    tmp_path: Path, access: dict[str, Any], headers: list[tuple[str, str]]
) -> None:
    user = {"token": "t", "as": "file", "as-groups": ["g"]}
    path = config(
        tmp_path / "k",
        current="c",
        servers={"k": "https://s"},
        users={"u": user},
        contexts={"c": ("k", "u")},
    )
    configuration = load_configuration(Access(kubeconfigs=(path,), **access))
    assert list(acting_as(configuration)) == headers


def test_group_without_a_user_is_refused(tmp_path: Path) -> None:
    path = config(
        tmp_path / "k", current="c", servers={"k": "https://s"}, contexts={"c": ("k", "")}
    )
    with pytest.raises(ConfigError, match="--as-group"):
        load_configuration(Access(kubeconfigs=(path,), as_groups=("g",)))


# -- programs that issue credentials ---------------------------------------------------------------


def program(tmp_path: Path, body: str, *, mode: int = 0o755) -> Path:
    """A program as clouds install them."""
    path = tmp_path / "bin" / "aws-iam"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
    path.chmod(mode)
    return path


def answer(**status: str) -> str:
    document = {"apiVersion": V1, "kind": "ExecCredential", "status": status}
    return f"print(json.dumps({document!r}))"


def of_program(tmp_path: Path, server: str, **changed: object) -> Path:
    """A kubeconfig in which that program issues the credentials."""
    exec_ = {"apiVersion": V1, "command": "../bin/aws-iam", "interactiveMode": "Never"} | changed
    return config(
        tmp_path / "kube" / "config",
        current="c",
        servers={"k": server},
        users={"u": {"exec": exec_}},
        contexts={"c": ("k", "u")},
    )


def test_program_is_asked_again_when_its_token_was_refused(tmp_path: Path) -> None:
    count = tmp_path / "count"
    program(
        tmp_path,
        f"open({str(count)!r}, 'a').write('x')\n"
        f"token = 'token-' + str(len(open({str(count)!r}).read()))\n"
        f"print(json.dumps(dict(apiVersion={V1!r}, kind='ExecCredential', "
        "status=dict(token=token))))",
    )
    with FaultyApiServer(token="token-1") as server:
        server.create("nodes", {"metadata": {"name": "n1"}})
        path = of_program(tmp_path, server.url)
        kube = connect(path, component="test", clock=RealClock())
        assert kube.read_node("n1").name == "n1"
        assert kube.read_node("n1").name == "n1"
        assert count.read_text() == "x"
        server.token = "token-2"
        assert kube.read_node("n1").name == "n1"
        assert count.read_text() == "xx"
        kube.close()


def test_expired_token_is_issued_again_before_the_next_request(tmp_path: Path) -> None:
    count = tmp_path / "count"
    body = f"open({str(count)!r}, 'a').write('x')\n"
    program(tmp_path, body + answer(token="t", expirationTimestamp="2020-01-01T00:00:00Z"))
    configuration = load_configuration(of_program(tmp_path, "https://s"))
    before = len(count.read_text())
    assert configuration.get_api_key_with_prefix("BearerToken") == "Bearer t"
    assert len(count.read_text()) == before + 1


def test_program_is_told_about_the_cluster_and_gets_its_variables(tmp_path: Path) -> None:
    told = tmp_path / "told"
    wanted = "[os.environ['KUBERNETES_EXEC_INFO'], os.environ['AWS_PROFILE'], *sys.argv[1:]]"
    program(tmp_path, f"json.dump({wanted}, open({str(told)!r}, 'w'))\n" + answer(token="t"))
    path = of_program(
        tmp_path,
        "https://s",
        args=["--cluster", "x; rm -rf /"],
        env=[{"name": "AWS_PROFILE", "value": "gpu"}],
        provideClusterInfo=True,
    )
    load_configuration(path)
    info, profile, *args = json.loads(told.read_text())
    assert (profile, args) == ("gpu", ["--cluster", "x; rm -rf /"])
    assert json.loads(info) == {
        "kind": "ExecCredential",
        "apiVersion": V1,
        "spec": {"interactive": False, "cluster": {"server": "https://s"}},
    }


def test_program_may_issue_a_certificate(tmp_path: Path) -> None:
    program(tmp_path, answer(clientCertificateData="CERT", clientKeyData="KEY"))
    configuration = load_configuration(of_program(tmp_path, "https://s"))
    assert Path(configuration.cert_file).read_text() == "CERT"
    assert Path(configuration.key_file).read_text() == "KEY"


WRONG = {
    "fails": ("sys.exit(3)", {}, "exit code 3"),
    "prints nothing": ("", {}, "no ExecCredential"),
    "prints a page": ("print('<html>')", {}, "no ExecCredential"),
    "no status": ("print('{}')", {}, "no ExecCredential with a status"),
    "nothing issued": (answer(), {}, "must issue a token"),
    "no key": (answer(clientCertificateData="CERT"), {}, "needs its key"),
    "old version": ("", {"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "apiVersion"),
    "another version": (
        answer(token="t"),
        {"apiVersion": "client.authentication.k8s.io/v1beta1"},
        "it answered in",
    ),
    "wants a terminal": (answer(token="t"), {"interactiveMode": "Always"}, "at a terminal"),
    "unknown mode": (answer(token="t"), {"interactiveMode": "Perhaps"}, "interactiveMode"),
    "not there": (
        "",
        {"command": "no-such-program", "installHint": "brew install it"},
        "brew install it",
    ),
}


@pytest.mark.parametrize(("body", "changed", "words"), WRONG.values(), ids=WRONG)
def test_program_that_issues_nothing_is_named_with_the_cure(
    tmp_path: Path, body: str, changed: dict[str, object], words: str
) -> None:
    program(tmp_path, body)
    path = of_program(tmp_path, "https://s", **changed)
    with pytest.raises(ConfigError) as caught:
        load_configuration(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_program_that_can_no_longer_issue_ends_the_request_with_an_error(tmp_path: Path) -> None:
    made = program(tmp_path, answer(token="t", expirationTimestamp="2020-01-01T00:00:00Z"))
    with FaultyApiServer() as server:
        kube = connect(of_program(tmp_path, server.url), component="test", clock=RealClock())
        made.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
        with pytest.raises(KubeError, match="our credentials can't be read"):
            kube.read_node("n1")
        kube.close()


def test_file_of_a_machine_without_files_in_memory_is_ours_alone_and_goes() -> None:
    code = (
        "import os; from hami_node.cluster.transport.credentials import file_until_the_end as f; "
        "name = f(b'KEY'); print(name, oct(os.stat(name).st_mode & 0o777), open(name).read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, mode, content = done.stdout.split()
    assert (mode, content) == ("0o600", "KEY")
    assert not Path(name).exists()
