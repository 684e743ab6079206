"""What this node says of its resized containers, on the node object: the extender frees by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from hami_node.model import Node
from hami_node.record.ledger import Entry
from hami_node.wire import names
from hami_node.wire.resize import Word, encode_slot, encode_words


def words_of(entries: Iterable[Entry]) -> str:
    """The annotation: what every container holds whose resize is over, or was refused here."""
    words: dict[str, dict[str, Word]] = {}
    for entry in entries:
        if entry.resize is not None and not entry.resize.is_open and entry.container:
            word = Word(id=entry.resize.id, vendor=entry.vendor, grants=encode_slot(entry.grants))
            words.setdefault(entry.pod_uid, {})[entry.container] = word
    return encode_words(words)


class ResizedWords:
    """A `vendors.publication.Publication`. Where nothing was resized, it says that it could be."""

    def __init__(
        self,
        entries: Callable[[], Iterable[Entry]],
        is_loaded: Callable[[], bool],
        *,
        is_able: bool = True,
    ) -> None:
        """Publish the entries of the ledger, once it has been read; nothing unless `is_able`."""
        self._entries, self._is_loaded, self._is_able = entries, is_loaded, is_able

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The words, nothing before they are known."""
        del node, now
        if not self._is_able:
            return {names.NODE_RESIZED: None}
        return {names.NODE_RESIZED: words_of(self._entries())} if self._is_loaded() else {}

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """Nothing: the words are compared, not renewed."""
        del node, now
        return {}

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        """Nothing: what containers hold does not change when the daemon ends."""
        del node
        return {}
