from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hami_node.cli.main import main
from hami_node.cli.programs import Programs
from hami_node.config.sources import ConfigSources
from hami_node.vendors.nvidia.demo import empty_library
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.registry import SETTINGS_BLOCKS
from tests.fakes.settings import load

CONTENT = empty_library(os.uname().machine)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "libvgpu.so.v2.10.0").write_bytes(CONTENT)
    return tmp_path / "source"


def run(*arguments: object, **env: str) -> Result:
    command = ["install-limiter", *map(str, arguments)]
    return CliRunner().invoke(main, command, obj=Programs(env=lambda: env))


def test_one_line_tells_what_is_there_now(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "vgpu" / f"libvgpu.so.v2.10.0-{SHA256[:12]}"
    first = run("--from", source, HOOK_PATH=str(tmp_path))
    assert (first.exit_code, first.output.count("\n")) == (0, 1)
    assert first.output.startswith(f"installed: {path}, version v2.10.0, sha256 {SHA256}; --sha256")
    again = run("--from", source, "--hook-path", tmp_path, "--sha256", SHA256)
    assert again.output == f"already there: {path}, version v2.10.0, sha256 {SHA256}\n"


def test_wanted_sha256_is_the_one_in_the_environment_of_the_daemon(
    tmp_path: Path, source: Path
) -> None:
    env = {"HOOK_PATH": str(tmp_path), "HAMI_NODE_LIMITER_SHA256": "a" * 64}
    assert run("--from", source, **env).exit_code == 1
    assert run("--from", source, "--sha256", SHA256, **env).exit_code == 0
    sources = ConfigSources(blocks=SETTINGS_BLOCKS, env={"NODE_NAME": "n1", **env})
    assert load(sources).of(NvidiaSettings).limiter_sha256 == ("a" * 64,)


def test_json_has_the_same(tmp_path: Path, source: Path) -> None:
    done = run("--from", source, "--hook-path", tmp_path, "-o", "json", "--version-tag", "mine")
    assert json.loads(done.output) == {
        "path": str(tmp_path / "vgpu" / f"libvgpu.so.mine-{SHA256[:12]}"),
        "version": "mine",
        "sha256": SHA256,
        "new": True,
    }


def test_refusal_is_one_line_and_exit_code_1(tmp_path: Path, source: Path) -> None:
    done = run(
        "--from", source, "--hook-path", tmp_path, "--sha256", f"amd64={'a' * 64},{'b' * 64}"
    )
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert done.output.startswith("error: nothing in ")


@pytest.mark.parametrize("arguments", [(), ("--from", "/x", "--from-host")])
def test_one_source_is_named(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize("by_env", [True, False])
def test_hook_path_that_containers_could_not_load_from_is_refused(
    source: Path, by_env: bool
) -> None:
    given = () if by_env else ("--hook-path", "rel")
    done = run("--from", source, *given, HOOK_PATH="rel")
    assert done.exit_code == 2
    assert "--hook-path or $HOOK_PATH is rel: write an absolute path" in done.output
