"""Packages that not every installation has: the extras of `pip install`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import Final

from hami_node.errors import HamiError

_PACKAGE: Final = "hami-node"
EXTENDER: Final = "extender"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


class PackageMissing(HamiError):
    """A package that a command needs is not installed; the message says how to get it."""

    def __init__(self, name: str, extra: str) -> None:
        """Compose one line a person can act on."""
        super().__init__(
            f"the Python package {name} is missing: "
            f"pip install '.[{extra}]' in a checkout of {_PACKAGE}, or use its image"
        )


def missing_package(error: ModuleNotFoundError) -> PackageMissing | None:
    """What to tell about a module that could not be imported; None unless an extra has it."""
    wanted = (error.name or "").partition(".")[0]
    return next((PackageMissing(name, extra) for name, extra in _extras() if name == wanted), None)


def need(extra: str) -> None:
    """Check that an extra is installed, before a program that needs it is started.

    Raises:
        PackageMissing: it is not.
    """
    for name, of_extra in _extras():
        if of_extra == extra and find_spec(name) is None:
            raise PackageMissing(name, extra)


def _extras() -> Iterator[tuple[str, str]]:
    """Each package that only an extra has, with the extra; its module is called like it."""
    try:
        required = metadata.requires(_PACKAGE) or []
    except metadata.PackageNotFoundError:  # run from its source
        return
    for requirement in required:
        name, extra = _NAME.match(requirement), _EXTRA.search(requirement)
        if name and extra:
            yield name.group().replace("-", "_"), extra.group(1)
