"""What the service accounts of the daemon and of the extender have no rights on."""

from __future__ import annotations

from typing import Final

import pytest

from tests.e2e.api import Api, ApiError
from tests.e2e.daemon import NAMESPACE
from tests.e2e.scheduler import NODE_PATH

UNREADABLE: Final = (
    "/api/v1/secrets",
    f"/api/v1/namespaces/{NAMESPACE}/configmaps",
    "/apis/apps/v1/daemonsets",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    f"{NODE_PATH}/proxy/pods",
)


def check_unreadable(thief: Api, path: str) -> None:
    """Fail unless reading is forbidden."""
    with pytest.raises(ApiError) as denied:
        thief.read(path)
    assert denied.value.status == 403
