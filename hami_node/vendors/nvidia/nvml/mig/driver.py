"""MIG of the cards through NVML: jobs on the worker's thread, each with its deadline."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hami_node.clock import Deadline
from hami_node.errors import BackendError, DeviceLost
from hami_node.model import Uuid
from hami_node.vendors.nvidia.mig.driver import MigError, MigFailure
from hami_node.vendors.nvidia.mig.layout import MigCard, MigDevice, MigPlacement
from hami_node.vendors.nvidia.nvml.calls import (
    IN_USE,
    INSUFFICIENT_RESOURCES,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    TIMEOUT,
    CallFailed,
    NvmlCalls,
    of_one_card,
)
from hami_node.vendors.nvidia.nvml.cards import MigModes, read_modes
from hami_node.vendors.nvidia.nvml.mig.reader import (
    RIGHTS,
    AskedCard,
    Devices,
    HeldDevice,
    Placement,
    compute_profiles,
    placement_of,
)
from hami_node.vendors.nvidia.nvml.use import processes_on
from hami_node.vendors.nvidia.nvml.worker import JobUnanswered

if TYPE_CHECKING:
    from hami_node.vendors.nvidia.nvml.backend import NvmlBackend

R = TypeVar("R")

_FAILURES: Final = {
    IN_USE: MigFailure.BUSY,
    INSUFFICIENT_RESOURCES: MigFailure.NO_ROOM,
    NOT_FOUND: MigFailure.GONE,
    NOT_SUPPORTED: MigFailure.GONE,
    NO_PERMISSION: MigFailure.NO_RIGHTS,
    TIMEOUT: MigFailure.UNANSWERED,
}
_PIDS_SHOWN: Final = 8
MODE_RIGHTS: Final = (
    "only root of the host may switch the MIG mode: add daemonset/components/mig-mode, or switch "
    "it by hand (nvidia-smi -i UUID -mig 1)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A card, found anew, and what is left of the time."""

    card: AskedCard
    uuid: Uuid
    deadline: Deadline

    def modes(self) -> MigModes:
        """Those of a card without MIG are off."""
        found = read_modes(self.card.calls, self.card.handle, self.card.index)
        return found or MigModes(is_enabled=False, is_pending=False)


class NvmlMigDriver:
    """The port `MigDriver`."""

    def __init__(self, backend: NvmlBackend) -> None:
        """Does nothing by itself; the backend has the session and the thread for it."""
        self._backend = backend

    def look(self, card: Uuid, deadline: Deadline) -> MigCard:
        """See `MigDriver`."""
        return self._do(
            card,
            deadline,
            lambda job: self._backend.mig_reader().look(job.card, job.uuid, job.modes()),
        )

    def processes(self, card: Uuid, deadline: Deadline) -> frozenset[int] | None:
        """See `MigDriver`."""
        return self._do(
            card,
            deadline,
            lambda job: processes_on(job.card.calls, job.card.handle, job.card.index),
        )

    def make_gpu_instance(
        self, card: Uuid, profile_id: int, placement: MigPlacement, deadline: Deadline
    ) -> int:
        """See `MigDriver`."""

        def make(job: _Job) -> int:
            place = Placement(placement.start, placement.size)
            made = self._change(
                job,
                "nvmlDeviceCreateGpuInstanceWithPlacement",
                job.card.handle,
                profile_id,
                ctypes.byref(place),
            )
            with _begun():
                info = job.card.ask("nvmlGpuInstanceGetInfo", made)
                if placement_of(info.placement) != placement or info.profileId != profile_id:
                    raise DeviceLost("the driver has made another instance than it was asked for")
                return int(info.id)

        return self._do(card, deadline, make)

    def make_compute_instance(
        self, card: Uuid, gpu_instance_id: int, deadline: Deadline
    ) -> MigDevice:
        """See `MigDriver`."""

        def make(job: _Job) -> MigDevice:
            owner = job.card.ask("nvmlDeviceGetGpuInstanceById", job.card.handle, gpu_instance_id)
            kind = self._whole_kind(job, owner)
            made = self._change(job, "nvmlGpuInstanceCreateComputeInstance", owner, kind)
            with _begun():
                number = int(job.card.ask("nvmlComputeInstanceGetInfo_v2", made).id)
                found = Devices(job.card).of(made, gpu_instance_id, number)
                if found is None:
                    raise DeviceLost("the driver shows no MIG device of a new compute instance")
                return found.device

        return self._do(card, deadline, make)

    def destroy_compute_instance(self, card: Uuid, device: MigDevice, deadline: Deadline) -> None:
        """See `MigDriver`."""

        def destroy(job: _Job) -> None:
            number, part_number = device.gpu_instance_id, device.compute_instance_id
            owner = job.card.ask("nvmlDeviceGetGpuInstanceById", job.card.handle, number)
            part = job.card.ask("nvmlGpuInstanceGetComputeInstanceById", owner, part_number)
            if device.uuid:
                _assert_is(device, Devices(job.card).of(part, number, part_number))
            self._change(job, "nvmlComputeInstanceDestroy", part)

        self._do(card, deadline, destroy)

    def destroy_gpu_instance(self, card: Uuid, gpu_instance_id: int, deadline: Deadline) -> None:
        """See `MigDriver`."""

        def destroy(job: _Job) -> None:
            owner = job.card.ask("nvmlDeviceGetGpuInstanceById", job.card.handle, gpu_instance_id)
            self._change(job, "nvmlGpuInstanceDestroy", owner)

        self._do(card, deadline, destroy)

    def set_mode(self, card: Uuid, *, is_enabled: bool, deadline: Deadline) -> str:
        """See `MigDriver`."""

        def change(job: _Job) -> str:
            if job.modes() == (is_enabled, is_enabled):
                return ""
            self._backend.stop_listening()
            activation = self._change(job, "nvmlDeviceSetMigMode", job.card.handle, int(is_enabled))
            with _begun():
                now = self._found(job.card.calls, job.card.index, job.uuid, deadline)
                if now.modes().is_enabled == is_enabled:
                    return ""
                return _pending_text(now, int(activation))

        return self._do(card, deadline, change, rights=MODE_RIGHTS)

    def _do(
        self, uuid: Uuid, deadline: Deadline, work: Callable[[_Job], R], rights: str = RIGHTS
    ) -> R:
        """Do it on the worker's thread. Raises MigError, whatever goes wrong."""

        def begin(calls: NvmlCalls, index: int) -> R:
            with of_one_card():
                job = self._found(calls, index, uuid, deadline)
                try:
                    return work(job)
                except CallFailed as e:
                    if e.code == NOT_SUPPORTED and job.modes().is_enabled:
                        text = f"{e}: the driver does not offer that here (a vGPU guest?)"
                        raise DeviceLost(text) from e
                    raise

        try:
            return self._backend.do(uuid, begin, deadline)
        except BackendError as e:
            raise _mapped(uuid, e, rights) from e

    def _found(self, calls: NvmlCalls, index: int, uuid: Uuid, deadline: Deadline) -> _Job:
        """The card by its UUID, with a handle of its own: a mode change makes the old one bad."""
        handle = calls.ask("nvmlDeviceGetHandleByIndex", index, card=index)
        answer = calls.ask("nvmlDeviceGetUUID", handle, card=index)
        if (answer if isinstance(answer, str) else answer.decode(errors="replace")) != uuid:
            raise DeviceLost("the driver lists the cards in another order now; try again")
        card = AskedCard(calls=calls, index=index, handle=handle)
        return _Job(card=card, uuid=uuid, deadline=deadline)

    def _change(self, job: _Job, function: str, *args: object) -> Any:  # noqa: ANN401
        """A call that changes the card; not begun any more once nobody waits for it."""
        if job.deadline.left_s() <= 0:
            raise JobUnanswered("there was no time left; nothing was changed")
        self._backend.mig_reader().note_change(job.uuid)
        return job.card.ask(function, *args)

    def _whole_kind(self, job: _Job, gpu_instance: object) -> int:
        """The compute instance over all of a GPU instance."""
        info = job.card.ask("nvmlGpuInstanceGetInfo", gpu_instance)
        profiles = self._backend.mig_reader().profiles_of(job.card, job.uuid, job.modes()).profiles
        slices = next((known.slice_count for known in profiles if known.id == info.profileId), 0)
        kinds = compute_profiles(job.card, gpu_instance)
        kind = next((number for number, size in kinds if size == slices), None)
        if kind is None:
            raise DeviceLost("the driver lists no compute instance over all of the GPU instance")
        return kind


def _assert_is(device: MigDevice, found: HeldDevice | None) -> None:
    """The numbers of an instance are used again after its end.

    Raises:
        CallFailed: NOT_FOUND, for another device has them now.
        DeviceLost: nothing shows whose they are.
    """
    if found is None:
        raise DeviceLost(f"the driver does not show whether {device.uuid} is still the same")
    if found.device != device:
        text = f"{device.uuid} is gone, and {found.device.uuid} has its numbers"
        raise CallFailed(text, NOT_FOUND)


@contextmanager
def _begun() -> Iterator[None]:
    """What fails from here on leaves the card changed: its outcome is to be looked for."""
    try:
        with of_one_card():
            yield
    except BackendError as e:
        raise JobUnanswered(f"the driver did it, but then: {e}") from e


def _pending_text(job: _Job, activation: int) -> str:
    """Why the mode is not in force yet, and what to do."""
    if activation == RESET_REQUIRED:
        return "the card has to be reset (nvidia-smi -r), or its virtual machine restarted"
    if activation != IN_USE:
        return f"the driver does not say why (code {activation}); reset the card (nvidia-smi -r)"
    pids = processes_on(job.card.calls, job.card.handle, job.card.index)
    named = ", ".join(map(str, sorted(pids)[:_PIDS_SHOWN])) if pids else ""
    who = f"processes {named}" if named else "a program that does not compute, such as a monitor"
    return f"{who} still use the card: end them, or every monitor of cards, or reboot the node"


def _mapped(uuid: Uuid, error: BackendError, rights: str) -> MigError:
    if isinstance(error, JobUnanswered):
        return MigError(MigFailure.UNANSWERED, f"card {uuid}: {error}")
    code = error.code if isinstance(error, CallFailed) else 0
    reason = _FAILURES.get(code, MigFailure.FAILED)
    hint = f": {rights}" if reason is MigFailure.NO_RIGHTS else ""
    return MigError(reason, f"card {uuid}: {error}{hint}")
