"""A pod as a user sent it: what the rules read, and where changes to it belong.

Changes are JSON patch operations (RFC 6902) on the object as received, never a decoded and encoded
pod: fields that this program does not know stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.extender.caller_limits import check_pod
from hami_node.model import Container, ContainerKind, Pod
from hami_node.text import shown
from hami_node.vendors.admission import EnvVar
from hami_node.wire.objects import decode_pod
from hami_node.wire.values import pointer


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a JSON patch; `path` is an escaped JSON pointer."""

    op: str
    path: str
    value: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerForm:
    """A container with what a patch needs: its path, and which parents exist.

    Attributes:
        path: JSON pointer to the container.
        container: its quantities and role.
        env: its environment in order; None where the list itself is missing.
        has_limits: `resources.limits` exists, perhaps empty.
        has_requests: `resources.requests` exists, perhaps empty.
    """

    path: str
    container: Container
    env: tuple[EnvVar, ...] | None
    has_limits: bool
    has_requests: bool

    @property
    def title(self) -> str:
        """Its name in messages."""
        role = "container" if self.container.kind is ContainerKind.APP else "init container"
        return f"{role} {shown(self.container.name)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodForm:
    """A pod under admission; `containers` are in the order of `pod.containers`."""

    pod: Pod
    containers: tuple[ContainerForm, ...]
    runtime_class_name: str = ""


class _EnvShape(msgspec.Struct, rename="camel"):
    name: str | None = None
    value: str | None = None
    value_from: msgspec.Raw = msgspec.Raw()


class _ResourcesShape(msgspec.Struct):
    limits: dict[str, msgspec.Raw] | None = None
    requests: dict[str, msgspec.Raw] | None = None


class _ContainerShape(msgspec.Struct):
    env: list[_EnvShape] | None = None
    resources: _ResourcesShape | None = None


class _SpecShape(msgspec.Struct, rename="camel"):
    init_containers: list[_ContainerShape] | None = None
    containers: list[_ContainerShape] | None = None
    runtime_class_name: str | None = None


class _PodShape(msgspec.Struct):
    spec: _SpecShape | None = None


_POD: Final = msgspec.json.Decoder(_PodShape)


def read_form(raw: bytes) -> PodForm:
    """Read a pod as it was sent.

    Raises:
        WireError: not JSON, or a field of the wrong kind; the text names the field.
    """
    pod = decode_pod(raw)
    check_pod(pod)
    try:
        spec = _POD.decode(raw).spec or _SpecShape()
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError("pod", str(error), "can't be read") from error
    inits, apps = spec.init_containers or (), spec.containers or ()
    paths = [f"/spec/initContainers/{i}" for i in range(len(inits))]
    paths += [f"/spec/containers/{i}" for i in range(len(apps))]
    triples = zip(paths, (*inits, *apps), pod.containers, strict=True)
    return PodForm(
        pod=pod,
        containers=tuple(_form_of(path, shape, container) for path, shape, container in triples),
        runtime_class_name=spec.runtime_class_name or "",
    )


def _form_of(path: str, raw: _ContainerShape, container: Container) -> ContainerForm:
    resources = raw.resources or _ResourcesShape()
    env = None if raw.env is None else tuple(map(_env_var, raw.env))
    return ContainerForm(
        path=path,
        container=container,
        env=env,
        has_limits=resources.limits is not None,
        has_requests=resources.requests is not None,
    )


def _env_var(raw: _EnvShape) -> EnvVar:
    is_literal = bytes(raw.value_from) in (b"", b"null")
    return EnvVar(name=raw.name or "", value=(raw.value or "") if is_literal else None)


def spec_operation(field: str, value: str) -> Operation:
    """Set a field of the pod's spec."""
    return Operation(op="add", path=pointer("spec", field), value=value)


def quantity_operations(form: ContainerForm, added: Mapping[str, str]) -> Iterator[Operation]:
    """Add quantities to the limits, and to the requests where they exist.

    Kubernetes requires both to be equal for extended resources, and copies limits to missing
    requests.
    """
    parent = f"{form.path}/resources"
    if added and not form.has_limits:
        yield Operation(op="add", path=f"{parent}/limits", value=dict(added))
    for block, is_present in (("limits", form.has_limits), ("requests", form.has_requests)):
        for name, quantity in added.items():
            if is_present:
                yield Operation(op="add", path=parent + pointer(block, name), value=quantity)


def env_operations(
    form: ContainerForm, wanted: Mapping[str, str], unwanted: Collection[str] = ()
) -> Iterator[Operation]:
    """Set variables to these values: entries of that name are replaced, missing ones appended.

    Entries with an unwanted name are removed, the last one first, so that the others keep their
    places.
    """
    present = form.env or ()
    for i, var in enumerate(present):
        if var.name in wanted and var.value != wanted[var.name]:
            entry = {"name": var.name, "value": wanted[var.name]}
            yield Operation(op="replace", path=f"{form.path}/env/{i}", value=entry)
    for i, var in reversed(tuple(enumerate(present))):
        if var.name in unwanted:
            yield Operation(op="remove", path=f"{form.path}/env/{i}")
    known = {var.name for var in present}
    new = [{"name": name, "value": text} for name, text in wanted.items() if name not in known]
    if new and form.env is None:
        yield Operation(op="add", path=f"{form.path}/env", value=new)
        return
    for entry in new:
        yield Operation(op="add", path=f"{form.path}/env/-", value=entry)
