"""The image, built for two architectures without a registry: small, and always the same."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hami_node import __version__
from tests.e2e.assets import ROOTFS
from tests.e2e.product_image import run_build, run_buildah
from tests.image_archive import ImageArchive

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_long, pytest.mark.timeout(1800)]

BASE: Final = "localhost/python-of-two:test"
IMAGE: Final = "localhost/hami-node:two"
EPOCH: Final = "1700000000"
MAX_MB: Final = 120
MACHINES: Final = {"amd64": b"\x3e\x00", "arm64": b"\xb7\x00"}
"""How ELF files name them, in bytes 18 and 19."""


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[ImageArchive, ImageArchive]]:
    """The image, built twice from the same sources."""
    with tempfile.TemporaryDirectory() as folder:
        scratch, storage = Path(folder), Path(folder, "storage")
        run_buildah(storage, "manifest", "create", BASE)
        for machine in MACHINES:
            container = run_buildah(storage, "from", "--arch", machine, "scratch").strip()
            if machine == "amd64":  # nothing of the other base may run, so it may be empty
                run_buildah(storage, "add", "-q", container, str(ROOTFS), "/")
            run_buildah(storage, "config", "--arch", machine, "--os", "linux", container)
            run_buildah(storage, "commit", "-q", "--rm", container, f"{BASE}-{machine}")
            run_buildah(storage, "manifest", "add", BASE, f"{BASE}-{machine}")
        archives = [scratch / f"{number}.tar" for number in (1, 2)]
        for archive in archives:
            run_build(
                IMAGE,
                storage,
                scratch,
                PYTHON_IMAGE=BASE,
                PLATFORMS="linux/amd64,linux/arm64",
                ARCHIVE=str(archive),
                SOURCE="https://example.org/hami-node",
                SOURCE_DATE_EPOCH=EPOCH,
            )
        yield ImageArchive(archives[0]), ImageArchive(archives[1])


def test_two_builds_have_one_digest(built: tuple[ImageArchive, ImageArchive]) -> None:
    assert built[0].digest == built[1].digest


def test_each_architecture_holds_programs_of_its_own_only(
    built: tuple[ImageArchive, ImageArchive],
) -> None:
    images = built[0].images()
    assert set(images) == set(MACHINES)
    for machine, manifest in images.items():
        programs = {
            content[18:20]
            for _, content in built[0].files(manifest["layers"][-1], lambda it: it.isfile())
            if content[:4] == b"\x7fELF"
        }
        assert programs == {MACHINES[machine]}


def test_our_layer_is_small_and_of_one_time(built: tuple[ImageArchive, ImageArchive]) -> None:
    for manifest in built[0].images().values():
        members = [it for it, _ in built[0].files(manifest["layers"][-1], lambda _: True)]
        assert sum(member.size for member in members) < MAX_MB * 1e6
        assert {member.mtime for member in members} == {int(EPOCH)}
        assert any(member.name.endswith("bin/hami-node") for member in members)


def test_labels_say_what_it_is_and_it_does_not_run_as_root(
    built: tuple[ImageArchive, ImageArchive],
) -> None:
    for manifest in built[0].images().values():
        config = built[0].read(manifest["config"]["digest"])["config"]
        labels = {
            key.removeprefix("org.opencontainers.image."): text
            for key, text in config["Labels"].items()
        }
        assert labels["version"] == __version__
        assert labels["created"] == "2023-11-14T22:13:20Z"
        assert labels["source"] == "https://example.org/hami-node"
        assert labels["base.name"] == BASE
        assert {"title", "description", "licenses", "revision", "url", "vendor"} <= labels.keys()
        assert config["User"] == "65532:65532"
