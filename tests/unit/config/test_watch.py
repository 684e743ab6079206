from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from hami_node.clock import Waitable
from hami_node.config.watch import ConfigWatch
from tests.fakes.clock import RealClock
from tests.fakes.waiting import eventually
from tests.reliability import shows


@contextmanager
def running(watch: ConfigWatch) -> Iterator[None]:
    """Runs a watch in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=watch.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        watch.wake()
        thread.join(10.0)
        assert not thread.is_alive()


@contextmanager
def watching(*paths: Path) -> Iterator[Callable[[], int]]:
    """Runs a watch; yields how often it reported a change."""
    calls: list[int] = []
    with running(ConfigWatch(paths, lambda: calls.append(1), clock=RealClock())):
        yield lambda: len(calls)


def rewrite(path: Path) -> None:
    path.write_text("new", encoding="utf-8")


def replace_by_rename(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("new", encoding="utf-8")
    other.replace(path)


def remove(path: Path) -> None:
    path.unlink()


def swap_link(path: Path) -> None:
    """As kubelet does with the files of a ConfigMap: a link to a folder is replaced."""
    for name in ("v1", "v2"):
        (path.parent / name).mkdir()
        (path.parent / name / "file").write_text(name, encoding="utf-8")
    path.unlink()
    data = path.parent / "..data"
    data.symlink_to("v1")
    path.symlink_to("..data/file")
    new = path.parent / "..new"
    new.symlink_to("v2")
    new.replace(data)


@pytest.mark.parametrize("change", [rewrite, replace_by_rename, remove, swap_link])
def test_file_changed_in_any_way_is_told(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("old", encoding="utf-8")
    with watching(path) as changes:
        change(path)
        eventually(lambda: changes() >= 1)


def test_file_changed_before_the_thread_runs_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("old", encoding="utf-8")
    changes, stop = threading.Event(), threading.Event()
    watch = ConfigWatch((path,), changes.set, clock=RealClock())
    rewrite(path)
    thread = threading.Thread(target=watch.run, args=(stop,))
    thread.start()
    assert changes.wait(10.0)
    stop.set()
    watch.wake()
    thread.join(10.0)


def test_same_content_and_other_files_are_no_change(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("old", encoding="utf-8")
    with watching(path) as changes:
        path.write_text("old", encoding="utf-8")
        (tmp_path / "other").write_text("x", encoding="utf-8")
        rewrite(path)
        eventually(lambda: changes() == 1)


class Steps(RealClock):
    """Does one step instead of each wait, and ends the watch after the last one."""

    def __init__(self, stop: threading.Event, *steps: Callable[[], object]) -> None:
        self._stop, self._steps = stop, list(steps)

    def wait(self, event: Waitable, seconds: float | None) -> bool:
        del event, seconds
        if self._steps:
            self._steps.pop(0)()
        else:
            self._stop.set()
        return False


def test_file_that_is_written_in_steps_is_read_once_it_stays(tmp_path: Path) -> None:
    path, stop, read = tmp_path / "config.yaml", threading.Event(), list[str]()
    path.write_text("old", encoding="utf-8")
    texts = ("n", "ne", "new", "new", "new")
    steps = Steps(stop, *(partial(path.write_text, text) for text in texts))
    ConfigWatch((path,), lambda: read.append(path.read_text()), clock=steps).run(stop)
    assert read == ["new"]


@shows(
    "N12",
    fault="SIGHUP and a changed file at once, and the reload for one of them is slow",
    happens="the reloads follow each other; what the file says last is in force",
)
def test_request_and_change_at_once_end_in_the_last_content(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("old", encoding="utf-8")
    in_force: list[str] = []
    at_work, go_on = threading.Event(), threading.Event()
    running_now: list[int] = []

    def reload() -> None:
        running_now.append(1)
        assert len(running_now) == 1, "two reloads at once"
        found = path.read_text(encoding="utf-8")
        at_work.set()
        assert go_on.wait(10.0)
        in_force.append(found)
        running_now.clear()

    watch = ConfigWatch((path,), reload, clock=RealClock())
    with running(watch):
        watch.request()
        assert at_work.wait(10.0)
        replace_by_rename(path)  # read already: the old content
        watch.request()
        go_on.set()
        eventually(lambda: in_force[-1:] == ["new"])
    assert in_force[0] == "old"
    assert in_force[-1] == "new"


def test_change_that_could_not_be_applied_is_tried_again_and_costs_no_request(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    calls: list[str] = []

    def fail() -> None:
        calls.append("change")
        if len(calls) < 3:
            raise ValueError("not now")

    watch = ConfigWatch([path], fail, lambda: calls.append("request"), clock=RealClock())
    path.write_text("new")
    watch.look()
    with pytest.raises(ValueError, match="not now"):
        watch.look()
    watch.request()
    with pytest.raises(ValueError, match="not now"):
        watch.look()
    watch.look()
    watch.look()
    assert calls == ["change", "change", "request", "change"]


def test_change_that_failed_and_was_taken_back_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    read: list[str] = []

    def apply() -> None:
        read.append(path.read_text())
        if read == ["new"]:
            raise ValueError("not now")

    watch = ConfigWatch([path], apply, clock=RealClock())
    path.write_text("new")
    watch.look()
    with pytest.raises(ValueError, match="not now"):
        watch.look()
    path.write_text("old")
    for _ in range(3):
        watch.look()
    assert read == ["new", "old"]
