"""Older names of the state."""

from typing import TypeAlias

from hami_node.node.state import NodeState

NodeParts: TypeAlias = NodeState
ClusterParts: TypeAlias = NodeState
