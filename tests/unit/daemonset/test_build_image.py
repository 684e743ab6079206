"""daemonset/build-image, with a program in the tool's place that says what it was told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hami_node import __version__

SCRIPT = Path(__file__).parents[3] / "daemonset/build-image"
DIGEST = f"sha256:{'5' * 64}"


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """Prints its arguments, one call a line."""
    made = tmp_path / "buildah"
    made.write_text('#!/bin/sh\nprintf "<%s>" "$@"; echo\n')
    made.chmod(0o755)
    return made


def calls(tool: Path, *args: str, **settings: str) -> list[list[str]]:
    """What the tool is told, call by call."""
    given = {"PATH": os.environ["PATH"], "IMAGE_TOOL": str(tool), **settings}
    done = subprocess.run(
        [str(SCRIPT), *args], capture_output=True, text=True, env=given, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [
        line.strip("<>").split("><") for line in done.stdout.splitlines() if line.startswith("<")
    ]


def told(build: list[str]) -> dict[str, str]:
    """The build's arguments."""
    given = [build[at + 1] for at, word in enumerate(build) if word == "--build-arg"]
    return dict(each.split("=", 1) for each in given)


def test_image_is_named_after_the_version_and_built_for_this_machine(tool: Path) -> None:
    (build,) = calls(tool, SOURCE_DATE_EPOCH="1700000000")
    assert build[build.index("--tag") + 1] == f"hami-node:{__version__}"
    assert build[build.index("--timestamp") + 1] == "1700000000"
    assert "--no-cache" in build
    given = told(build)
    assert given["CREATED"] == "2023-11-14T22:13:20Z"
    assert given["VERSION"] == __version__
    assert build[build.index("--platform") + 1] == given["BUILDPLATFORM"]


def test_base_by_digest_is_told_in_the_labels(tool: Path) -> None:
    base = "registry.example.org:5000/python:3.11-slim"
    given = told(calls(tool, PYTHON_IMAGE=f"{base}@{DIGEST}", SOURCE="https://example.org/x")[0])
    assert given["PYTHON_IMAGE"] == f"{base}@{DIGEST}"
    assert given["BASE_NAME"] == base
    assert given["BASE_DIGEST"] == DIGEST
    assert given["SOURCE"] == "https://example.org/x"
    assert told(calls(tool)[0])["BASE_DIGEST"] == ""


def test_two_platforms_are_one_list_and_one_archive(tool: Path, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    *builds, push = calls(
        tool,
        *("example.org/hami-node:1", "--network", "host"),
        PLATFORMS="linux/amd64,linux/arm64",
        ARCHIVE=str(archive),
    )
    platforms = [build[build.index("--platform") + 1] for build in builds]
    assert platforms == ["linux/amd64", "linux/arm64"], "in the order of the list, always"
    for build in builds:
        assert build[build.index("--manifest") + 1] == "example.org/hami-node:1"
        assert build[build.index("--network") + 1] == "host"
        assert "--tag" not in build
    assert push == [
        "manifest",
        "push",
        "--all",
        "example.org/hami-node:1",
        f"oci-archive:{archive}",
    ]


def test_without_a_tool_that_is_said(tmp_path: Path) -> None:
    for name in ("dirname", "sed", "uname", "date", "git"):
        found = next(p for p in map(Path, os.environ["PATH"].split(":")) if (p / name).exists())
        (tmp_path / name).symlink_to(found / name)
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT)],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "install one of them" in done.stderr
