"""How many items an object of a caller may have, whose size alone says little."""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from hami_node.errors import WireError
from hami_node.model import Pod

MAX_NODES: Final = 25_000
MAX_CONTAINERS: Final = 1_000
MAX_ANNOTATIONS: Final = 5_000


def check_count(what: str, items: Sized, most: int) -> None:
    """Raise WireError where there are more than `most` items."""
    if len(items) > most:
        raise WireError(what, str(len(items)), f"more than {most} are not accepted")


def check_pod(pod: Pod) -> None:
    """Raise WireError for a pod with more parts than any real one has."""
    check_count("containers", pod.containers, MAX_CONTAINERS)
    check_count("annotations", pod.annotations, MAX_ANNOTATIONS)
    check_count("labels", pod.labels, MAX_ANNOTATIONS)
