"""The admission webhook: one AdmissionReview in, the same with its response out. Pure.

A pod that asks nothing of us comes back untouched. See docs/webhook.md.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.extender.admission import Problem, Verdict, judge_pod
from hami_node.extender.pod_form import read_form
from hami_node.extender.webhook_rules import WebhookRules, webhook_rules_of

__all__ = ["Webhook", "WebhookRules", "webhook_rules_of"]

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


def _tell_nobody(_: str) -> None:
    """Nobody counts the reviews."""


class Webhook:
    """Reviews pods by the rules of the moment; keeps nothing between reviews."""

    def __init__(
        self, rules: Callable[[], WebhookRules], on_review: Callable[[str], None] = _tell_nobody
    ) -> None:
        """`on_review` is told "allowed", "patched" or "denied", once for each answer."""
        self._rules = rules
        self._on_review = on_review

    def review(self, body: bytes) -> bytes:
        """Answer one AdmissionReview in the version that it came in.

        Raises:
            WireError: not an AdmissionReview, or not one with a request: there is nothing to
                answer to.
        """
        review = _decode(body)
        verdict = self._verdict(review.request)
        self._on_review(_outcome(verdict))
        response = {"uid": review.request.uid, **_response(verdict)}
        return msgspec.json.encode(
            {"apiVersion": review.api_version, "kind": KIND, "response": response}
        )

    def _verdict(self, request: _Request) -> Verdict:
        kind = request.kind or _Kind()
        is_pod = (kind.group, kind.kind) == ("", "Pod") and not request.sub_resource
        if not is_pod or request.operation != "CREATE":
            return Verdict()
        try:
            form = read_form(bytes(request.object))
        except WireError as error:
            return Verdict(problems=(Problem(text=str(error), is_forbidden=False),))
        return judge_pod(form, self._rules())


def _decode(body: bytes) -> _Review:
    try:
        review = _REVIEW.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        # What was sent stays out of the message: a pod may hold secrets.
        raise WireError(KIND, str(error), "can't be read") from error
    if review.kind != KIND or review.api_version not in VERSIONS:
        raise WireError(KIND, f"{review.api_version} {review.kind}", f"not {' or '.join(VERSIONS)}")
    return review


def _outcome(verdict: Verdict) -> str:
    if verdict.problems:
        return "denied"
    return "patched" if verdict.patch else "allowed"


def _response(verdict: Verdict) -> dict[str, object]:
    response: dict[str, object] = {"allowed": not verdict.problems}
    if verdict.problems:
        response["status"] = _refusal(verdict)
    elif verdict.patch:
        patch = base64.b64encode(msgspec.json.encode(verdict.patch)).decode("ascii")
        response |= {"patchType": "JSONPatch", "patch": patch}
    if verdict.warnings:
        shortened = [_cut(text, LONGEST_WARNING) for text in verdict.warnings[:MOST_WARNINGS]]
        response["warnings"] = shortened
    return response


def _refusal(verdict: Verdict) -> dict[str, object]:
    texts = [problem.text for problem in verdict.problems[:MOST_PROBLEMS]]
    if len(verdict.problems) > MOST_PROBLEMS:
        texts.append(f"and {len(verdict.problems) - MOST_PROBLEMS} problems more")
    is_forbidden = any(problem.is_forbidden for problem in verdict.problems)
    return {
        "message": _cut("; ".join(texts), LONGEST_MESSAGE),
        "reason": "Forbidden" if is_forbidden else "BadRequest",
        "code": 403 if is_forbidden else 400,
    }


def _cut(text: str, longest: int) -> str:
    raw = text.encode()
    return text if len(raw) <= longest else raw[: longest - 3].decode(errors="ignore") + "..."
