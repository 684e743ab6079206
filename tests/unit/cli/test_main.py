from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hami_node.cli.main import main
from hami_node.cli.programs import Programs, await_answer
from hami_node.cli.show.tables import span
from hami_node.clock import SystemClock
from hami_node.cluster.access import Access
from hami_node.cluster.calls import ApiCall
from hami_node.cluster.client import KubeClient
from hami_node.config.settings import Settings, declarations, settings_of
from hami_node.config.sources import ConfigSources
from hami_node.errors import BackendError, ConfigError, Forbidden, HamiError, KubeError
from hami_node.setting_types import Role
from hami_node.vendors.neuron.names import RESOURCE_NEURON, RESOURCE_NEURON_CORE
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.choices import BackendKind
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.registry import SETTINGS_BLOCKS
from hami_node.wire import names
from tests.fakes.listing import Listing
from tests.fakes.saved_cluster import (
    GPU,
    NOW_S,
    card_json,
    card_node_json,
    node_json,
    pending_json,
    pod_json,
    quota_json,
    saved,
)
from tests.fakes.settings import value_of


class Recorder:
    """Stands for the daemon, the demo and the API server."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        self.started: list[tuple[Settings, ConfigSources]] = []
        self.kept: list[bool] = []
        self.accesses: list[Access] = []
        self.env = env or {}

    def run_daemon(self, settings: Settings, sources: ConfigSources) -> int:
        self.started.append((settings, sources))
        return 0

    def run_demo(self, keep: bool) -> int:
        self.kept.append(keep)
        return 1

    def connect(self, access: Access) -> KubeClient:
        self.accesses.append(access)
        raise KubeError("can't list nodes: https://api:6443 can't be reached")

    def programs(self) -> Programs:
        return Programs(
            run_daemon=self.run_daemon,
            run_demo=self.run_demo,
            connect=self.connect,
            now=lambda: NOW_S,
            env=lambda: self.env,
        )


def call(recorder: Recorder, *args: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, args, obj=recorder.programs(), input=stdin)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder({"NODE_NAME": "n1"})


@pytest.mark.parametrize("command", ["", "run", "certify", "inspect", "check-config", "demo"])
def test_help_explains_with_examples(recorder: Recorder, command: str) -> None:
    done = call(recorder, *([command] if command else []), "--help")
    assert done.exit_code == 0
    assert f"hami-node {command}".strip() in done.output
    assert not recorder.started


@pytest.mark.parametrize("role", list(Role))
def test_help_shows_every_setting_of_the_program_with_its_environment(
    recorder: Recorder, role: Role
) -> None:
    # lines are broken at hyphens too
    text = "".join(call(recorder, role, "--help").output.split())
    for name in settings_of(role, SETTINGS_BLOCKS):
        outside = declarations(SETTINGS_BLOCKS)[name].names
        assert f"--{name.replace('_', '-')}" in text
        assert f"HAMI_NODE_{name.upper()}" in text
        assert outside.doc.replace(" ", "") in text
    assert "fail-on-init-error" not in text


def test_run_starts_the_daemon_with_settings_from_flags_and_environment(
    recorder: Recorder,
) -> None:
    recorder.env["HOOK_PATH"] = "/opt/hook"
    done = call(recorder, "run", "--split-count", "4", "--disable-core-limit", "--limiter=optional")
    assert done.exit_code == 0, done.output
    ((settings, _),) = recorder.started
    nvidia = settings.of(NvidiaSettings)
    assert (settings.node_name, nvidia.split_count) == ("n1", 4)
    assert (nvidia.disable_core_limit, nvidia.hook_path) == (True, Path("/opt/hook"))


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        pytest.param(["--disable-core-limit=true"], "disable_core_limit", True, id="bool_text"),
        pytest.param(["--disable_core_limit=false"], "disable_core_limit", False, id="underscore"),
        pytest.param(["--metrics-bind-address", ":1"], "metrics_address", ":1", id="metrics"),
        pytest.param(["--resource-name=a.b/c"], "resource_count", "a.b/c", id="resource"),
        pytest.param(["--kubelet-socket=/k/kubelet.sock"], "plugin_dir", Path("/k"), id="socket"),
        pytest.param(
            ["--device-list-strategy", "envvar", "--pass-device-specs=true"],
            "pass_device_specs",
            True,
            id="device_specs",
        ),
        pytest.param(
            ["--nvidia-driver-root=/run/nvidia/driver"],
            "driver_root",
            Path("/run/nvidia/driver"),
            id="driver_root",
        ),
        pytest.param(
            ["--imex-required=false", "--fail-on-init-error=false", "-v=4"],
            "ignored",
            ("--fail-on-init-error", "--imex-required", "--v"),
            id="without_effect",
        ),
    ],
)
def test_hamis_flags_are_taken_in_its_spelling(
    recorder: Recorder, args: list[str], field: str, value: object
) -> None:
    done = call(recorder, "run", *args)
    assert done.exit_code == 0, done.output
    assert value_of(recorder.started[0][0], field) == value


@pytest.mark.parametrize("flag", ["--config-file", "--device-config-file"])
def test_run_reads_the_configuration_file(recorder: Recorder, flag: str, tmp_path: Path) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text("hami-node: {backend: simulated, simulated-file: /cards.yaml}")
    assert call(recorder, "run", flag, str(path)).exit_code == 0
    settings, sources = recorder.started[0]
    assert settings.of(NvidiaSettings).backend is BackendKind.SIMULATED
    assert path in sources.files()


def test_run_refuses_a_wrong_setting_with_one_line(recorder: Recorder) -> None:
    done = call(recorder, "run", "--split-count", "none")
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert "event=settings_refused" in line
    assert "field=--split-count value=none" in line
    assert "from 1 to 100000" in line
    assert not recorder.started


@pytest.mark.parametrize("command", ["run", "extender"])
def test_program_names_everything_that_is_wrong_before_it_ends(
    recorder: Recorder, command: str, tmp_path: Path
) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text("hami-node: {log-lvel: debug}\nnvidia: {register-format: auto}")
    recorder.env["HAMI_NODE_LOGLEVEL"] = "debug"
    done = call(recorder, command, "--compat=3", "--config-file", str(path))
    assert done.exit_code == 1
    lines = done.stderr.splitlines()
    assert all("event=settings_refused" in line for line in lines)
    for line, said in zip(
        lines,
        (
            "field=--compat value=3",
            "did you mean HAMI_NODE_LOG_LEVEL?",
            "did you mean log-level?",
            "write it as register-format below hami-node:",
        ),
        strict=True,
    ):
        assert said in line
    assert not recorder.started


@pytest.mark.parametrize("command", ["run", "extender"])
@pytest.mark.parametrize(
    ("error", "code", "fields"),
    [
        pytest.param(
            ConfigError("settings", "http-bind", ":80", "choose again"),
            1,
            'event=settings_refused source=settings field=http-bind value=:80 hint="choose again"',
            id="setting",
        ),
        pytest.param(
            KubeError("can't reach it"), 3, 'event=failed error="can\'t reach it"', id="api"
        ),
        pytest.param(BackendError("no card"), 1, 'event=failed error="no card"', id="other"),
    ],
)
def test_program_that_fails_says_so_in_its_log(
    command: str, error: HamiError, code: int, fields: str
) -> None:
    def fail(*_: object) -> int:
        raise error

    programs = Programs(run_daemon=fail, run_extender=fail, env=lambda: {"NODE_NAME": "n1"})
    done = CliRunner().invoke(main, [command], obj=programs)
    assert done.exit_code == code
    (line,) = done.stderr.splitlines()
    assert f" level=error {fields} " in line


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["run", "--nonsense"], id="unknown_flag"),
        pytest.param(["run", "--split-count"], id="no_value"),
        pytest.param(["walk"], id="unknown_command"),
        pytest.param(["check-config"], id="no_file"),
        pytest.param(["inspect", "-o", "xml"], id="unknown_output"),
        pytest.param(["inspect", "--file", "/does/not/exist"], id="missing_file"),
    ],
)
def test_wrong_usage_ends_with_2(recorder: Recorder, args: list[str]) -> None:
    assert call(recorder, *args).exit_code == 2


def test_inspect_without_an_answer_ends_with_3(recorder: Recorder) -> None:
    recorder.env["KUBECONFIG"] = "/a/one:/a/two"
    done = call(recorder, "inspect")
    assert done.exit_code == 3
    assert done.stderr == "error: can't list nodes: https://api:6443 can't be reached\n"
    assert recorder.accesses == [Access(kubeconfigs=(Path("/a/one"), Path("/a/two")))]


def test_inspect_takes_the_usual_kubeconfig_or_the_service_account(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.env["HOME"] = str(tmp_path)
    call(recorder, "inspect")
    (tmp_path / ".kube").mkdir()
    usual = tmp_path / ".kube" / "config"
    usual.touch()
    call(recorder, "inspect")
    call(recorder, "inspect", "--kubeconfig", "/x")
    named = [access.kubeconfigs for access in recorder.accesses]
    assert named == [(), (usual,), (Path("/x"),)]


REGISTER = json.dumps(
    [
        {
            "id": GPU,
            "count": 10,
            "devmem": 40960,
            "devcore": 100,
            "type": "NVIDIA A100",
            "mode": "hami-core",
            "health": True,
        }
    ]
)
HELD = {nvidia_names.POD_ALLOCATED: f"{GPU},NVIDIA,4096,30:;", nvidia_names.POD_TO_ALLOCATE: ";"}


def cluster() -> bytes:
    node = node_json("n1", {nvidia_names.NODE_REGISTER: REGISTER})
    return saved(node, pod_json("p1", HELD), pod_json("p2", {nvidia_names.POD_ALLOCATED: "broken"}))


def test_inspect_shows_cards_holders_and_what_is_broken(recorder: Recorder) -> None:
    done = call(recorder, "inspect", "--file", "-", stdin=cluster())
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert f"n1 0 NVIDIA A100 {GPU} ok 1/10 █░░░░░░░░░ 4096/40960 ███░░░░░░░ 30/100" in text
    assert f"default p1 main n1 0 {GPU} 4096 30 Running" in text
    assert "pod default/p2 its reservation does not match" in text
    assert "'broken'" in text
    narrow = seen_at(80, cluster())
    assert max(map(len, narrow.splitlines())) <= 80
    assert f"{GPU[:12]}…" in narrow
    assert GPU not in narrow.partition("problems")[0]
    assert "░" not in narrow


def test_inspect_lets_unhealthy_and_over_committed_cards_stand_out(recorder: Recorder) -> None:
    node = card_node_json("n1", card_json(GPU, health=False))
    much = HELD | {nvidia_names.POD_ALLOCATED: f"{GPU},NVIDIA,50000,30:;"}
    text = call(recorder, "inspect", "--file", "-", stdin=saved(node, pod_json("p", much))).output
    assert "UNHEALTHY" in text
    assert "██████████ 50000/40960" in text
    assert "over-committed" in text


def seen_at(columns: int, stdin: bytes, *args: str) -> str:
    """What `inspect` shows on a terminal of that width."""
    command, env = ["inspect", *args, "--file", "-"], {"COLUMNS": str(columns)}
    programs = Programs(now=lambda: NOW_S, env=dict)
    done = CliRunner().invoke(main, command, obj=programs, input=stdin, env=env)
    assert done.exit_code == 0, done.output
    return done.output


WAITING = (
    card_node_json("n1", card_json(GPU)),
    pod_json("p1", HELD),
    pending_json("big", gpu=1, gpumem=40000),
)


def test_inspect_shows_who_waits_and_the_total(recorder: Recorder) -> None:
    done = call(recorder, "inspect", "--file", "-", "-o", "json", stdin=saved(*WAITING))
    view = json.loads(done.output)
    (pod,) = view["waiting"]
    assert (pod["pod"], pod["waits_s"]) == ("big", 3600)
    assert "nearest: 36864 MiB free" in pod["why"]
    assert (view["totals"]["slots_free"], view["totals"]["largest_mib"]) == (9, 36864)
    text = " ".join(seen_at(100, saved(*WAITING)).split())
    assert "default/big 1 x 40000 MiB 1 h 0 min no available node, 1 nodes do not meet" in text
    assert (
        "total: 1 card of 1 node offered, 9 of 10 slots free, 36864 of 40960 MiB free, "
        "largest slice 36864 MiB (card 0 of n1)"
    ) in text


def test_inspect_as_json_counts_numbered_cores_among_the_totals(recorder: Recorder) -> None:
    trn = node_json("trn", {})
    trn["status"] = {"allocatable": {RESOURCE_NEURON: "2", RESOURCE_NEURON_CORE: "4"}}
    done = call(recorder, "inspect", "--file", "-", "-o", "json", stdin=saved(trn))
    totals = json.loads(done.output)["totals"]
    assert (totals["cards"], totals["neuron_cores_free"]) == (2, 4)
    assert "cores_free" not in totals
    shown = call(recorder, "inspect", "--file", "-", stdin=saved(trn, *WAITING)).output
    assert "4 Neuron cores free" in " ".join(shown.split())


def test_inspect_of_one_node_leaves_out_who_waits_elsewhere(recorder: Recorder) -> None:
    args = ("inspect", "--node", "n1", "--file", "-", "-o", "json")
    assert json.loads(call(recorder, *args, stdin=saved(*WAITING)).output)["waiting"] == []


@pytest.mark.parametrize("name", ["big", "default/big"])
def test_inspect_pod_explains_it(recorder: Recorder, name: str) -> None:
    done = call(recorder, "inspect", "pod", name, "--file", "-", stdin=saved(*WAITING))
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "n1 0 9 36864 70 NVIDIA-NVIDIA A100" in text
    assert f"{GPU} no room now: 1/1 CardInsufficientMemory" in text
    assert "- request at most 36864 of nvidia.com/gpumem: that fits on n1 now" in text
    assert max(map(len, seen_at(80, saved(*WAITING), "pod", name).splitlines())) <= 80


def test_inspect_pod_names_a_few_nodes_and_counts_the_rest() -> None:
    nodes = [card_node_json(f"n{i:03}", card_json(f"GPU-{i}")) for i in range(50)]
    text = seen_at(100, saved(*nodes, pending_json("big", gpu=1, gpumem=50000)), "pod", "big")
    shown = text.count("does not suit")
    assert 0 < shown < 50
    assert f"{50 - shown} more nodes with cards (-o json has all)" in text


def test_inspect_pod_tells_its_resize() -> None:
    told = HELD | {names.POD_RESIZE_STATE: '{"id":"a-1","state":"waiting","why":"for a program"}'}
    text = seen_at(100, saved(WAITING[0], pod_json("p", told)), "pod", "p")
    assert "resize: waiting: for a program" in text


def test_inspect_of_an_absent_pod_ends_with_1_and_names_its_namesakes(recorder: Recorder) -> None:
    done = call(recorder, "inspect", "pod", "ml/big", "--file", "-", stdin=saved(*WAITING))
    assert done.exit_code == 1
    assert done.stderr == "error: pod ml/big does not exist; there is default/big\n"


@pytest.mark.parametrize(
    "what",
    [("pod",), ("pod", "a/b/c"), ("pod", "/b"), ("pod", "a/"), ("node", "n1"), ("pod", "a", "b")],
)
def test_inspect_of_something_unclear_ends_with_2(
    recorder: Recorder, what: tuple[str, ...]
) -> None:
    assert call(recorder, "inspect", *what).exit_code == 2


def test_inspect_follows_the_configuration_file(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text("nvidia: {resourceMemoryName: nvidia.com/mib}")
    args = ("inspect", "pod", "big", "--config-file", str(path), "--file", "-", "-o", "json")
    node = card_node_json("n1", card_json(GPU))
    done = call(recorder, *args, stdin=saved(node, pending_json("big", gpu=1, mib=50000)))
    view = json.loads(done.output)
    assert view["cures"][0] == "request at most 40960 of nvidia.com/mib: that fits on n1 now"


def test_inspect_only_mentions_a_wrong_environment(recorder: Recorder) -> None:
    recorder.env["HAMI_NODE_SPLIT_COUNT"] = "many"
    done = call(recorder, "inspect", "--file", "-", "-o", "json", stdin=cluster())
    assert json.loads(done.output)["problems"][0]["where"] == "settings"


def test_inspect_takes_a_saved_file_as_of_its_time(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    path.write_bytes(saved(*WAITING))
    os.utime(path, (NOW_S + 60, NOW_S + 60))
    done = call(recorder, "inspect", "--file", str(path), "-o", "json")
    assert json.loads(done.output)["waiting"][0]["waits_s"] == 3660


def refusing(refusal: KubeError) -> Listing:
    return Listing(*WAITING, refusals={"resourcequotas": refusal})


def seen(kube: Listing, *args: str) -> Result:
    programs = Programs(connect=lambda _: kube, now=lambda: NOW_S, env=dict)
    return CliRunner().invoke(main, ["inspect", *args, "-o", "json"], obj=programs)


def test_inspect_asks_the_cluster_for_quotas_too() -> None:
    view = json.loads(
        seen(Listing(*WAITING, quota_json("default", gpumem=5000)), "pod", "big").output
    )
    assert view["cures"][0] == "request at most 904 of nvidia.com/gpumem: that fits on n1 now"


@pytest.mark.parametrize("args", [(), ("pod", "big")])
def test_inspect_goes_on_without_quotas_that_it_may_not_list(args: tuple[str, ...]) -> None:
    done = seen(refusing(Forbidden("can't list resourcequotas")), *args)
    (problem,) = json.loads(done.output)["problems"]
    assert problem["why"] == "quotas are left out: can't list resourcequotas"
    assert done.exit_code == 0


def test_inspect_without_an_answer_about_quotas_ends_with_3() -> None:
    assert seen(refusing(KubeError("no answer"))).exit_code == 3


def test_inspect_of_an_absent_node_says_so(recorder: Recorder) -> None:
    done = call(recorder, "inspect", "--file", "-", "--node", "n9", stdin=cluster())
    assert (done.exit_code, done.stderr) == (1, "error: node n9 does not exist\n")


def test_absent_node_of_a_cluster_is_a_sentence() -> None:
    done = seen(Listing(*WAITING), "--node", "nope")
    assert (done.exit_code, done.stderr) == (1, "error: node nope does not exist\n")


@pytest.mark.parametrize("args", [("inspect",), ("top", "-A"), ("verify",), ("migrate", "check")])
def test_without_a_kubeconfig_people_are_told_where_it_was_looked_for(
    args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    done = CliRunner().invoke(main, args, obj=Programs(env=lambda: {"HOME": "/none"}))
    assert done.exit_code == 1
    assert "$KUBECONFIG is not set, ~/.kube/config does not exist" in done.stderr


class Silent(Listing):
    """An API server that says nothing until `told`, and then that it can't."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.told = threading.Event()

    def around(self, call: ApiCall, serve: Callable[[], bytes]) -> bytes:
        del serve
        self.told.wait()
        raise KubeError(f"can't {call}: no answer")

    def say(self, text: str) -> None:
        self.said.append(text)
        self.told.set()


def test_silent_api_server_is_named_while_it_is_waited_for_and_then_given_up() -> None:
    kube = Silent()
    with pytest.raises(KubeError, match="no answer"):
        await_answer(kube, SystemClock(), kube.say, told_s=0)
    assert kube.said == ["no answer from the API server yet: waiting for up to 12 s"]


def test_api_server_that_refuses_at_once_is_left_to_the_command() -> None:
    refusing = Silent()
    refusing.told.set()
    await_answer(refusing, SystemClock(), refusing.say, told_s=60)
    assert refusing.said == []


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff\xfe", b"[]", b'{"kind":"List","items":[]}'])
def test_inspect_of_something_else_is_refused(recorder: Recorder, text: bytes) -> None:
    done = call(recorder, "inspect", "--file", "-", stdin=text)
    assert done.exit_code == 1
    assert "kubectl get -o json" in done.stderr


def test_inspect_shows_no_terminal_commands_of_others(recorder: Recorder) -> None:
    node = node_json(
        "n1", {nvidia_names.NODE_REGISTER: REGISTER.replace("A100", "\\u001b[31m[red]A")}
    )
    done = call(recorder, "inspect", "--file", "-", stdin=saved(node))
    assert "\x1b" not in done.output
    assert "?[31m[red]A" in done.output


def test_check_config_says_ok_of_good_files(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text("nvidia: {deviceSplitCount: 3, colour: red}")
    done = call(recorder, "check-config", str(path))
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        f"{path}: ok (device-config.yaml)",
        f"{path}: without effect here: nvidia.colour",
    ]


def test_check_config_names_everything_that_is_wrong(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("nvidia: {deviceSplitCount: 0, deviceMemoryScaling: big}")
    node = tmp_path / "config.json"
    node.write_text('{"nodeconfig":[{"name":"n2","devicesplitcount":-1}]}')
    done = call(recorder, "check-config", str(path), str(node), str(tmp_path / "none.yaml"))
    assert done.exit_code == 1
    assert sum(line.startswith("wrong: ") for line in done.output.splitlines()) == 4
    for field in ("nvidia.deviceSplitCount", "nvidia.deviceMemoryScaling", "none.yaml: file"):
        assert field in done.output
    assert "nodeconfig[0].devicesplitcount: -1 is wrong" in done.output


def test_check_config_shows_what_a_node_would_use(recorder: Recorder, tmp_path: Path) -> None:
    path, node = tmp_path / "d.yaml", tmp_path / "config.json"
    path.write_text("nvidia: {deviceSplitCount: 3, deviceCoreScaling: 2}")
    node.write_text('{"nodeconfig":[{"name":"gpu-*","devicesplitcount":5}]}')
    done = call(recorder, "check-config", str(path), str(node), "--node", "gpu-1")
    lines = [line.split() for line in done.output.splitlines()]
    assert done.exit_code == 0
    assert ["split-count", "5", "config.json"] in lines
    assert ["core-scaling", "2.0", "device-config.yaml"] in lines
    assert ["limiter", "required", "default"] in lines


def test_check_config_reads_a_config_map(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "cm.yaml"
    path.write_text(
        "kind: ConfigMap\ndata:\n  device-config.yaml: |\n    nvidia: {deviceSplitCount: 0}\n"
        '  config.json: |\n    {"nodeconfig": []}\n  cards.yaml: |\n    cards: []\n'
    )
    done = call(recorder, "check-config", str(path))
    assert done.exit_code == 1
    assert f"{path}[cards.yaml]: ok (simulated cards, not checked here)" in done.output
    assert f"{path}[config.json]: ok" in done.output
    assert f"{path}[device-config.yaml]: nvidia.deviceSplitCount: 0 is wrong" in done.output


def test_check_config_as_json(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("nvidia: {deviceSplitCount: 0}\ncambricon: {}")
    done = call(recorder, "check-config", str(path), "-o", "json", "--node", "n1")
    report = json.loads(done.output)
    assert (done.exit_code, report["ok"]) == (1, False)
    assert [error["field"] for error in report["errors"]] == ["nvidia.deviceSplitCount"]
    assert report["settings"]["split-count"] == 10


def test_check_config_names_misspelt_keys_and_variables(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("nvidia: {deviceSplitCuont: 3}\nhami-node: {log-lvel: debug}")
    recorder.env |= {"HAMI_NODE_LOGLEVEL": "debug", "HAMI_NODE_LEADER_SERVICE_HOST": "10.0.0.1"}
    done = call(recorder, "check-config", str(path))
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        "warning: d.yaml: nvidia.deviceSplitCuont: unknown; did you mean deviceSplitCount?",
        f"wrong: {path}: hami-node: 'log-lvel' is wrong: there is no such setting; "
        "did you mean log-level?",
        "wrong: environment: variable: 'HAMI_NODE_LOGLEVEL' is wrong: unknown; "
        "did you mean HAMI_NODE_LOG_LEVEL?",
    ]
    report = json.loads(call(recorder, "check-config", str(path), "-o", "json").output)
    assert report["warnings"] == [done.output.splitlines()[0].removeprefix("warning: ")]


def test_check_config_shows_no_terminal_commands_of_others(
    recorder: Recorder, tmp_path: Path
) -> None:
    path = tmp_path / "d.yaml"
    path.write_text('nvidia: {"\\e[31mdeviceSplitCount": 3}\n"\\e[31mmetax": {}')
    done = call(recorder, "check-config", str(path))
    assert done.exit_code == 0
    assert "\x1b" not in done.output


def test_check_config_takes_one_file_of_a_kind_for_a_node(
    recorder: Recorder, tmp_path: Path
) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("nvidia: {}")
    done = call(recorder, "check-config", str(path), str(path), "--node", "n1")
    assert done.exit_code == 1
    assert "one device-config.yaml at most" in done.stderr


def test_demo_ends_as_the_demo_says(recorder: Recorder) -> None:
    assert call(recorder, "demo", "--keep").exit_code == 1
    assert recorder.kept == [True]


def test_start_of_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, hami_node.cli.main; "
        "print([m for m in ('rich', 'kubernetes', 'grpc', 'prometheus_client', 'pynvml') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


COMMANDS = (["run", "--help"], ["inspect", "--file", "SAVED"])


def process(args: list[str], path: Path, stdout: int, **env: str) -> tuple[bytes, bytes]:
    """What a command writes to standard output and to standard error."""
    path.write_bytes(saved(*WAITING))
    words = (str(path) if arg == "SAVED" else arg for arg in args)
    done = subprocess.run(
        [sys.executable, "-m", "hami_node", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **env},
        check=False,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_closed_pipe_ends_every_command_quietly(args: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert process(args, tmp_path / "saved", writer)[1] == b""
    os.close(writer)


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_every_command_writes_ascii_where_there_is_nothing_else(
    args: list[str], tmp_path: Path
) -> None:
    text, errors = process(args, tmp_path / "saved", subprocess.PIPE, PYTHONIOENCODING="ascii")
    assert errors == b""
    assert text.isascii()
    assert len(text) > 500


def test_inspect_of_an_empty_cluster_says_so(recorder: Recorder) -> None:
    done = call(recorder, "inspect", "--file", "-", stdin=saved(node_json("cpu", {})))
    assert "no node has published cards" in done.output
    assert "total:" not in done.output


def test_inspect_shows_each_way_of_handing_over_cards_once_with_its_nodes(
    recorder: Recorder,
) -> None:
    ways = ["envvar UUID"] * 7 + ["refused: containerd://1.6.8 knows no CDI: use 2.0 or later"]
    nodes = [card_node_json(f"n{i}", card_json(f"GPU-{i}")) for i in range(len(ways))]
    for node, way in zip(nodes, ways, strict=True):
        node["metadata"]["annotations"][names.NODE_HAND_OVER] = way  # type: ignore[index]  # JSON
    text = call(recorder, "inspect", "--file", "-", stdin=saved(*nodes)).output
    text = " ".join(text.split())
    assert "envvar UUID n0, n1, n2, n3, n4 and 2 more" in text
    assert "refused: containerd://1.6.8 knows no CDI: use 2.0 or later n7" in text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (7500, "2 h 5 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_span_has_two_units_at_most(seconds: int, shown: str) -> None:
    assert span(seconds) == shown
