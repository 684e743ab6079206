"""A container of an approval: what it held, what it shall hold, what counts meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hami_node.engine.usage import larger_of
from hami_node.model import Container, ContainerGrants, ContainerKind, Uuid
from hami_node.record.ledger import Entry, ResizeNote
from hami_node.vendors.on_node.limits import CardLimit
from hami_node.vendors.protocol import VendorProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A container whose limits change.

    Attributes:
        entry: of the ledger; its grants count.
        before: what it held when this began: an open note of the ledger remembers it.
        target: what it shall hold.
    """

    vendor: VendorProtocol
    container: Container
    entry: Entry
    before: ContainerGrants
    target: ContainerGrants

    @property
    def held(self) -> ContainerGrants:
        """What counts now."""
        return self.entry.grants

    @property
    def is_begun(self) -> bool:
        """True where an earlier pass has noted it, and may have written limits."""
        return self.entry.resize is not None and self.entry.resize.is_open

    def begun(self, decision: str) -> Step:
        """The step with the larger amounts on its entry: they count until it is over."""
        note = ResizeNote(id=decision, before=self.before)
        return self._with(larger_of(self.held, self.target), note)

    def over(self, decision: str, grants: ContainerGrants, refusal: str = "") -> Step:
        """The step with what the container holds in the end."""
        return self._with(grants, ResizeNote(id=decision, refusal=refusal))

    def back(self) -> Step:
        """The same step to where it began."""
        return replace(self, target=self.before)

    def _with(self, grants: ContainerGrants, note: ResizeNote) -> Step:
        return replace(self, entry=replace(self.entry, grants=grants, resize=note))

    @property
    def is_less(self) -> bool:
        """True where it shall hold less memory than counts now."""
        return bool(self._less())

    def _less(self) -> dict[Uuid, int]:
        pairs = zip(self.held, self.target, strict=True)
        return {new.uuid: new.memory_mib for old, new in pairs if new.memory_mib < old.memory_mib}

    def overused(self, limits: Sequence[CardLimit]) -> str:
        """Where the container uses more than it shall hold, for people; "" where it does not.

        Only a card on which it is to hold less than counts now: elsewhere that is no worse.
        """
        less = self._less()
        for limit in limits:
            wanted = less.get(limit.uuid)
            if wanted is not None and limit.used_mib > wanted:
                return (
                    f"container {self.container.name} uses {limit.used_mib} MiB of card "
                    f"{limit.uuid}, more than the {wanted} MiB it shall have"
                )
        return ""


def step_of(
    vendor: VendorProtocol, container: Container, entry: Entry, target: ContainerGrants
) -> Step | str:
    """The step to the grants `target`; why there is none, for people.

    An approval may be forged where no policy protects it: it names the very cards that the
    container holds, and amounts that mean a limit.
    """
    name = container.name
    if container.kind is ContainerKind.INIT or entry.lender != name:
        return f"container {name} has no reservation of its own"
    if entry.problem:
        return entry.problem
    held = before = entry.grants
    if entry.resize is not None and entry.resize.is_open:
        before = entry.resize.before
    if any(grant.part is not None for grant in held):
        return f"container {name} holds a part of a divided card, whose size is fixed"
    if [grant.uuid for grant in target] != [grant.uuid for grant in held]:
        return f"the approval names other cards than container {name} holds"
    for new, old in zip(target, before, strict=True):
        if not old.memory_mib and new.memory_mib:
            return f"container {name} has no memory limit that could change"
        is_memory_ok = new.memory_mib > 0 or new.memory_mib == old.memory_mib
        is_cores_ok = 0 < new.cores <= 100 or new.cores == old.cores
        if not (is_memory_ok and is_cores_ok):
            return f"the approval would lift a limit of container {name}"
    return Step(vendor=vendor, container=container, entry=entry, before=before, target=target)
