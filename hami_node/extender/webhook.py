"""The admission webhook: one AdmissionReview in, the same with its response out. Pure.

A pod that asks for none of our devices is returned unchanged. See docs/extender.md. Changes are
JSON patch operations (RFC 6902) on the object as received, never a decoded and encoded pod: fields
that this program does not know stay as they are.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from hami_node.config.settings import NodePolicy, Settings
from hami_node.engine import ranking
from hami_node.errors import WireError
from hami_node.extender.caller_limits import check_pod
from hami_node.model import Ask, Container, ContainerKind, Pod, Vendor
from hami_node.text import cut_to_bytes, shown
from hami_node.vendors.admission import EnvVar, VendorAdmission
from hami_node.vendors.holding import reservation_keys
from hami_node.vendors.spec import AnyVendor, admissions_of
from hami_node.wire import names
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRules:
    """The rules of one review.

    Attributes:
        vendors: what is checked and written for each vendor's cards.
        scheduler_name: the scheduler that assigns devices.
        takes_default_scheduler: pods that name `default-scheduler` are taken over.
    """

    vendors: tuple[VendorAdmission, ...]
    scheduler_name: str = "hami-scheduler"
    takes_default_scheduler: bool = True


def webhook_rules_of(settings: Settings, vendors: Sequence[AnyVendor]) -> WebhookRules:
    """The webhook's part of the settings."""
    return WebhookRules(
        vendors=admissions_of(vendors, settings),
        scheduler_name=settings.scheduler_name,
        takes_default_scheduler=settings.force_overwrite_default_scheduler,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """One container's request as the webhook reads it.

    Attributes:
        named: the vendors' resources that it names.
        asks: what it asks for, by vendor; empty where that can't be read.
        added: quantities to write into it, by resource.
        problem: why the request can't be served, "" when it can.
        warnings: what its author should know.
    """

    form: ContainerForm
    named: tuple[str, ...] = ()
    asks: Mapping[Vendor, Ask] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def is_asking(self) -> bool:
        """True when it asks for devices, also if its request can't be read."""
        return bool(self.asks or self.problem)

    def ask_of(self, vendor: VendorAdmission) -> Ask | None:
        """What it asks for of one vendor."""
        return self.asks.get(vendor.protocol.cards)


def read_container(form: ContainerForm, rules: WebhookRules) -> ContainerRequest:
    """Check the container's values and work out what has to be written into it."""
    read = [(vendor, vendor.read(form.container)) for vendor in rules.vendors]
    named = tuple(name for _, found in read for name in found.named)
    problem = next((found.problem for _, found in read if found.problem), "")
    if problem:
        return ContainerRequest(form=form, named=named, problem=f"{form.title}: {problem}")
    return ContainerRequest(
        form=form,
        named=named,
        asks={vendor.protocol.cards: found.ask for vendor, found in read if found.ask is not None},
        added={name: quantity for _, found in read for name, quantity in found.added.items()},
        warnings=tuple(f"{form.title}: {text}" for _, found in read for text in found.warnings),
    )


def asked_vendors(
    containers: Sequence[ContainerRequest], rules: WebhookRules
) -> tuple[VendorAdmission, ...]:
    """The vendors whose cards some container of the pod asks for."""
    return tuple(
        vendor
        for vendor in rules.vendors
        if any(container.ask_of(vendor) is not None for container in containers)
    )


def env_problems(
    request: ContainerRequest, asked_vendors: Iterable[VendorAdmission]
) -> Iterator[str]:
    """Sentences about variables that must not be set in a pod with these vendors' cards."""
    if request.problem:
        return  # its request is unknown
    form = request.form
    for vendor in asked_vendors:
        for var in form.env or ():
            why = vendor.objection_to(var, form.container, request.ask_of(vendor))
            if why:
                yield (
                    f"{form.title}: environment variable {shown(var.name)} {why}: "
                    "remove it from env"
                )


def env_wanted(request: ContainerRequest, vendors: Iterable[VendorAdmission]) -> dict[str, str]:
    """The variables to set in the container, by name."""
    form, wanted = request.form, dict[str, str]()
    for vendor in vendors:
        wanted |= vendor.env_of(form.container, form.env or (), request.ask_of(vendor))
    return wanted


def env_unwanted(request: ContainerRequest, vendors: Iterable[VendorAdmission]) -> frozenset[str]:
    """The user's variables to take out of the container, because the node writes them."""
    own = {var.name for var in request.form.env or ()}
    return frozenset(
        name
        for vendor in vendors
        for name in vendor.env_of_the_node(request.ask_of(vendor))
        if name in own
    )


def removed(request: ContainerRequest, unwanted: Iterable[str]) -> Iterator[str]:
    """Warnings about a user's variables that are taken out."""
    for name in sorted(unwanted):
        yield f"{request.form.title}: environment variable {name} is removed: the node writes it"


def overwritten(request: ContainerRequest, wanted: Mapping[str, str]) -> Iterator[str]:
    """Warnings about a user's variables that get another value."""
    for var in request.form.env or ():
        if var.name in wanted and var.value != wanted[var.name]:
            title, value = request.form.title, wanted[var.name]
            yield f"{title}: environment variable {var.name} is set to {value}, as configured here"


DEFAULT_SCHEDULER: Final = "default-scheduler"
OPT_OUT: Final = "ignore"

_WORDS: Final = (
    (names.POD_NODE_POLICY, frozenset(NodePolicy)),
    (
        names.POD_GPU_POLICY,
        frozenset({ranking.BINPACK, ranking.SPREAD, ranking.TOPOLOGY, ranking.MUTEX, ranking.NUMA}),
    ),
)
"""The words that an annotation of wishes may hold, whatever the vendor."""
_NO_GROUP: Final = (
    f"{names.POD_GROUP} has no effect: pods get their cards one by one; Kueue or the coscheduling "
    "plugin starts them all or none"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionProblem:
    """Why a pod is refused; forbidden things and invalid values have different HTTP codes."""

    text: str
    is_forbidden: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionVerdict:
    """A pod with problems is refused, else patched. Its author receives the warnings."""

    problems: tuple[AdmissionProblem, ...] = ()
    warnings: tuple[str, ...] = ()
    patch: tuple[Operation, ...] = ()


def judge_pod(form: PodForm, rules: WebhookRules) -> AdmissionVerdict:
    """Decide on one pod.

    Source: HAMi scheduler/webhook.go:52-143 (2.10), with the differences of docs/extender.md.
    """
    pod = form.pod
    if pod.labels.get(names.WEBHOOK_OPT_OUT) == OPT_OUT:
        return AdmissionVerdict()
    if forged := _forged(pod, rules):
        return AdmissionVerdict(problems=(AdmissionProblem(text=forged),))
    if not any(container.kind is ContainerKind.APP for container in pod.containers):
        text = "pod has no containers: add at least one to spec.containers"
        return AdmissionVerdict(problems=(AdmissionProblem(text=text, is_forbidden=False),))
    requests = tuple(read_container(container, rules) for container in form.containers)
    if _is_foreign(pod, rules):
        return AdmissionVerdict(warnings=_foreign_warnings(pod, requests, rules))
    is_asking = any(request.is_asking for request in requests)
    problems = tuple(_problems(pod, requests, rules)) if is_asking else ()
    if problems:
        return AdmissionVerdict(problems=problems)
    return _admitted(form, requests, rules, is_asking=is_asking)


def _admitted(
    form: PodForm, requests: Sequence[ContainerRequest], rules: WebhookRules, *, is_asking: bool
) -> AdmissionVerdict:
    warnings = [text for request in requests for text in request.warnings]
    patch: list[Operation] = []
    for request in requests:
        wanted = env_wanted(request, rules.vendors)
        unwanted = env_unwanted(request, rules.vendors)
        warnings += (*overwritten(request, wanted), *removed(request, unwanted))
        patch += quantity_operations(request.form, request.added)
        patch += env_operations(request.form, wanted, unwanted)
    if is_asking:
        warnings += _unknown_words(form.pod, rules)
        if names.POD_GROUP in {*form.pod.annotations, *form.pod.labels}:
            warnings.append(_NO_GROUP)
        patch += _spec_operations(form, requests, rules)
    return AdmissionVerdict(warnings=tuple(warnings), patch=tuple(patch))


def _spec_operations(
    form: PodForm, requests: Sequence[ContainerRequest], rules: WebhookRules
) -> Iterator[Operation]:
    if form.pod.scheduler_name != rules.scheduler_name:
        yield spec_operation("schedulerName", rules.scheduler_name)
    classes = [vendor.runtime_class_name for vendor in asked_vendors(requests, rules)]
    runtime_class_name = next(filter(None, classes), "")
    if runtime_class_name and not form.runtime_class_name:
        yield spec_operation("runtimeClassName", runtime_class_name)


def _forged(pod: Pod, rules: WebhookRules) -> str:
    """A sentence about annotations that only a scheduler may write; "" when there are none."""
    reserved = reservation_keys(vendor.protocol for vendor in rules.vendors)
    found = [key for key in reserved if key in pod.annotations]
    if not found:
        return ""
    is_single = len(found) == 1
    what = f"annotation {found[0]} is" if is_single else f"annotations {', '.join(found)} are"
    return (
        f"{what} written by the scheduler when it reserves devices, never by a user: remove "
        f"{'it' if is_single else 'them'} from metadata.annotations (a template copied from a "
        "live pod contains such annotations)"
    )


def _is_foreign(pod: Pod, rules: WebhookRules) -> bool:
    """True when another scheduler was chosen; the API server has replaced "" by the default."""
    if pod.scheduler_name in ("", rules.scheduler_name):
        return False
    return not (pod.scheduler_name == DEFAULT_SCHEDULER and rules.takes_default_scheduler)


def _foreign_warnings(
    pod: Pod, requests: Sequence[ContainerRequest], rules: WebhookRules
) -> tuple[str, ...]:
    named = next((request.named[0] for request in requests if request.named), "")
    if not named:
        return ()
    return (
        f"the pod names {named} and the scheduler {shown(pod.scheduler_name)}: devices are given "
        f"out by {rules.scheduler_name} alone, so nodes will refuse it; remove spec.schedulerName",
    )


def _problems(
    pod: Pod, requests: Sequence[ContainerRequest], rules: WebhookRules
) -> Iterator[AdmissionProblem]:
    """Everything wrong with a pod that asks for devices."""
    if pod.node_name:
        yield AdmissionProblem(
            text=f"pod has node assigned: spec.nodeName is {shown(pod.node_name)}, so no scheduler "
            "can reserve its devices (remove it, and select the node with a nodeSelector on "
            "kubernetes.io/hostname)"
        )
    asked = asked_vendors(requests, rules)
    for request in requests:
        if request.problem:
            yield AdmissionProblem(text=request.problem, is_forbidden=False)
        if request.form.container.is_privileged:
            yield AdmissionProblem(
                text=f"{request.form.title} is privileged and would see every card of the node: "
                "remove securityContext.privileged, or ask for devices in another pod"
            )
        yield from (AdmissionProblem(text=text) for text in env_problems(request, asked))
    weights = pod.annotations.get(names.POD_SCORING_WEIGHTS)
    if weights is not None and ranking.parse_weights(weights) is None:
        yield AdmissionProblem(
            text=f"annotation {names.POD_SCORING_WEIGHTS} is {shown(weights)}: write "
            "slot=1,core=1,memory=1 with whole numbers from 0, not all of them 0",
            is_forbidden=False,
        )


def _unknown_words(pod: Pod, rules: WebhookRules) -> Iterator[str]:
    own = (words for vendor in rules.vendors for words in vendor.words.items())
    for key, known in (*_WORDS, *own):
        words = ranking.words(pod.annotations.get(key, ""))
        unknown = [word for word in words if word and word not in known]
        if unknown:
            allowed = ", ".join(sorted(known))
            yield f"annotation {key}: {shown(unknown[0])} is not one of {allowed}"


KIND: Final = "AdmissionReview"
VERSIONS: Final = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")

MOST_PROBLEMS: Final = 20
LONGEST_MESSAGE: Final = 2048
"""Bytes of the sentence that a user reads."""
MOST_WARNINGS: Final = 15
LONGEST_WARNING: Final = 256
"""Bytes; the API server cuts longer ones, and drops what goes beyond 4096 in all."""


class _Kind(msgspec.Struct):
    group: str = ""
    kind: str = ""


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    kind: _Kind | None = None
    sub_resource: str | None = None
    operation: str = ""
    object: msgspec.Raw = msgspec.Raw()


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: _Request


_REVIEW: Final = msgspec.json.Decoder(_Review)


def _count_nothing(_: str) -> None:
    """The default: reviews are not counted."""


class Webhook:
    """Reviews pods; keeps nothing between reviews."""

    def __init__(
        self, rules: WebhookRules, on_review: Callable[[str], None] = _count_nothing
    ) -> None:
        """`on_review` is called with "allowed", "patched" or "denied", once per response."""
        self._rules = rules
        self._on_review = on_review

    def review(self, body: bytes) -> bytes:
        """Answer one AdmissionReview in the version in which it was sent.

        Raises:
            WireError: not an AdmissionReview, or it has no request: there is nothing to answer.
        """
        review = _decode(body)
        verdict = self._verdict(review.request)
        self._on_review(_outcome(verdict))
        response = {"uid": review.request.uid, **_response(verdict)}
        return msgspec.json.encode(
            {"apiVersion": review.api_version, "kind": KIND, "response": response}
        )

    def _verdict(self, request: _Request) -> AdmissionVerdict:
        kind = request.kind or _Kind()
        is_pod = (kind.group, kind.kind) == ("", "Pod") and not request.sub_resource
        if not is_pod or request.operation != "CREATE":
            return AdmissionVerdict()
        try:
            form = read_form(bytes(request.object))
        except WireError as error:
            return AdmissionVerdict(
                problems=(AdmissionProblem(text=str(error), is_forbidden=False),)
            )
        return judge_pod(form, self._rules)


def _decode(body: bytes) -> _Review:
    try:
        review = _REVIEW.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        # What was sent stays out of the message: a pod may hold secrets.
        raise WireError(KIND, str(error), "can't be read") from error
    if review.kind != KIND or review.api_version not in VERSIONS:
        raise WireError(KIND, f"{review.api_version} {review.kind}", f"not {' or '.join(VERSIONS)}")
    return review


def _outcome(verdict: AdmissionVerdict) -> str:
    if verdict.problems:
        return "denied"
    return "patched" if verdict.patch else "allowed"


def _response(verdict: AdmissionVerdict) -> dict[str, object]:
    response: dict[str, object] = {"allowed": not verdict.problems}
    if verdict.problems:
        response["status"] = _refusal(verdict)
    elif verdict.patch:
        patch = base64.b64encode(msgspec.json.encode(verdict.patch)).decode("ascii")
        response |= {"patchType": "JSONPatch", "patch": patch}
    if verdict.warnings:
        shortened = [
            cut_to_bytes(text, LONGEST_WARNING) for text in verdict.warnings[:MOST_WARNINGS]
        ]
        response["warnings"] = shortened
    return response


def _refusal(verdict: AdmissionVerdict) -> dict[str, object]:
    texts = [problem.text for problem in verdict.problems[:MOST_PROBLEMS]]
    if len(verdict.problems) > MOST_PROBLEMS:
        texts.append(f"and {len(verdict.problems) - MOST_PROBLEMS} more problems")
    is_forbidden = any(problem.is_forbidden for problem in verdict.problems)
    return {
        "message": cut_to_bytes("; ".join(texts), LONGEST_MESSAGE),
        "reason": "Forbidden" if is_forbidden else "BadRequest",
        "code": 403 if is_forbidden else 400,
    }
