"""Keys that no setting has: whose they would be, and what was meant.

Ours alone are the section `hami-node:`, the spelling of our flags with hyphens, and the keys of an
entry that HAMi never had. What looks like one of them is an error, since nobody else reads it and
what was wished for does not happen. Any other key may be one of another version of HAMi: a warning,
also where a setting of ours has nearly that name, or a new version of HAMi would stop all daemons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from hami_node.config.settings import Declaration, declarations
from hami_node.setting_types import Blocks

OWN_SECTION: Final = "hami-node"
"""Section of device-config.yaml with our own settings, spelled as their flags."""
NOT_FROM_FILES: Final = frozenset({"node_name", "kubeconfig"})
_LIKENESS: Final = 0.8
"""Above it two names are taken for one, misspelt: `difflib`'s ratio of equal letters."""
_LONGEST: Final = 64
"""Longer names are not compared: none of ours is, and comparing takes the square of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An object of a file, with what may stand in it.

    Attributes:
        known: the keys that may stand here, and other spellings of them, each with the key.
        own: the keys among them that are ours alone.
        elsewhere: spellings that are ours and stand in another place, each with what to write.
        is_own: every key here is ours.
    """

    known: Mapping[str, str]
    own: Collection[str] = ()
    elsewhere: Mapping[str, str]
    is_own: bool = False


def judged(key: str, place: Place) -> tuple[bool, str]:
    """Whether an unknown key of this place is an error, and what is wrong; "" if unknown."""
    if place.is_own:
        why = same(key, place.elsewhere)
        right = "" if why else same(key, place.known) or nearest(key, place.known)
        return True, why or "there is no such setting" + _did_you_mean(right)
    right = same(key, place.known)
    if not right and (where := same(key, place.elsewhere)):
        return "-" in key and key in place.elsewhere, where
    right = right or nearest(key, place.known)
    return right in place.own, "unknown" + _did_you_mean(right) if right else ""


def _did_you_mean(right: str) -> str:
    return f"; did you mean {right}?" if right else ""


def _bare(name: str) -> str:
    """A name without case and punctuation: `split-count` and `splitCount` are one."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def same(name: str, known: Mapping[str, str]) -> str:
    """What to write for a name that differs in case and punctuation only; "" for nothing.

    `known` has every known spelling with what is to be written for it.
    """
    wanted = _bare(name)
    return next((right for spelling, right in known.items() if _bare(spelling) == wanted), "")


def nearest(name: str, known: Mapping[str, str]) -> str:
    """What to write for a name that looks like a known one; "" for nothing."""
    if len(name) > _LONGEST:
        return ""
    from difflib import get_close_matches  # seldom needed, and the daemon starts quickly

    by_letters = {_bare(spelling): right for spelling, right in reversed(list(known.items()))}
    found = get_close_matches(_bare(name), by_letters, n=1, cutoff=_LIKENESS)
    return by_letters[found[0]] if found else ""


# -- the places ------------------------------------------------------------------------------------
def own_section(blocks: Blocks) -> Place:
    """The section `hami-node:`; HAMi's names of a setting are known there as what was meant."""
    known: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    for setting in declarations(blocks).values():
        if setting.name in NOT_FROM_FILES:
            elsewhere[setting.flag] = (
                f"no file can set it: use the flag --{setting.flag} or the environment"
            )
            continue
        names = setting.names
        for spelling in (setting.flag, *names.flags, *filter(None, (names.yaml, names.node))):
            known.setdefault(spelling, setting.flag)
    return Place(known=known, elsewhere=elsewhere, is_own=True)


def vendor_section(blocks: Blocks, known: Mapping[str, Declaration]) -> Place:
    """A vendor's section, whose keys are HAMi's."""
    return Place(known={key: key for key in known}, elsewhere=_in_own_section(blocks, "this file"))


def node_entry(blocks: Blocks, known: Collection[str]) -> Place:
    """An entry of config.json's `nodeconfig`."""
    own = {key for block in blocks for key in block.own_node_keys}
    elsewhere = _in_own_section(blocks, "device-config.yaml, for all nodes")
    return Place(known={key: key for key in known}, own=own, elsewhere=elsewhere)


def document(blocks: Blocks) -> Place:
    """device-config.yaml itself, whose keys are sections."""
    sections = {block.section: f"{block.section}:" for block in blocks if block.section}
    return Place(
        known={**sections, OWN_SECTION: f"{OWN_SECTION}:"},
        own=(f"{OWN_SECTION}:",),
        elsewhere=_in_own_section(blocks, "this file"),
    )


def environment(blocks: Blocks, prefix: str) -> Place:
    """Our environment variables, by what follows the prefix, which makes no two of them alike."""
    known: dict[str, str] = {}
    for setting in declarations(blocks).values():
        for spelling in (setting.flag, *setting.names.flags, *setting.names.env):
            known.setdefault(spelling, prefix + setting.name.upper())
    return Place(known=known, own=tuple(known.values()), elsewhere={})


def _in_own_section(blocks: Blocks, where: str) -> dict[str, str]:
    """Our flags as keys, each with the place where it is one."""
    return {
        setting.flag: f"this is ours: write it as {setting.flag} below {OWN_SECTION}: in {where}"
        for setting in declarations(blocks).values()
        if setting.name not in NOT_FROM_FILES
    }
