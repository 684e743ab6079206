"""The parts of the `kubernetes` package that we use, without the parts that we do not.

`import kubernetes` loads its models, OAuth, websockets and informers: 18.7 MiB and 235 ms beside
what the daemon has loaded anyway. A configuration object and a connection pool need 3.1 and 61.
Only the packages' `__init__` files are left out, and only while we import; afterwards everybody
else's `import kubernetes` works as ever.
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
    """The package as an empty module that knows where its submodules lie; None without it."""
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

    A release of `kubernetes` whose parts can't be loaded alone is imported whole: correct, only
    larger.

    Raises:
        ImportError: the package is not installed or lacks one of the modules.
    """
    try:
        with _bare_packages():
            return tuple(importlib.import_module(name) for name in names)
    except (ImportError, AttributeError):
        return tuple(importlib.import_module(name) for name in names)
