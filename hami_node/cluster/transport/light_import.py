"""The parts of the `kubernetes` package that we use, without the rest.

`import kubernetes` loads its models, OAuth, websockets and informers: 18.7 MiB and 235 ms on top of
what the daemon loads anyway. A configuration object and a connection pool need 3.1 and 61.
Only the packages' `__init__` files are left out, and only during our imports; afterwards
`import kubernetes` works as usual for everybody.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_PACKAGES = ("kubernetes", "kubernetes.utils", "kubernetes.config")


def _bare_package(name: str) -> ModuleType | None:
    """The package as an empty module with the path of its submodules; None without it."""
    spec = importlib.util.find_spec(name)
    return None if spec is None else importlib.util.module_from_spec(spec)


@contextmanager
def _bare_packages() -> Iterator[None]:
    added: list[str] = []
    try:
        for name in _PACKAGES:
            if name in sys.modules:
                continue
            module = _bare_package(name)
            if module is not None:
                sys.modules[name] = module
                added.append(name)
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)


def import_light(*names: str) -> tuple[ModuleType, ...]:
    """Import submodules of `kubernetes` without running the packages' own `__init__`.

    If the parts of some release of `kubernetes` can't be loaded alone, it is imported as a whole,
    which works as well but takes more memory.

    Raises:
        ImportError: the package is not installed or lacks one of the modules.
    """
    try:
        with _bare_packages():
            return tuple(importlib.import_module(name) for name in names)
    except (ImportError, AttributeError):
        return tuple(importlib.import_module(name) for name in names)
