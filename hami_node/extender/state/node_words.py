"""What nodes say that their resized containers hold: the only thing that lowers what one counts.

A tenant may edit its pods, but no node; and a daemon writes its own node only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from hami_node.engine.resize import with_container
from hami_node.engine.usage import PodGrants, larger_of
from hami_node.errors import WireError
from hami_node.extender.state.counted_pod import NO_WORDS
from hami_node.model import ContainerGrants, Node, Pod
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.resize import Word, Words, decode_approval, decode_slot, decode_words


class NodeWords:
    """The words of all nodes. Not thread-safe: its owner holds a lock."""

    def __init__(self, vendors: Sequence[VendorProtocol]) -> None:
        """Nothing was said yet."""
        self._vendors = {vendor.cards.word: vendor for vendor in vendors}
        self._said: dict[str, tuple[str, Words]] = {}

    def hear(self, name: str, node: Node | None) -> Collection[str]:
        """Take the words of a node, None for one that is gone; the uids of pods they changed of."""
        text = "" if node is None else node.annotations.get(names.NODE_RESIZED, "")
        before, known = self._said.get(name, ("", {}))
        if text == before:
            return ()
        words = decode_words(text)
        if words:
            self._said[name] = text, words
        else:
            self._said.pop(name, None)
        uids = known.keys() | words.keys()
        return {uid for uid in uids if known.get(uid, NO_WORDS) != words.get(uid, NO_WORDS)}

    def about(self, pod: Pod) -> Mapping[str, Word]:
        """What the pod's node says of its containers, by their names."""
        _, words = self._said.get(pod.node_name, ("", {}))
        return words.get(pod.uid, NO_WORDS)

    def floor(self, pod: Pod, seen: PodGrants) -> PodGrants:
        """What the pod holds at least: what was seen of it, or what its node says.

        For a container that has carried out all that was approved the word alone counts; while
        another approval is under way, what was seen counts as well.
        """
        said = self.about(pod)
        if not said:
            return seen
        if not any(seen.containers):
            kinds = tuple(container.kind for container in pod.containers)
            seen = replace(seen, containers=((),) * len(kinds), kinds=kinds)
        if len(seen.containers) != len(pod.containers):
            return seen
        approval = decode_approval(pod.annotations.get(names.POD_RESIZE_APPROVED, ""), pod.uid)
        for index, container in enumerate(pod.containers):
            word = said.get(container.name)
            grants = () if word is None else self._grants(word)
            if word is None or not grants:
                continue
            is_settled = approval is not None and (
                approval.id == word.id or container.name not in approval.grants
            )
            seen = with_container(seen, index, _floor(seen.containers[index], grants, is_settled))
        return seen

    def _grants(self, word: Word) -> ContainerGrants:
        vendor = self._vendors.get(word.vendor)
        if vendor is None:
            return ()
        try:
            return decode_slot(word.grants, names.NODE_RESIZED, vendor.cards)
        except WireError:
            return ()


def _floor(seen: ContainerGrants, said: ContainerGrants, is_settled: bool) -> ContainerGrants:
    vendor = said[0].vendor
    others = tuple(grant for grant in seen if grant.vendor is not vendor)
    own = tuple(grant for grant in seen if grant.vendor is vendor)
    return (*others, *(said if is_settled else larger_of(own, said)))
