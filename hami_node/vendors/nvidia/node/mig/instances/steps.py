"""Takes an instance from state to state: the record first, then the driver's call."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hami_node.clock import Deadline
from hami_node.vendors.nvidia.mig.driver import MigError, MigFailure
from hami_node.vendors.nvidia.mig.found import MigDevice
from hami_node.vendors.nvidia.node.mig.instances.counted import CountedCalls
from hami_node.vendors.nvidia.node.mig.instances.machine import Instance, State, lost
from hami_node.vendors.nvidia.node.mig.instances.record import InstanceRecord

_NOTHING_MADE: Final = (MigFailure.NO_ROOM, MigFailure.NO_RIGHTS, MigFailure.GONE)
"""Failures after which the call has certainly changed nothing."""


class Steps:
    """Makes and removes instances. The caller lets nobody else work on the card meanwhile.

    What is interrupted is taken up again after the next look at the card.

    Raises (every method): MigError: the driver refuses, or has not answered in time;
        RecordError: the record can't be written.
    """

    def __init__(self, driver: CountedCalls, record: InstanceRecord) -> None:
        """Nothing is done yet."""
        self._driver, self._record = driver, record

    def make(self, wanted: Instance, deadline: Deadline) -> Instance:
        """Make an instance at a place where nothing is; returns it named."""
        intended = replace(wanted, state=State.INTENDED)
        self._record.intend(intended)
        try:
            number = self._driver.make_gpu_instance(
                wanted.card, wanted.profile_id, wanted.placement, deadline
            )
        except MigError as e:
            if e.reason in _NOTHING_MADE:
                self._record.learn(intended.owner, lost(intended))
            raise
        return self.complete(replace(intended, gpu_instance_id=number), deadline)

    def complete(self, begun: Instance, deadline: Deadline) -> Instance:
        """Make the compute instance, in place of any that is there; returns it named."""
        there = begun
        begun = replace(begun, state=State.GPU_INSTANCE, compute_instance_id=None, uuid="")
        self._record.learn(begun.owner, begun)
        if there.compute_instance_id is not None:
            self._empty(there, deadline)
        number = begun.gpu_instance_id or 0
        device = self._driver.make_compute_instance(begun.card, number, deadline)
        return self.name(
            replace(begun, compute_instance_id=device.compute_instance_id, uuid=device.uuid)
        )

    def name(self, whole: Instance) -> Instance:
        """Put on record that an instance is whole, and is its container's unless that has one."""
        named = replace(whole, state=State.NAMED, given=whole.given or whole.uuid)
        self._record.learn(named.owner, named)
        return named

    def give(self, named: Instance) -> Instance:
        """Put on record that its container is told this UUID, whatever it was told before."""
        given = replace(named, given=named.uuid)
        self._record.learn(given.owner, given)
        return given

    def remove(self, instance: Instance, deadline: Deadline) -> None:
        """Destroy an instance as the last look has shown it; forget it then."""
        left = instance
        if instance.compute_instance_id is not None:
            left = self._emptied(instance, deadline)
        self._record.intend(replace(left, state=State.EMPTIED))
        try:
            self._driver.destroy_gpu_instance(left.card, left.gpu_instance_id or 0, deadline)
        except MigError as e:
            if e.reason is not MigFailure.GONE:
                raise
        self._record.learn(left.owner, None)

    def _emptied(self, instance: Instance, deadline: Deadline) -> Instance:
        self._record.intend(replace(instance, state=State.DRAINING))
        self._empty(instance, deadline)
        return replace(instance, state=State.EMPTIED, compute_instance_id=None, uuid="")

    def _empty(self, instance: Instance, deadline: Deadline) -> None:
        """Destroy its compute instance."""
        device = MigDevice(
            uuid=instance.uuid,
            gpu_instance_id=instance.gpu_instance_id or 0,
            compute_instance_id=instance.compute_instance_id or 0,
        )
        try:
            self._driver.destroy_compute_instance(instance.card, device, deadline)
        except MigError as e:
            if e.reason is not MigFailure.GONE:
                raise
