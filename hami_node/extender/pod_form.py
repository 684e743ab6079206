"""A pod as a user sent it: what the rules read, and where changes to it belong.

Changes are JSON patch operations (RFC 6902) on the object as it came, never a pod that was read
and written again: fields that this program does not know stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.model import Container, ContainerKind, Pod
from hami_node.wire.objects import decode_pod

LONGEST_SHOWN: Final = 80
"""Characters of a user's text that a sentence repeats."""


class Operation(msgspec.Struct, frozen=True):
    """One step of a JSON patch; `path` is an escaped JSON pointer."""

    op: str
    path: str
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    """One entry of a container's environment; `value` is None where it comes from elsewhere."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerForm:
    """A container with what a patch has to know: its place, and which parents are there.

    Attributes:
        path: JSON pointer to the container.
        container: its quantities and role.
        env: its environment in order; None where the list itself is missing.
        has_limits: `resources.limits` is there, perhaps empty.
        has_requests: `resources.requests` is there, perhaps empty.
    """

    path: str
    container: Container
    env: tuple[EnvVar, ...] | None
    has_limits: bool
    has_requests: bool

    @property
    def title(self) -> str:
        """How sentences name it."""
        role = "container" if self.container.kind is ContainerKind.APP else "init container"
        return f"{role} {shown(self.container.name)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodForm:
    """A pod that waits for admission; `containers` are in the order of `pod.containers`."""

    pod: Pod
    containers: tuple[ContainerForm, ...]
    runtime_class_name: str = ""


class _Env(msgspec.Struct, rename="camel"):
    name: str | None = None
    value: str | None = None
    value_from: msgspec.Raw = msgspec.Raw()


class _Resources(msgspec.Struct):
    limits: dict[str, msgspec.Raw] | None = None
    requests: dict[str, msgspec.Raw] | None = None


class _Container(msgspec.Struct):
    env: list[_Env] | None = None
    resources: _Resources | None = None


class _Spec(msgspec.Struct, rename="camel"):
    init_containers: list[_Container] | None = None
    containers: list[_Container] | None = None
    runtime_class_name: str | None = None


class _Pod(msgspec.Struct):
    spec: _Spec | None = None


_POD: Final = msgspec.json.Decoder(_Pod)


def read_form(raw: bytes) -> PodForm:
    """Read a pod as it was sent.

    Raises:
        WireError: not JSON, or a field of the wrong kind; the text names the field.
    """
    pod = decode_pod(raw)
    try:
        spec = _POD.decode(raw).spec or _Spec()
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError("pod", str(error), "can't be read") from error
    inits = [(f"/spec/initContainers/{i}", one) for i, one in enumerate(spec.init_containers or ())]
    apps = [(f"/spec/containers/{i}", one) for i, one in enumerate(spec.containers or ())]
    pairs = zip((*inits, *apps), pod.containers, strict=True)
    return PodForm(
        pod=pod,
        containers=tuple(_form_of(path, raw_one, read) for (path, raw_one), read in pairs),
        runtime_class_name=spec.runtime_class_name or "",
    )


def _form_of(path: str, raw: _Container, container: Container) -> ContainerForm:
    resources = raw.resources or _Resources()
    env = None if raw.env is None else tuple(_env_var(one) for one in raw.env)
    return ContainerForm(
        path=path,
        container=container,
        env=env,
        has_limits=resources.limits is not None,
        has_requests=resources.requests is not None,
    )


def _env_var(raw: _Env) -> EnvVar:
    is_literal = bytes(raw.value_from) in (b"", b"null")
    return EnvVar(name=raw.name or "", value=(raw.value or "") if is_literal else None)


def spec_operation(field: str, value: str) -> Operation:
    """Set a field of the pod's spec."""
    return Operation(op="add", path=f"/spec/{escaped(field)}", value=value)


def quantity_operations(form: ContainerForm, added: Mapping[str, str]) -> Iterator[Operation]:
    """Add quantities to the limits, and to the requests where there are any.

    Kubernetes wants both equal for extended resources, and copies limits to missing requests.
    """
    parent = f"{form.path}/resources"
    if added and not form.has_limits:
        yield Operation(op="add", path=f"{parent}/limits", value=dict(added))
    for block, is_there in (("limits", form.has_limits), ("requests", form.has_requests)):
        for name, quantity in added.items():
            if is_there:
                yield Operation(op="add", path=f"{parent}/{block}/{escaped(name)}", value=quantity)


def env_operations(form: ContainerForm, wanted: Mapping[str, str]) -> Iterator[Operation]:
    """Give variables these values: entries of that name are replaced, else one is appended."""
    present = form.env or ()
    for i, var in enumerate(present):
        if var.name in wanted and var.value != wanted[var.name]:
            entry = {"name": var.name, "value": wanted[var.name]}
            yield Operation(op="replace", path=f"{form.path}/env/{i}", value=entry)
    known = {var.name for var in present}
    new = [{"name": name, "value": text} for name, text in wanted.items() if name not in known]
    if new and form.env is None:
        yield Operation(op="add", path=f"{form.path}/env", value=new)
        return
    for entry in new:
        yield Operation(op="add", path=f"{form.path}/env/-", value=entry)


def escaped(step: str) -> str:
    """One step of a JSON pointer (RFC 6901)."""
    return step.replace("~", "~0").replace("/", "~1")


def shown(text: str) -> str:
    """A user's text as a sentence may repeat it: short, and in quotes unless it is a plain word."""
    cut = text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."
    is_plain = cut.isascii() and cut.isprintable() and " " not in cut and cut != ""
    return cut if is_plain else repr(cut)
