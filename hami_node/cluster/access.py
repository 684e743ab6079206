"""How a person reaches a cluster, as kubectl's flags and environment say it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Which kubeconfigs, which of their contexts, and as whom.

    Attributes:
        kubeconfigs: merged as kubectl does it: the first file that sets something wins, and one of
            several may be missing. () for the service account of the pod that we run in.
        context: "" for the current one of the files.
        as_user, as_groups: whom to act as; "" and () for oneself.
    """

    kubeconfigs: tuple[Path, ...] = ()
    context: str = ""
    as_user: str = ""
    as_groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, kubeconfig: Path | None) -> Access:
        """Access by a single file, or with None by the pod's service account."""
        return cls() if kubeconfig is None else cls(kubeconfigs=(kubeconfig,))
