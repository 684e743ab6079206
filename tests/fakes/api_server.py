"""The simulated API server with the levers of a test: foreign writes, faults, lost histories."""

from __future__ import annotations

from collections.abc import Mapping

from hami_node.simulate.apiserver import ApiServer
from hami_node.simulate.store import Json


class FaultyApiServer(ApiServer):
    """What the demo serves, and everything that goes wrong with it on command."""

    def annotate(
        self, resource: str, name: str, values: Mapping[str, str | None], namespace: str = ""
    ) -> Json:
        """Set or (None) remove annotations, as somebody else in the cluster would."""

        def change(body: Json) -> None:
            annotations = body["metadata"].setdefault("annotations", {})
            for key, value in values.items():
                annotations.pop(key, None)
                if value is not None:
                    annotations[key] = value

        return self.edit(resource, name, change, namespace)

    def fail_next(self, verb: str, resource: str, outcome: int | str, times: int = 1) -> None:
        """Let the next requests fail.

        Args:
            verb: get, list, watch, create, update, patch, delete or `*`.
            resource: nodes, pods, events, leases, resourcequotas or `*`.
            outcome: an HTTP status, or a `api.Outcome`: reset, reset-after, hang, freeze.
            times: how many requests.
        """
        self.faults.add(verb, resource, outcome, times)

    def drop_watches(self) -> None:
        """End all watches in good order, as a server's time limit does."""
        self.watch_generation += 1
        self.store.wake()

    def expire_watches(self) -> None:
        """Forget the history and end all watches: to go on, a client has to list again (410)."""
        with self.store.condition:
            self.store.version += 1
            self.store.oldest = self.store.version
            self.store._history.clear()
        self.drop_watches()

    def restore_backup(self) -> None:
        """Come back with today's objects, but with versions from long ago, and another history."""
        with self.store.condition:
            self.store.version = self.store.oldest = 10
            self.store._history.clear()
        self.drop_watches()

    def forget_requests(self) -> None:
        """Empty the list of requests."""
        self.noted.clear()
