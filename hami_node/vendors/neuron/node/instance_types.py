"""EC2 instance types with AWS Neuron devices, and how their devices are linked. Only data.

Sources: AWS Neuron documentation (neuron-hardware), address maps and link tables of the Neuron
driver, neuron-ls captures. Trainium 3 sizes are named by the driver only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

TORUS_SIDE: Final = 4
"""Trainium servers are a 4 x 4 torus, numbered by rows."""

SAGEMAKER_PREFIX: Final = "ml."
"""SageMaker HyperPod writes it before the instance type."""


class Wiring(StrEnum):
    """How the devices of one node are linked."""

    NONE = "none"
    LINE = "line"
    RING = "ring"
    TORUS = "torus2d"
    ALL = "all-to-all"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronType:
    """An EC2 instance type with Neuron devices.

    Attributes:
        family: generation of the chip.
        devices: chips of one node.
        physical_cores: cores of one chip; the driver's sysfs counts these.
        memory_mib: memory of one chip.
        lncs: how many physical cores may make one logical core, the default first.
    """

    family: str
    devices: int
    physical_cores: int
    memory_mib: int
    wiring: Wiring
    lncs: tuple[int, ...] = (1,)

    @property
    def logical_cores(self) -> tuple[int, ...]:
        """Possible numbers of logical cores on one chip, the default first."""
        return tuple(self.physical_cores // lnc for lnc in self.lncs)

    def links(self) -> tuple[tuple[int, ...], ...]:
        """Neighbours of each device in the driver's order; () where they are not documented."""
        if self.wiring is Wiring.UNKNOWN:
            return ()
        return tuple(self._links_of(device) for device in range(self.devices))

    def _links_of(self, device: int) -> tuple[int, ...]:
        last = self.devices - 1
        if self.wiring is Wiring.NONE:
            return ()
        if self.wiring is Wiring.LINE:
            return tuple(other for other in (device - 1, device + 1) if 0 <= other <= last)
        if self.wiring is Wiring.RING:
            return (device - 1) % self.devices, (device + 1) % self.devices
        if self.wiring is Wiring.ALL:
            return tuple(other for other in range(self.devices) if other != device)
        row, column = divmod(device, TORUS_SIDE)
        up, down = (row - 1) % TORUS_SIDE, (row + 1) % TORUS_SIDE
        left, right = (column - 1) % TORUS_SIDE, (column + 1) % TORUS_SIDE
        return (
            up * TORUS_SIDE + column,
            row * TORUS_SIDE + left,
            down * TORUS_SIDE + column,
            row * TORUS_SIDE + right,
        )


def _type(
    family: str, devices: int, physical_cores: int, memory_gib: int, wiring: Wiring
) -> NeuronType:
    # Only Trainium 2 and 3 combine two physical cores into a logical core, and do so by default.
    return NeuronType(
        family=family,
        devices=devices,
        physical_cores=physical_cores,
        memory_mib=memory_gib * 1024,
        wiring=wiring,
        lncs=(2, 1) if family in ("trn2", "trn3") else (1,),
    )


NEURON_TYPES: Final[Mapping[str, NeuronType]] = MappingProxyType(
    {
        "inf1.xlarge": _type("inf1", 1, 4, 8, Wiring.NONE),
        "inf1.2xlarge": _type("inf1", 1, 4, 8, Wiring.NONE),
        "inf1.6xlarge": _type("inf1", 4, 4, 8, Wiring.LINE),
        "inf1.24xlarge": _type("inf1", 16, 4, 8, Wiring.UNKNOWN),  # ring or line: undocumented
        "inf2.xlarge": _type("inf2", 1, 2, 32, Wiring.NONE),
        "inf2.8xlarge": _type("inf2", 1, 2, 32, Wiring.NONE),
        "inf2.24xlarge": _type("inf2", 6, 2, 32, Wiring.LINE),
        "inf2.48xlarge": _type("inf2", 12, 2, 32, Wiring.RING),
        "trn1.2xlarge": _type("trn1", 1, 2, 32, Wiring.NONE),
        "trn1.32xlarge": _type("trn1", 16, 2, 32, Wiring.TORUS),
        "trn1n.32xlarge": _type("trn1", 16, 2, 32, Wiring.TORUS),
        "trn2.3xlarge": _type("trn2", 1, 8, 96, Wiring.NONE),
        "trn2.48xlarge": _type("trn2", 16, 8, 96, Wiring.TORUS),
        "trn2u.48xlarge": _type("trn2", 16, 8, 96, Wiring.TORUS),
        "trn3.48xlarge": _type("trn3", 16, 8, 144, Wiring.ALL),
        "trn3e.24xlarge": _type("trn3", 4, 8, 144, Wiring.ALL),
    }
)
"""By the value of the node label, without SageMaker's prefix."""
