"""The names of ACME's protocol."""

from __future__ import annotations

from typing import Final

NODE_REGISTER: Final = "hami.io/node-acme-register"
NODE_HANDSHAKE: Final = "hami.io/node-handshake-ACME"
POD_TO_ALLOCATE: Final = "hami.io/acme-devices-to-allocate"
POD_ALLOCATED: Final = "hami.io/acme-devices-allocated"
MIN_FIRMWARE: Final = "acme.example/min-firmware"
RESOURCE_CARD: Final = "acme.example/card"
RESOURCE_MEMORY: Final = "acme.example/memory"
RESOURCE_CORES: Final = "acme.example/cores"
ENV_CARDS: Final = "ACME_CARDS"
ENV_MEMORY: Final = "ACME_MEMORY_MIB"
