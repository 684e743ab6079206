"""The admission webhook: one AdmissionReview in, the same with its response out. Pure.

A pod that asks for none of our devices is returned unchanged. See docs/extender.md.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.extender.webhook.admission import (
    AdmissionProblem,
    AdmissionVerdict,
    WebhookRules,
    judge_pod,
)
from hami_node.extender.webhook.pod_form import read_form
from hami_node.text import cut_to_bytes

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
