"""Labels of counters: short, and only so many different ones."""

from __future__ import annotations

from typing import Final

from hami_node.metrics.cards import MAX_LABEL_CHARS

MAX_SETS: Final = 500
"""Different sets of labels of one counter. Counters never forget, so there has to be an end."""
OTHER: Final = "other"


class LabelSets:
    """The sets of labels that one counter has; any beyond `MAX_SETS` is counted as `other`."""

    def __init__(self) -> None:
        """Start without sets."""
        self._known: set[tuple[str, ...]] = set()

    def bounded(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels to count by."""
        labels = tuple(label[:MAX_LABEL_CHARS] for label in labels)
        if labels not in self._known:
            if len(self._known) >= MAX_SETS:
                return (OTHER,) * len(labels)
            self._known.add(labels)
        return labels
