"""How much memory an object holds on to, by what it refers to and by nothing else.

tracemalloc counts all threads of the process, and so what earlier tests left running.
"""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType)


def kept_bytes(*roots: object) -> int:
    """Size of all that is reachable from `roots`; types, modules and functions are left out."""
    seen: set[int] = set()
    size, level = 0, list[object](roots)
    while level:
        fresh = {id(item): item for item in level if not isinstance(item, _CODE)}
        level = [item for key, item in fresh.items() if key not in seen]
        seen |= fresh.keys()
        size += sum(map(sys.getsizeof, level))
        level = gc.get_referents(*level)
    return size
