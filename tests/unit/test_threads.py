"""A thread that dies ends the process; one that hangs is named."""

import threading

import pytest

from hami_node.threads import GuardedThreads

LIMIT_S = 10.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_ends_the_others_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    threads = GuardedThreads(stop)

    def die() -> None:
        raise ValueError("broken")

    threads.start("steady", lambda: _wait(stop))
    threads.start("broken", die)
    assert stop.wait(LIMIT_S)
    threads.join(LIMIT_S)

    assert threads.died == "broken"
    assert not any(thread.is_alive() for thread in threads.running)
    assert "thread_died" in caplog.messages


def test_threads_that_end_by_themselves_end_nothing_else() -> None:
    stop = threading.Event()
    threads = GuardedThreads(stop)

    threads.start("brief", lambda: None)
    threads.join(LIMIT_S)

    assert (threads.died, stop.is_set()) == ("", False)


def test_join_names_a_thread_that_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    threads = GuardedThreads(threading.Event())

    threads.start("stuck", lambda: _wait(release))
    threads.join(0.05)
    release.set()
    threads.join(LIMIT_S)

    late = [record for record in caplog.records if record.getMessage() == "threads_left"]
    assert [record.__dict__["kv"] for record in late] == [{"threads": ["stuck"]}]


def _wait(event: threading.Event) -> None:
    event.wait(LIMIT_S)
