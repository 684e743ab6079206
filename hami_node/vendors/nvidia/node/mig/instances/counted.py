"""Calls about MIG, with a count of those that failed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hami_node.clock import Deadline
from hami_node.model import Uuid
from hami_node.vendors.nvidia.mig.driver import MigDriver, MigError
from hami_node.vendors.nvidia.mig.found import MigCard, MigDevice
from hami_node.vendors.nvidia.mig.layout import MigPlacement


class CountedCalls:
    """The calls of a `MigDriver` by which instances are made and removed."""

    def __init__(self, driver: MigDriver) -> None:
        """Nothing has failed."""
        self._driver = driver
        self._lock = threading.Lock()
        self._failures: Counter[tuple[str, str]] = Counter()

    def failures(self) -> Mapping[tuple[str, str], int]:
        """How many have failed, by the call and the reason."""
        with self._lock:
            return dict(self._failures)

    def look(self, card: Uuid, deadline: Deadline) -> MigCard:
        """See `MigDriver`."""
        with self._counted("look"):
            return self._driver.look(card, deadline)

    def make_gpu_instance(
        self, card: Uuid, profile_id: int, placement: MigPlacement, deadline: Deadline
    ) -> int:
        """See `MigDriver`."""
        with self._counted("make-gpu-instance"):
            return self._driver.make_gpu_instance(card, profile_id, placement, deadline)

    def make_compute_instance(
        self, card: Uuid, gpu_instance_id: int, deadline: Deadline
    ) -> MigDevice:
        """See `MigDriver`."""
        with self._counted("make-compute-instance"):
            return self._driver.make_compute_instance(card, gpu_instance_id, deadline)

    def destroy_compute_instance(self, card: Uuid, device: MigDevice, deadline: Deadline) -> None:
        """See `MigDriver`."""
        with self._counted("destroy-compute-instance"):
            self._driver.destroy_compute_instance(card, device, deadline)

    def destroy_gpu_instance(self, card: Uuid, gpu_instance_id: int, deadline: Deadline) -> None:
        """See `MigDriver`."""
        with self._counted("destroy-gpu-instance"):
            self._driver.destroy_gpu_instance(card, gpu_instance_id, deadline)

    @contextmanager
    def _counted(self, call: str) -> Iterator[None]:
        try:
            yield
        except MigError as e:
            with self._lock:
                self._failures[call, e.reason.value] += 1
            raise
