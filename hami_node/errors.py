"""The project's errors, by meaning. Foreign errors are mapped once, at their edge."""

from __future__ import annotations

from enum import StrEnum

from hami_node.model import Pod
from hami_node.text import cut


class HamiError(Exception):
    """Base of every error that the project raises on purpose."""


class ConfigError(HamiError):
    """A setting is wrong: names the file, the field, the value and what is allowed."""

    def __init__(self, source: str, field: str, value: object, hint: str) -> None:
        """Compose one sentence a person can act on."""
        shown = value.value if isinstance(value, StrEnum) else value
        super().__init__(f"{source}: {field}: {shown!r} is wrong: {hint}")
        self.source, self.field, self.value, self.hint = source, field, value, hint


class WireError(HamiError):
    """A text of the protocol that can't be decoded."""

    def __init__(self, key: str, excerpt: str, why: str = "") -> None:
        """Keep the key and at most 80 characters of the value."""
        shown = cut(excerpt, 80)
        super().__init__(f"{key}: {why or 'not understood'}: {shown!r}")
        self.key, self.excerpt, self.why = key, shown, why


class BackendError(HamiError):
    """A vendor's driver or its simulation failed."""


class DriverUnavailable(BackendError):
    """The driver library is missing or can't be started; the message names it and gives a hint."""


class DriverChanged(DriverUnavailable):
    """The driver was replaced under a running session: only a new process can load its library."""


class DeviceLost(BackendError):
    """A card does not answer."""


class RegionError(HamiError):
    """A container's usage file can't be used; the message continues a sentence about it.

    `reason` is a word for a metric. The next attempt may succeed: the container may write anything.
    """

    def __init__(self, reason: str, message: str) -> None:
        """Keep the word beside the text."""
        super().__init__(message)
        self.reason = reason


class RegionNotReady(RegionError):
    """The container has not made the file yet, which is no fault."""


class KubeError(HamiError):
    """The API server refused or can't be reached.

    `status` is the HTTP status, 0 without a response; `retry_after_s` the wait that the server
    requested.
    """

    def __init__(self, message: str, status: int = 0, retry_after_s: float | None = None) -> None:
        """Keep the HTTP status and the requested wait beside the text."""
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def is_transient(self) -> bool:
        """True for timeouts, 429 and 5xx: the same request may succeed later."""
        return self.status in (0, 408, 429) or self.status >= 500


class NotFound(KubeError):
    """404."""


class Conflict(KubeError):
    """409, or a JSON patch whose `test` failed (422)."""


class PodTaken(Conflict):
    """The pod was bound, deleted or replaced in the meantime; `pod` is its current state."""

    def __init__(self, message: str, pod: Pod) -> None:
        """Keep the pod: it is newer than what the caller has."""
        super().__init__(message, 409)
        self.pod = pod


class Forbidden(KubeError):
    """401 or 403."""


class AnswerTooLarge(KubeError):
    """The answer has more bytes than are read of it."""


class Gone(KubeError):
    """410: a watch must be started again with a fresh list."""


class KubeletError(HamiError):
    """kubelet's socket does not answer or refuses."""


class RecordError(HamiError):
    """This node's own record can't be written; the message has the reason and a hint."""


class PodTooLarge(RecordError):
    """One pod has so much on record that no more is added for it; others are not concerned."""


class InstallError(HamiError):
    """Files can't be installed on this node; the message has the reason and a hint."""


class AllocationError(HamiError):
    """An Allocate call is refused; the text is what the user reads in the pod's status."""


class NodeUnfit(AllocationError):
    """The fault is the node's, whatever the pod is: kubelet, and so the scheduler, is told so."""


class NoPendingPod(AllocationError):
    """No pod, or several, match the call, or it can't be told.

    `candidates` are the pods that match; `is_passing` is true where the answer may be another one
    in a moment.
    """

    def __init__(
        self, message: str, candidates: tuple[Pod, ...] = (), *, is_passing: bool = False
    ) -> None:
        """Keep the pods, so that an Event can be written on each."""
        super().__init__(message)
        self.candidates = candidates
        self.is_passing = is_passing


class GrantMismatch(AllocationError):
    """The reservation contradicts the container's own limits or the card's live use."""


class LockHeld(HamiError):
    """The node lock belongs to another pod."""


class NotLeading(HamiError):
    """Another replica is the leader; the caller should send the request there."""
