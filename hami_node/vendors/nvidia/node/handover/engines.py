"""Which kubelets and container engines take CDI names, by their versions. Pure.

Source: the feature gate DevicePluginCDIDevices (on from Kubernetes 1.29), containerd's option
enable_cdi (from 1.7, on from 2.0), CRI-O (on in all versions that go with Kubernetes 1.28).
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})")
_FIRST_KUBELET: Final = (1, 29)
_CDI_POSSIBLE, _CDI_ON = (1, 7), (2, 0)
_FIRST_CRI_O: Final = (1, 28)


class CdiSupport(Enum):
    """What a container engine does with CDI names."""

    ON = auto()
    MAYBE = auto()
    """It depends on its configuration, which can't be seen; or the engine is unknown."""
    NONE = auto()


def ignores_cdi_names(kubelet: str) -> bool:
    """True for a kubelet that silently drops the CDI names of a device plugin's answer."""
    found = _version(kubelet)
    return found is not None and found < _FIRST_KUBELET


def cdi_support(engine: str) -> CdiSupport:
    """What the node's engine does, as `containerd://2.0.1` names it."""
    name, _, text = engine.partition("://")
    version = _version(text)
    if version is None:
        return CdiSupport.MAYBE
    if name == "containerd":
        if version >= _CDI_ON:
            return CdiSupport.ON
        return CdiSupport.MAYBE if version >= _CDI_POSSIBLE else CdiSupport.NONE
    if name == "cri-o":
        return CdiSupport.ON if version >= _FIRST_CRI_O else CdiSupport.MAYBE
    return CdiSupport.MAYBE


def _version(text: str) -> tuple[int, int] | None:
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None
