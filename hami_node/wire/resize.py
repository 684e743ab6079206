"""The annotations of a resize: what a user asks, the extender approves and the node reports.

A request is known by a digest of its text, a decision about it by that and the version of the pod
that it was made on: the same may be asked again. Grants are written as in the other annotations,
one slot for each container.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec

from hami_node.errors import WireError
from hami_node.model import ContainerGrants, Vendor
from hami_node.wire import names
from hami_node.wire.grants import decode_grants, encode_grants

T = TypeVar("T")

MAX_REQUEST: Final = 4096
"""Characters: a hundred containers."""
MAX_APPROVAL: Final = 65_536
MAX_WORDS: Final = 65_536
"""Characters of what a node reports: some hundred resized containers."""
MAX_WHY: Final = 512
MAX_AMOUNT: Final = 2**31 - 1

_Amount = Annotated[int, msgspec.Meta(ge=1, le=MAX_AMOUNT)]
_Short = Annotated[str, msgspec.Meta(max_length=256)]


class Outcome(StrEnum):
    """How far a request is."""

    WAITING = "waiting"
    """Approved; the node can't apply it yet."""
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest:
    """What a user asks for: by container, amounts on each card by the vendor's words for them."""

    containers: Mapping[str, Mapping[str, int]]


class Approval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request that has room.

    Attributes:
        id: of the decision.
        uid: of the pod: an approval that was copied to another pod is none.
        vendor: the word of the vendor of all these grants.
        grants: what each container shall have, as one slot.
    """

    id: _Short
    uid: _Short
    vendor: _Short
    grants: dict[str, str]


class ResizeState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a request is; `why` is for people."""

    id: str
    state: Outcome
    why: str = ""


class Word(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A node's word on one resized container.

    Attributes:
        id: of the decision that was carried out, or refused, last.
        vendor: the word of the vendor.
        grants: what the container holds since then, as one slot.
    """

    id: _Short
    vendor: _Short
    grants: str


Words = Mapping[str, Mapping[str, Word]]
"""By the pod's uid and the container's name."""

_REQUESTS: Final = msgspec.json.Decoder(dict[str, dict[str, _Amount]])
_APPROVALS: Final = msgspec.json.Decoder(Approval)
_STATES: Final = msgspec.json.Decoder(ResizeState)
_WORDS: Final = msgspec.json.Decoder(dict[str, dict[str, Word]])
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def decision_id(text: str, version: str) -> str:
    """The id of a decision about a request, made on this version of its pod."""
    return f"{_digest(text)}-{version}"


def is_about(decision: str, text: str) -> bool:
    """True where a decision is about this request."""
    return decision.partition("-")[0] == _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def decode_request(text: str) -> ResizeRequest:
    """Read a request.

    Raises:
        WireError: it is not a JSON object of containers with whole numbers from 1 on.
    """
    key = names.POD_RESIZE
    containers = _decoded(_REQUESTS, text, key, MAX_REQUEST)
    if not containers or not all(containers.values()):
        raise WireError(key, text, "names no container, or no amount for one")
    return ResizeRequest(containers=containers)


def encode_approval(approval: Approval) -> str:
    """Write an approval."""
    return _ENCODER.encode(approval).decode()


def decode_approval(text: str, uid: str) -> Approval | None:
    """Read a pod's approval; None for none, for one of another pod, and for anything unreadable."""
    try:
        approval = _decoded(_APPROVALS, text, names.POD_RESIZE_APPROVED, MAX_APPROVAL)
    except WireError:
        return None
    return approval if approval.uid == uid else None


def encode_state(state: ResizeState) -> str:
    """Write how far a request is."""
    return _ENCODER.encode(
        ResizeState(id=state.id, state=state.state, why=state.why[:MAX_WHY])
    ).decode()


def decode_state(text: str) -> ResizeState | None:
    """Read how far a request is; None where that can't be read."""
    try:
        return _decoded(_STATES, text, names.POD_RESIZE_STATE, MAX_APPROVAL)
    except WireError:
        return None


def encode_words(words: Words) -> str:
    """Write a node's words; equal words give equal bytes."""
    return _ENCODER.encode(words).decode()


def decode_words(text: str) -> Words:
    """Read a node's words; none where they can't be read."""
    try:
        return _decoded(_WORDS, text, names.NODE_RESIZED, MAX_WORDS)
    except WireError:
        return {}


def encode_slot(grants: ContainerGrants) -> str:
    """Write the grants of one container."""
    return encode_grants([grants])


def decode_slot(text: str, key: str, vendor: Vendor) -> ContainerGrants:
    """Read the grants of one container, all of that vendor.

    Raises:
        WireError: they are not that.
    """
    slots = decode_grants(text, key, vendor)
    if len(slots) != 1 or not slots[0]:
        raise WireError(key, text, "not the grants of one container")
    if any(grant.vendor is not vendor for grant in slots[0]):
        raise WireError(key, text, f"not grants of {vendor} alone")
    return slots[0]


def _decoded(decoder: msgspec.json.Decoder[T], text: str, key: str, most: int) -> T:
    if len(text) > most:
        raise WireError(key, text, f"longer than {most} characters")
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
        raise WireError(key, text, str(e)) from e
