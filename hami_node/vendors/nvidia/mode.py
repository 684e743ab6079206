"""How a card is shared."""

from __future__ import annotations

from enum import StrEnum

from hami_node.model import DEFAULT_MODE


class Mode(StrEnum):
    """How a card is shared, in the words of HAMi's configuration and annotations."""

    HAMI_CORE = DEFAULT_MODE
    MIG = "mig"
    MPS = "mps"


class MigStrategy(StrEnum):
    """How MIG instances that others have made are offered, in the words of NVIDIA's plugin."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"
