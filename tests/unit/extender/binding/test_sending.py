"""Bindings that carry their reservation end before another replica can lead."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from hami_node.errors import Conflict, KubeError
from hami_node.extender.binding.sending import Sending
from hami_node.model import Pod
from tests.fakes.extender_kube import FakeExtenderKube

_POD = Pod(uid="u1", namespace="ns", name="p", resource_version="7")


class _Kube(FakeExtenderKube):
    """Answers when it is let to; `error` is raised instead."""

    def __init__(self, error: KubeError | None = None) -> None:
        super().__init__()
        self.binding_limits: list[float | None] = []
        self.arrived, self.may_answer = threading.Event(), threading.Event()
        self.error = error

    def bind_pod(
        self,
        pod: Pod,
        node_name: str,
        annotations: Mapping[str, str],
        within_s: float | None = None,
    ) -> None:
        self.binding_limits.append(within_s)
        self.arrived.set()
        self.may_answer.wait(30)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(("is_carried", "limit"), [(True, 2.5), (False, None)])
def test_only_what_nobody_else_can_see_has_to_end_with_the_lease(
    is_carried: bool, limit: float | None
) -> None:
    kube = _Kube()
    kube.may_answer.set()
    Sending(lambda: 2.5).bind(kube, _POD, "n0", {}, is_carried=is_carried)
    assert kube.binding_limits == [limit]


@pytest.mark.parametrize("error", [None, KubeError("gone away")])
def test_the_lease_waits_for_a_binding_that_is_under_way(error: KubeError | None) -> None:
    kube, sending = _Kube(error), Sending(lambda: 2.5)

    def bind() -> None:
        try:
            sending.bind(kube, _POD, "n0", {}, is_carried=True)
        except KubeError:
            assert error is not None

    thread = threading.Thread(target=bind)
    thread.start()
    assert kube.arrived.wait(30)
    assert not sending.wait(0.05)
    kube.may_answer.set()
    assert sending.wait(30)
    thread.join()


def test_the_lease_waits_for_a_binding_that_was_not_answered_as_long_as_it_may_be_stored() -> None:
    kube, sending = _Kube(KubeError("the connection broke")), Sending(lambda: 0.5)
    kube.may_answer.set()
    began = time.monotonic()
    with pytest.raises(KubeError):
        sending.bind(kube, _POD, "n0", {}, is_carried=True)
    assert not sending.wait(0.01), "the API server may be working on it still"
    assert sending.wait(30)
    assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize("error", [KubeError("busy", 429), Conflict("changed", 409)])
def test_the_lease_does_not_wait_for_a_binding_that_was_refused(error: KubeError) -> None:
    kube, sending = _Kube(error), Sending(lambda: 600.0)
    kube.may_answer.set()
    with pytest.raises(KubeError):
        sending.bind(kube, _POD, "n0", {}, is_carried=True)
    assert sending.wait(0.0)
