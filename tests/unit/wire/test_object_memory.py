"""What a decoded pod leaves behind once it is gone: whoever may create pods decides its texts."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from tests.fakes.kept import kept_bytes

_LONG = 20_000
_PODS = 200


def _pod(number: int, **of_container: Any) -> dict[str, Any]:
    container = {"name": "c0", **of_container}
    return {"metadata": {"name": f"p{number}"}, "spec": {"containers": [container]}}


def _text(number: int) -> str:
    return f"{number:06d}" + "X" * _LONG


def _env_name(number: int) -> dict[str, Any]:
    return _pod(number, env=[{"name": f"A{_text(number)}", "value": "1"}])


def _kept_env_name(number: int) -> dict[str, Any]:
    return _pod(number, env=[{"name": f"CUDA_{_text(number)}", "value": "1"}])


def _label(number: int) -> dict[str, Any]:
    pod = _pod(number)
    return {**pod, "metadata": {"name": "p", "labels": {"team": _text(number)}}}


def _time(number: int) -> dict[str, Any]:
    pod = _pod(number)
    return {**pod, "metadata": {"name": "p", "annotations": {names.POD_TIME: _text(number)}}}


def _limit(number: int) -> dict[str, Any]:
    return _pod(number, resources={"limits": {"nvidia.com/gpu": _text(number)}})


def _resource(number: int) -> dict[str, Any]:
    return _pod(number, resources={"limits": {f"example.com/{_text(number)}": "1"}})


def _container_name(number: int) -> dict[str, Any]:
    return _pod(number, name=_text(number))


def _remembered_bytes() -> int:
    """Size of the constants and caches of everything that decodes."""
    decoding = [m for name, m in sys.modules.items() if name.startswith("hami_node.wire")]
    return kept_bytes(*map(vars, decoding))


@pytest.mark.parametrize(
    "body", [_env_name, _kept_env_name, _label, _time, _limit, _resource, _container_name]
)
def test_long_texts_do_not_outlive_their_pod(body: Any) -> None:
    """A webhook is shown them before the API server refuses them; names of variables it accepts."""
    texts = [json.dumps(body(number)).encode() for number in range(_PODS)]
    before = _remembered_bytes()
    for text in texts:
        decode_pod(text)
    assert _remembered_bytes() - before < _PODS * _LONG / 10
