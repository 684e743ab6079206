"""Everything in examples/ is applied as it stands, but for the image, and gets what it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from hami_node.wire import names
from tests.e2e.api import Api, Json
from tests.e2e.parts import BUSYBOX
from tests.e2e.pods import Pods
from tests.e2e.waiting import eventually

_EXAMPLES: Final = Path(__file__).parents[2] / "examples"
_COLLECTIONS: Final = {
    "Pod": "/api/v1/namespaces/default/pods",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
}
_COUNTS: Final = {"deployment": 3, "job": 3, "priority": 2}
"""Pods that an example makes, where it is not one."""


def documents(example: str) -> list[Json]:
    """The objects of an example, with an image that the cluster has."""
    text = (_EXAMPLES / f"{example}.yaml").read_text()
    found: list[Json] = list(yaml.safe_load_all(text))
    for manifest in found:
        pod = manifest if manifest["kind"] == "Pod" else manifest["spec"]["template"]
        spec = pod["spec"]
        spec["terminationGracePeriodSeconds"] = 1
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            container |= {"image": BUSYBOX, "imagePullPolicy": "Never"}
    return found


@pytest.fixture
def applied(api: Api, pods: Pods, request: pytest.FixtureRequest) -> Iterator[str]:
    """The example that the test names, applied; its owners are deleted before their pods."""
    example: str = request.param
    manifests = documents(example)
    for manifest in manifests:
        api.create(_COLLECTIONS[manifest["kind"]], manifest)
    yield example
    for manifest in manifests:
        api.delete(f"{_COLLECTIONS[manifest['kind']]}/{manifest['metadata']['name']}")
    pods.clear()


@pytest.mark.usefixtures("extender")
@pytest.mark.parametrize(
    "applied", sorted(path.stem for path in _EXAMPLES.glob("*.yaml")), indirect=True
)
def test_example_gets_what_it_asks_for(pods: Pods, applied: str) -> None:
    count = _COUNTS.get(applied, 1)

    def probe() -> list[Json]:
        found = pods.all()
        phases = [pod["status"]["phase"] for pod in found]
        assert len(found) == count, phases
        assert set(phases) <= {"Running", "Succeeded"}, phases
        if applied == "job":
            assert set(phases) == {"Succeeded"}, phases
        return found

    for pod in eventually(f"{count} pods of {applied}", probe):
        annotations = pod["metadata"]["annotations"]
        assert annotations[names.POD_BIND_PHASE] == names.PHASE_SUCCESS
