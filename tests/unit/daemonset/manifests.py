"""Reads the manifests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).parents[3] / "daemonset"
Object = dict[str, Any]
Right = tuple[str, str, str, str]


def documents(path: Path) -> list[Object]:
    """The objects of one file."""
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def rights_of(roles: Iterable[Object]) -> set[Right]:
    """(group, resource, one name or "", verb) of all rules."""
    return {
        (group, resource, name, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def starts_on(pod_spec: Object, labels: dict[str, str]) -> bool:
    """Whether a pod's node selector and required affinity match a node with these labels."""
    if not pod_spec.get("nodeSelector", {}).items() <= labels.items():
        return False
    affinity = pod_spec.get("affinity", {}).get("nodeAffinity")
    if affinity is None:
        return True
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    found = {"kubernetes.io/arch": "amd64"} | labels
    return any(all(_matches(one, found) for one in term["matchExpressions"]) for term in terms)


def _matches(expression: Object, labels: dict[str, str]) -> bool:
    is_in = labels.get(expression["key"]) in expression["values"]
    return {"In": is_in, "NotIn": not is_in}[expression["operator"]]
