"""What is written on a pod about its resize, and who is told."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from hami_node.errors import Conflict, KubeError, NotFound
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.node.parts import ClusterParts
from hami_node.ports import EventNote
from hami_node.wire import names
from hami_node.wire.resize import Outcome, ResizeState, decode_state, encode_state
from hami_node.wire.values.json_patch import annotation_pointer

log = logging.getLogger(__name__)

RESIZED_EVENT: Final = "Resized"
REFUSED_EVENT: Final = "ResizeRefused"


@dataclass(frozen=True, slots=True)
class PodNotes:
    """Writes to pods of this node; each write names what it was decided on."""

    cluster: ClusterParts

    def tell(
        self, pod: Pod, state: ResizeState, reservation: Mapping[str, str] | None = None
    ) -> None:
        """Write how far a resize is, and with that the reservation; nothing that stands there.

        Never raises: what is not written now is written by a later pass.
        """
        known = decode_state(pod.annotations.get(names.POD_RESIZE_STATE, ""))
        if known is not None and (known.id, known.state) == (state.id, state.state):
            return
        texts = {names.POD_RESIZE_STATE: encode_state(state), **(reservation or {})}
        tested = (names.POD_RESIZE, names.POD_RESIZE_APPROVED, *(reservation or {}))
        patch: list[Mapping[str, object]] = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            *(
                {"op": "test", "path": annotation_pointer(key), "value": pod.annotations[key]}
                for key in tested
                if key in pod.annotations
            ),
            *(
                {"op": "add", "path": annotation_pointer(key), "value": text}
                for key, text in texts.items()
            ),
        ]
        try:
            patched = self.cluster.kube.json_patch_pod(pod.namespace, pod.name, patch)
            self.cluster.live.patched(patched)
        except (Conflict, NotFound) as e:
            log.debug("resize_state_not_written", extra=kv(pod=pod.key, error=str(e)))
        except KubeError as e:
            log.warning("resize_state_not_written", extra=kv(pod=pod.key, error=str(e)))
        else:
            self._announce(pod, state)

    def _announce(self, pod: Pod, state: ResizeState) -> None:
        if state.state is Outcome.WAITING:
            return
        is_done = state.state is Outcome.DONE
        self.cluster.metrics.resizes.count("resized" if is_done else "refused")
        message = state.why if is_done else f"the pod is not resized: {state.why}"
        log.info("resize_over", extra=kv(pod=pod.key, state=state.state, why=state.why))
        note = EventNote.about(pod, RESIZED_EVENT if is_done else REFUSED_EVENT, message)
        self.cluster.notify(replace(note, is_warning=not is_done))
