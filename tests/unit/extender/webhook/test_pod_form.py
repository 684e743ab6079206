"""Where changes to a pod belong."""

from __future__ import annotations

import json

import pytest

from hami_node.errors import WireError
from hami_node.extender.webhook.pod_form import (
    ContainerForm,
    env_operations,
    quantity_operations,
    read_form,
)
from hami_node.model import Container, ContainerKind
from hami_node.vendors.admission import EnvVar


def form(
    env: tuple[EnvVar, ...] | None = None, *, has_limits: bool = True, has_requests: bool = False
) -> ContainerForm:
    return ContainerForm(
        path="/spec/containers/3",
        container=Container(name="a"),
        env=env,
        has_limits=has_limits,
        has_requests=has_requests,
    )


@pytest.mark.parametrize(
    ("has_limits", "has_requests", "expected"),
    [
        (True, True, [("limits/x.io~1y", "1"), ("requests/x.io~1y", "1")]),
        (True, False, [("limits/x.io~1y", "1")]),
        (False, True, [("limits", {"x.io/y": "1"}), ("requests/x.io~1y", "1")]),
        (False, False, [("limits", {"x.io/y": "1"})]),
    ],
    ids=["both", "limits", "requests", "neither"],
)
def test_quantity_operations_make_missing_limits_never_requests(
    has_limits: bool, has_requests: bool, expected: list[tuple[str, object]]
) -> None:
    sent = form(has_limits=has_limits, has_requests=has_requests)
    found = list(quantity_operations(sent, {"x.io/y": "1"}))
    assert [(step.path, step.value) for step in found] == [
        (f"/spec/containers/3/resources/{path}", value) for path, value in expected
    ]
    assert {step.op for step in found} == {"add"}
    assert list(quantity_operations(sent, {})) == []


def test_env_operations_replace_every_entry_of_the_name_and_append_the_rest() -> None:
    env = (
        EnvVar(name="A", value="1"),
        EnvVar(name="B", value="2"),
        EnvVar(name="A", value=None),
        EnvVar(name="A", value="9"),
    )
    found = list(env_operations(form(env), {"A": "9", "C": "3"}))
    assert [(step.op, step.path) for step in found] == [
        ("replace", "/spec/containers/3/env/0"),
        ("replace", "/spec/containers/3/env/2"),
        ("add", "/spec/containers/3/env/-"),
    ]
    assert found[-1].value == {"name": "C", "value": "3"}


def test_env_operations_make_a_missing_list_once() -> None:
    (step,) = env_operations(form(None), {"A": "1", "B": "2"})
    assert (step.op, step.path) == ("add", "/spec/containers/3/env")
    assert step.value == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]


def test_read_form_numbers_init_containers_and_containers_apart() -> None:
    spec = {
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "env": [], "resources": {"limits": {}}}],
        "runtimeClassName": "kata",
    }
    found = read_form(json.dumps({"spec": spec}).encode())
    assert [(item.path, item.container.kind) for item in found.containers] == [
        ("/spec/initContainers/0", ContainerKind.INIT),
        ("/spec/initContainers/1", ContainerKind.SIDECAR),
        ("/spec/containers/0", ContainerKind.APP),
    ]
    assert [item.title for item in found.containers] == [
        "init container i",
        "init container s",
        "container a",
    ]
    app = found.containers[2]
    assert (app.env, app.has_limits, app.has_requests) == ((), True, False)
    assert found.runtime_class_name == "kata"


def test_read_form_names_the_field_of_the_wrong_kind() -> None:
    with pytest.raises(WireError, match="env"):
        read_form(b'{"spec":{"containers":[{"name":"a","env":"x"}]}}')
    with pytest.raises(WireError, match="runtimeClassName"):
        read_form(b'{"spec":{"runtimeClassName":3}}')
