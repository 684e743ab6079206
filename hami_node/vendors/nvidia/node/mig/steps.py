"""Looks at cards and takes instances from state to state: the record first, then the driver."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from hami_node.clock import Deadline
from hami_node.model import Uuid
from hami_node.vendors.nvidia.mig.driver import MigDriver, MigError, MigFailure
from hami_node.vendors.nvidia.mig.layout import MigCard, MigDevice
from hami_node.vendors.nvidia.node.mig.reconcile import Instance, Owner, State
from hami_node.vendors.nvidia.node.mig.record import MigRecord

_NOTHING_MADE: Final = (MigFailure.NO_ROOM, MigFailure.NO_RIGHTS, MigFailure.GONE)
"""Failures after which the call has certainly changed nothing."""


class Steps:
    """Makes and removes instances. The caller lets nobody else work on the card meanwhile.

    What is interrupted is taken up again after the next look at the card.

    Raises (every method): MigError: the driver refuses, or has not answered in time;
        RecordError: the record can't be written.
    """

    def __init__(self, driver: MigDriver, record: MigRecord) -> None:
        """Nothing is done yet, and nothing has failed."""
        self._driver, self._record = driver, record
        self.going: dict[Owner, Instance] = {}
        """What was removed, and may still be in a scan that is older."""
        self._lock = threading.Lock()
        self._failures: Counter[tuple[str, str]] = Counter()

    def failures(self) -> Mapping[tuple[str, str], int]:
        """How many calls have failed, by the call and the reason."""
        with self._lock:
            return dict(self._failures)

    def look(self, card: Uuid, deadline: Deadline) -> MigCard:
        """The card as it is now; see `MigDriver`."""
        with self._counted("look"):
            return self._driver.look(card, deadline)

    def make(self, wanted: Instance, deadline: Deadline) -> Instance:
        """Make an instance at a place where nothing is; returns it named."""
        self._record.intend(wanted)
        try:
            with self._counted("make-gpu-instance"):
                number = self._driver.make_gpu_instance(
                    wanted.card, wanted.profile_id, wanted.placement, deadline
                )
        except MigError as e:
            if e.reason in _NOTHING_MADE:
                self._record.learn(wanted.owner, None)
            raise
        return self.complete(replace(wanted, gpu_instance_id=number), deadline)

    def complete(self, begun: Instance, deadline: Deadline) -> Instance:
        """Make the compute instance, in place of any that is there; returns it named."""
        self._record.learn(begun.owner, begun.emptied())
        if begun.compute_instance_id is not None:
            self._empty(begun, deadline)
        with self._counted("make-compute-instance"):
            device = self._driver.make_compute_instance(
                begun.card, begun.gpu_instance_id or 0, deadline
            )
        return self.name(
            replace(begun, compute_instance_id=device.compute_instance_id, uuid=device.uuid)
        )

    def name(self, whole: Instance) -> Instance:
        """Put on record that an instance is whole, and its container's."""
        named = replace(whole, state=State.NAMED, given=whole.uuid)
        self._record.learn(named.owner, named)
        return named

    def remove(self, instance: Instance, deadline: Deadline) -> None:
        """Destroy an instance as the last look has shown it; forget it then."""
        self.going[instance.owner] = instance
        if instance.compute_instance_id is not None:
            self._empty(instance, deadline)
            self._record.learn(instance.owner, instance.emptied())
        with self._counted("destroy-gpu-instance"), _gone_is_done():
            self._driver.destroy_gpu_instance(
                instance.card, instance.gpu_instance_id or 0, deadline
            )
        self._record.learn(instance.owner, None)

    def _empty(self, instance: Instance, deadline: Deadline) -> None:
        """Destroy its compute instance."""
        device = MigDevice(
            uuid=instance.uuid,
            gpu_instance_id=instance.gpu_instance_id or 0,
            compute_instance_id=instance.compute_instance_id or 0,
        )
        with self._counted("destroy-compute-instance"), _gone_is_done():
            self._driver.destroy_compute_instance(instance.card, device, deadline)

    @contextmanager
    def _counted(self, call: str) -> Iterator[None]:
        try:
            yield
        except MigError as e:
            with self._lock:
                self._failures[call, e.reason.value] += 1
            raise


@contextmanager
def _gone_is_done() -> Iterator[None]:
    try:
        yield
    except MigError as e:
        if e.reason is not MigFailure.GONE:
            raise
