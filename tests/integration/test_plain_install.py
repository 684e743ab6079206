"""What `pip install .` gives, without extras: each command works or says what to install."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from hami_node.cli import kubectl
from hami_node.cli.extras import missing_package
from hami_node.cli.main import main

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
NEEDS_EXTENDER: Final = {
    "extender": ["--http-bind", "127.0.0.1:0"],
    "certify": ["--dry-run"],
    "demo": [],
}
WORKS: Final = {
    "inspect": ["--file", "nothing.json"],
    "check-config": [str(ROOT / "daemonset/base/config.yaml")],
    "install-limiter": ["--from", "nowhere"],
}
"""Arguments with which a command does something here; the other commands get none."""

KUBECTL: Final = {"why": ["ml/train-0"]}


def declared(name: str, seen: dict[str, metadata.Distribution]) -> None:
    """Everything that a plain installation of a package brings."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return
    seen[key] = metadata.distribution(name)
    for line in seen[key].requires or ():
        required = Requirement(line)
        if required.marker is None or required.marker.evaluate({"extra": ""}):
            declared(required.name, seen)


def entries(found: metadata.Distribution) -> Iterator[Path]:
    """What it has in site-packages: its packages and modules, and its own description."""
    names = {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
    yield from (Path(str(found.locate_file(name))) for name in sorted(names) if "__" not in name)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the package, what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("plain")
    venv.EnvBuilder(symlinks=True).create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    found: dict[str, metadata.Distribution] = {}
    declared("hami-node", found)
    for each in found.values():
        for path in entries(each):
            target = packages / path.name
            if not target.exists() and path.exists() and path.suffix != ".pth":
                target.symlink_to(path)
    if not (packages / "hami_node").exists():  # installed as editable
        (packages / "hami_node").symlink_to(ROOT / "hami_node")
    return folder / "bin" / "python"


def call(python: Path, *args: str, script: str = "hami_node.cli.main:main") -> tuple[int, str]:
    """Run a command as its console script does; its exit code and what it said."""
    module, _, function = script.partition(":")
    code = f"import sys; from {module} import {function} as main; sys.exit(main())"
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(python.parent),
        "KUBECONFIG": str(python.parent / "kubeconfig"),
    }
    done = subprocess.run(
        [str(python), "-c", code, *args],
        env=env,
        capture_output=True,
        text=True,
        cwd=python.parent,
        timeout=100,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(NEEDS_EXTENDER))
def test_command_that_needs_more_says_in_one_line_what_to_install(python: Path, name: str) -> None:
    code, said = call(python, name, *NEEDS_EXTENDER[name])
    assert code == 1
    (line,) = said.splitlines()
    assert re.fullmatch(
        r"error: the Python package \w+ is missing: pip install '\.\[extender\]' "
        r"in a checkout of hami-node, or use its image",
        line,
    )


@pytest.mark.parametrize("name", sorted(set(main.commands) - set(NEEDS_EXTENDER)))
def test_command_works_without_extras(python: Path, name: str) -> None:
    code, said = call(python, name, *WORKS.get(name, ()))
    assert code in (0, 1, 2, 3)
    assert "Traceback" not in said
    assert said


@pytest.mark.parametrize("name", sorted(kubectl.main.commands))
def test_kubectls_command_works_without_extras(python: Path, name: str) -> None:
    code, said = call(python, name, *KUBECTL.get(name, ()), script=SCRIPTS["kubectl-hami"])
    assert code in (0, 1, 2, 3)
    assert "Traceback" not in said
    assert said


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_console_script_shows_its_help(python: Path, script: str) -> None:
    code, said = call(python, "--help", script=SCRIPTS[script])
    assert code == 0
    assert script.startswith("kubectl_complete-") or "Usage:" in said
    assert "Traceback" not in said


def test_plain_environment_has_none_of_the_extras(python: Path) -> None:
    done = subprocess.run(
        [str(python), "-c", "import uvicorn"], capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError" in done.stderr


def test_packages_of_extras_are_called_like_their_modules() -> None:
    for line in metadata.requires("hami-node") or ():
        required = Requirement(line)
        if required.marker and not required.marker.evaluate({"extra": ""}):
            error = ModuleNotFoundError(name=required.name.replace("-", "_") + ".inner")
            assert "pip install '.[" in str(missing_package(error))


def test_missing_module_of_our_own_is_no_matter_of_installing() -> None:
    for name in ("hami_node.gone", "", None):
        assert missing_package(ModuleNotFoundError(name=name)) is None
