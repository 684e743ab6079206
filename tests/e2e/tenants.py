"""Programs that hold card memory inside containers, and are told how much by the test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.e2e.api import Api
from tests.e2e.machine import NODE_DIR
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.waiting import eventually
from tests.fakes.tenant import ask, build_tenant

FOLDER: Final = NODE_DIR / "tenants"
INSIDE: Final = "/tenants"


def install() -> None:
    """Put the program on the node."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    build_tenant(FOLDER / "tenant")


def tenant(
    name: str,
    *,
    memory_mib: int,
    cores: int | None = None,
    container: str = "c0",
    env: Mapping[str, str] = MappingProxyType({}),
) -> RealContainer:
    """A container that runs the program; `name` is that of its control file."""
    control(name).unlink(missing_ok=True)
    return RealContainer(
        name=container,
        cards=1,
        memory_mib=memory_mib,
        cores=cores,
        env=env,
        script=f"exec {INSIDE}/tenant {INSIDE}/{name}",
        folders={INSIDE: str(FOLDER)},
    )


def control(name: str) -> Path:
    """The file that tells a tenant what to do."""
    return FOLDER / name


def hold(name: str, mib: int, *, launches: bool = False) -> None:
    """Tell a tenant what to hold."""
    ask(control(name), mib, launches=launches)


def wait_limit(api: Api, pod: str, mib: int, container: str = "c0") -> None:
    """Wait until the limit that the program spoke of last is this."""

    def probe() -> bool:
        said = _said(api, pod, container)
        assert said
        assert said[-1].split()[-1] == str(mib), said[-5:]
        return True

    eventually(f"{pod} has the limit {mib}", probe)


def wait_said(api: Api, pod: str, line: str, container: str = "c0") -> None:
    """Wait until the program's last word is this line."""

    def probe() -> bool:
        said = _said(api, pod, container)
        assert said[-1:] == [line], said[-5:]
        return True

    eventually(f"{pod} says {line}", probe)


def wait_word(api: Api, pod: str, word: str, container: str = "c0") -> None:
    """Wait until the program's last word about its launches is `runs` or `waits`."""

    def probe() -> bool:
        lines = api.text(f"{Pods.path}/{pod}/log", container=container).splitlines()
        said = [line for line in lines if line in ("runs", "waits")]
        assert said[-1:] == [word], lines[-5:]
        return True

    eventually(f"{pod} {word}", probe)


def _said(api: Api, pod: str, container: str) -> list[str]:
    """The lines about limits and memory."""
    log = api.text(f"{Pods.path}/{pod}/log", container=container).split("---\n")[-1]
    return [line for line in log.splitlines() if line not in ("runs", "waits")]
