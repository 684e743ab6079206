"""The simulated backend for NVIDIA cards."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from hami_node.config.settings import Settings
from hami_node.errors import ConfigError
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.simulated import SimulatedBackend, SimulatedCards

NO_MIG: Final = (
    "simulated cards can't be divided, for MIG instances need a driver: give the card another mode "
    "in the file, or use the backend nvml"
)
SIMULATED: Final = SimulatedCards(
    vendor=NVIDIA,
    modes=MappingProxyType({mode.value: NO_MIG if mode is Mode.MIG else "" for mode in Mode}),
    default_uuid=lambda _node, _index, made: f"GPU-{made}",
)


def simulated_backend(settings: Settings) -> SimulatedBackend:
    """The cards of the file that the settings name.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    path = settings.of(NvidiaSettings).simulated_file
    if path is None:
        raise ConfigError(
            "settings", "simulated-file", None, "name the YAML file of the simulated cards"
        )
    return SimulatedBackend(path, settings.node_name, SIMULATED)
