"""What a container needs of its MIG instances on the host: device nodes, and CDI specs."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami_node.errors import AllocationError
from hami_node.logs import kv
from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.driver import HOST, HOST_MOUNT, DriverRoot
from hami_node.vendors.nvidia.mig.layout import mig_of, minor_of, minors_of
from hami_node.vendors.nvidia.node.handover.cdi_spec import (
    CAPABILITY_MODE,
    CdiSpec,
    DriverOnHost,
    HostNode,
    make_instance_spec,
)
from hami_node.vendors.nvidia.node.handover.choice import cdi_name
from hami_node.vendors.nvidia.node.handover.driver_files import no_minor, node
from hami_node.vendors.nvidia.node.handover.handed import Instance
from hami_node.vendors.nvidia.node.handover.spec_file import SpecFile

log = logging.getLogger(__name__)


UNSEEN: Final = (
    "the host's /dev/nvidia-caps is not mounted here (daemonset/components/mig): unless something "
    "else makes the device nodes of MIG instances there, as MIG Manager does, NVIDIA's runtime "
    "leaves them out, and containers can't use their instances"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the cards of a node are: the driver's root, None for simulated cards; their minors."""

    root: DriverRoot | None
    minors: Mapping[Uuid, int] = field(default_factory=dict)


class Instances:
    """Hands over the instances of one node. Used by one thread at a time."""

    def __init__(self, spec_folder: Path, caps: CapNodes) -> None:
        """Nothing is read or made yet."""
        self._specs, self._caps = InstanceSpecs(spec_folder), caps
        self._is_told = False

    @staticmethod
    def place(root: DriverRoot | None, cards: Iterable[Device]) -> Place:
        """Where these cards are; without a root they are simulated."""
        return Place(root=root, minors=minors_of(cards))

    def for_kubelet(self, instances: Iterable[Instance], place: Place) -> tuple[HostNode, ...]:
        """Device nodes that are on the host, of the cards and of both capabilities of each.

        Raises:
            AllocationError: the driver does not report them, or one is not there.
        """
        found: list[HostNode] = []
        for instance in instances:
            its = self._nodes(instance, place)
            for cap in its[1:]:
                if self._ensure(cap, place) is None:
                    raise AllocationError(unseen(instance))
            found += its
        return tuple(found)

    def for_runtime(self, instances: Iterable[Instance], place: Place) -> None:
        """In its CDI modes the runtime leaves out capabilities that have no node, without a word.

        Raises:
            AllocationError: they are known to have none, and can't be given one.
        """
        for instance in instances:
            try:
                its = self._nodes(instance, place)
            except AllocationError as e:
                self._tell(str(e))
                continue
            for cap in its[1:]:
                if self._ensure(cap, place) is None:
                    self._tell(UNSEEN)

    def for_engine(self, instances: Iterable[Instance], place: Place, driver: DriverOnHost) -> None:
        """A spec for each. The engine makes nodes whose numbers are known; others have to be there.

        Raises:
            AllocationError: the driver does not report the nodes, or one is not there.
            OSError: a spec can't be written.
        """
        for instance in instances:
            its = self._nodes(instance, place)
            for cap in its[1:]:
                if cap.numbers is None:
                    self._ensure(cap, place)
            self._specs.write(instance, make_instance_spec(instance.uuid, its, driver))

    def keep(
        self,
        cards: Sequence[Device],
        held: frozenset[str] | None,
        place: Place,
        driver: DriverOnHost | None,
    ) -> frozenset[str]:
        """Bring the specs up to date; see `InstanceSpecs.keep`. Raises OSError.

        `driver` is None where no specs are wanted, or its files are not there.
        """

        def spec_of(instance: Instance) -> CdiSpec | None:
            if driver is None:
                return None
            try:
                return make_instance_spec(instance.uuid, self._nodes(instance, place), driver)
            except AllocationError:
                return None

        return self._specs.keep(cards, held, spec_of)

    def _nodes(self, instance: Instance, place: Place) -> tuple[HostNode, ...]:
        """Its card's node and both capabilities'; none for simulated cards.

        Raises:
            AllocationError: the driver does not report them.
        """
        if place.root is None:
            return ()
        minor = place.minors.get(instance.card)
        if minor is None:
            raise AllocationError(no_minor(instance.card))
        parent = node(place.root, f"nvidia{minor}")
        return parent, *self._caps.of(place.root, minor, instance)

    def _tell(self, reason: str) -> None:
        """Once: it is the same for every container."""
        if not self._is_told:
            self._is_told = True
            log.warning("mig_device_nodes_not_seen", extra=kv(reason=reason))

    def _ensure(self, cap: HostNode, place: Place) -> bool | None:
        return self._caps.ensure(place.root, cap) if place.root is not None else False


# -- The driver's capabilities of MIG instances: their numbers, and their device nodes on the host.
# A program can use an instance where it can open `/dev/nvidia-caps/nvidia-cap<n>` of the GPU
# instance and of the compute instance. The driver says n; somebody has to make the nodes.
PROC: Final = Path("/proc")
MINORS: Final = Path("driver/nvidia-caps/mig-minors")
FOLDER: Final = Path("dev/nvidia-caps")
_DRIVER_NAME: Final = "nvidia-caps"
_MAX_BYTES: Final = 4 * 1024 * 1024
_MAX_MINOR: Final = (1 << 20) - 1
_MAX_MAJOR: Final = (1 << 12) - 1


def find_caps(text: str, minor: int, instance: Instance) -> tuple[int, int] | None:
    """The numbers of both capabilities by mig-minors; None unless each has exactly one."""
    gpu = f"gpu{minor}/gi{instance.gpu_instance_id}"
    found = (
        _only(text, f"{gpu}/access"),
        _only(text, f"{gpu}/ci{instance.compute_instance_id}/access"),
    )
    of_gpu, of_compute = found
    if of_gpu is None or of_compute is None or of_gpu == of_compute:
        return None
    return of_gpu, of_compute


def find_major(text: str) -> int | None:
    """The major number of the capabilities' nodes by /proc/devices; None where it has none."""
    major = _only(text.partition("Block devices:")[0], _DRIVER_NAME, is_first=False)
    return major if major is not None and 0 < major <= _MAX_MAJOR else None


def _only(text: str, name: str, *, is_first: bool = True) -> int | None:
    """The number beside a name, which stands in one line only."""
    word, number = re.escape(name), r"(\d{1,7})"
    line = rf"^{word} {number}[ \t]*$" if is_first else rf"^[ \t]*{number} {word}[ \t]*$"
    found = re.findall(line, text, re.ASCII | re.MULTILINE)
    return int(found[0]) if len(found) == 1 and int(found[0]) <= _MAX_MINOR else None


class CapNodes:
    """Finds the device nodes of instances, and makes those that are missing where it may."""

    def __init__(self, proc: Path = PROC, host: Path = HOST_MOUNT) -> None:
        """`proc` is this kernel's, `host` is where folders of the host may be mounted."""
        self._proc, self._host = proc, host

    def of(self, root: DriverRoot, minor: int, instance: Instance) -> tuple[HostNode, HostNode]:
        """The nodes of GPU instance and compute instance, whether the host has them or not.

        Raises:
            AllocationError: the driver does not report them.
        """
        caps = None
        for place in (self._proc, root.inside / "proc"):
            caps = caps or find_caps(_text(place / MINORS), minor, instance)
        if caps is None:
            raise AllocationError(
                f"{self._proc / MINORS} does not list the capabilities of MIG instance "
                f"{instance.uuid} (gpu{minor}/gi{instance.gpu_instance_id}/"
                f"ci{instance.compute_instance_id}): is the driver 470 or later, and this folder "
                "of /proc visible in the daemon's container?"
            )
        major = find_major(_text(self._proc / "devices"))
        of_gpu, of_compute = (self._node(root, number, major) for number in caps)
        return of_gpu, of_compute

    def ensure(self, root: DriverRoot, found: HostNode) -> bool | None:
        """Make a node that the host lacks; None where the host's folder can't be seen from here.

        Raises:
            AllocationError: it is not there and can't be made, or is another's.
        """
        folder = self._folder(root)
        if folder is None:
            return None
        path = folder / found.path.rpartition("/")[2]
        if self._is_there(path, found):
            return False
        try:
            _make(path, found)
        except OSError as e:
            if self._is_there(path, found):
                return False  # somebody else has just made it
            raise AllocationError(_missing(found, e.strerror or str(e))) from e
        return True

    def _folder(self, root: DriverRoot) -> Path | None:
        """The host's /dev/nvidia-caps as mounted here; our own container's is not the host's."""
        mounted = self._host / FOLDER
        if root.dev_host == HOST and mounted.is_dir():
            return mounted
        is_seen = root.dev_inside != HOST and (root.dev_inside / "dev").is_dir()
        return root.dev_inside / FOLDER if is_seen else None

    def _node(self, root: DriverRoot, number: int, major: int | None) -> HostNode:
        found = node(root, f"nvidia-caps/nvidia-cap{number}")
        numbers = (major, number) if major is not None else None
        return HostNode(path=found.path, host_path=found.host_path, numbers=numbers)

    @staticmethod
    def _is_there(path: Path, found: HostNode) -> bool:
        """With another number it belonged to an earlier load of the driver."""
        try:
            status = path.stat()
        except OSError:
            return False
        if found.numbers is None:
            return not stat.S_ISDIR(status.st_mode)
        is_node = stat.S_ISCHR(status.st_mode)
        return is_node and status.st_rdev == os.makedev(*found.numbers)


def unseen(instance: Instance) -> str:
    """Why kubelet can't be told the nodes of an instance, and what to do."""
    return (
        f"whether the host has the device nodes of MIG instance {instance.uuid} can't be seen: "
        f"mount the host's /{FOLDER} at {HOST_MOUNT / FOLDER} (daemonset/components/mig), or "
        "switch PASS_DEVICE_SPECS off"
    )


def _make(path: Path, found: HostNode) -> None:
    if found.numbers is None:
        raise FileNotFoundError(2, "the kernel names no driver nvidia-caps in /proc/devices")
    os.mknod(path, stat.S_IFCHR | CAPABILITY_MODE, os.makedev(*found.numbers))
    path.chmod(CAPABILITY_MODE)  # whatever the umask


def _missing(found: HostNode, why: str) -> str:
    return (
        f"the host has no usable {found.host_path}, without which the container can't open its "
        f"MIG instance, and it can't be made ({why}): run nvidia-smi once on the host, or "
        "nvidia-modprobe -f with the instance's file below /proc/driver/nvidia/capabilities; or "
        "give the daemon the rights for it (daemonset/components/mig)"
    )


def _text(path: Path) -> str:
    """The beginning of a file; "" where there is none."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("ascii", errors="replace")
    except OSError:
        return ""


# -- CDI specs of MIG instances: one small file for each, so that none waits for the others --------
# A file is there before the answer that names its instance, and goes after the instance has gone.
_NAME: Final = re.compile(r"hami-node\.io-gpu-(MIG-[A-Za-z0-9_-]{1,100})\.json", re.ASCII)


def file_name(instance: str) -> str:
    """The name of an instance's file; engines read all names that end like this."""
    return f"hami-node.io-gpu-{instance}.json"


class InstanceSpecs:
    """The files in a folder that the container engine reads. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read or made yet."""
        self._folder = folder
        self._seen: dict[str, Uuid] = {}
        self._new: set[str] = set()  # in answers, and in no scan yet

    def write(self, instance: Instance, spec: CdiSpec) -> None:
        """Have the file of an instance that is there now, whatever the last scan has seen.

        A file with the same capabilities is of an instance that is gone: the driver numbers them
        by the place of an instance in its lists, and uses the numbers again.

        Raises:
            OSError: it can't be written.
        """
        for name, other in self._present():
            if name != instance.uuid and not _caps(spec).isdisjoint(_caps(other)):
                self._remove(name)
                self._new.discard(name)
        self._new.add(instance.uuid)
        self._put(instance.uuid, spec)

    def keep(
        self,
        cards: Sequence[Device],
        held: frozenset[str] | None,
        spec_of: Callable[[Instance], CdiSpec | None],
    ) -> frozenset[str]:
        """Files of what is held are right, those of what is gone go; what went since the last time.

        A file goes with its instance even if a container on record names it: the next instance has
        the same capabilities, and that container would be given them when it starts again.

        Args:
            cards: with their instances, as last seen.
            held: CDI names in answers; None while these are not known.
            spec_of: the spec of an instance; None where it can't be told now.

        Raises:
            OSError: a file can't be written or removed.
        """
        present = dict(self._present())
        existing = {found.uuid: found for card in cards for found in instances_on(card)}
        self._new -= existing.keys()
        newer = frozenset(
            path for name in self._new & present.keys() for path in _caps(present[name])
        )
        for name, found in existing.items():
            is_wanted = name in present if held is None else cdi_name(name) in held
            spec = spec_of(found) if is_wanted else None
            if spec is not None and newer.isdisjoint(_caps(spec)):
                self._put(name, spec)
        parents = _parents(cards)
        for name in present.keys() - existing.keys() - self._new:
            if _parent(present[name]) in parents:  # others may be another daemon's
                self._remove(name)
        return self._gone(existing, {card.uuid for card in cards if _is_readable(card)})

    def _put(self, name: str, spec: CdiSpec) -> None:
        file = self._file(name)
        if file.write(spec):
            log.info("cdi_spec_of_instance_written", extra=kv(file=str(file.path)))

    def _remove(self, name: str) -> None:
        if self._file(name).remove():
            log.info("cdi_spec_of_instance_removed", extra=kv(instance=name))

    def _gone(self, existing: Mapping[str, Instance], known: set[Uuid]) -> frozenset[str]:
        gone = {name for name, card in self._seen.items() if name not in existing and card in known}
        self._seen |= {name: found.card for name, found in existing.items()}
        for name in gone:
            del self._seen[name]
        return frozenset(gone)

    def _present(self) -> Iterator[tuple[str, CdiSpec]]:
        """Our files by the instance that they are for, if it is the only one in there."""
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return
        for found in filter(None, map(_NAME.fullmatch, names)):
            spec = self._file(found[1]).read()
            if spec is not None and [device.name for device in spec.devices] == [found[1]]:
                yield found[1], spec

    def _file(self, name: str) -> SpecFile:
        return SpecFile(self._folder, file_name(name))


def instances_on(card: Device) -> Iterator[Instance]:
    """The instances with a MIG device that the driver reports for a card."""
    mig = mig_of(card)
    for found in mig.instances if mig is not None else ():
        if found.device is not None:
            yield Instance(
                uuid=found.device.uuid,
                card=card.uuid,
                gpu_instance_id=found.device.gpu_instance_id,
                compute_instance_id=found.device.compute_instance_id,
            )


def _caps(spec: CdiSpec) -> frozenset[str]:
    """The nodes of an instance's capabilities."""
    return frozenset(node.path for node in spec.devices[0].container_edits.device_nodes[1:])


def _parent(spec: CdiSpec) -> str:
    """The node of an instance's card; "" where it has none."""
    return next((node.path for node in spec.devices[0].container_edits.device_nodes), "")


def _is_readable(card: Device) -> bool:
    """What the driver reports of the card's instances is all that there are."""
    mig = mig_of(card)
    is_all = mig is None or not (mig.problem or mig.restriction)
    return minor_of(card) is not None and is_all


def _parents(cards: Sequence[Device]) -> frozenset[str]:
    """The nodes of cards whose instances are known."""
    minors = minors_of(cards)
    return frozenset(
        f"/dev/nvidia{minors[card.uuid]}"
        for card in cards
        if card.uuid in minors and _is_readable(card)
    )
