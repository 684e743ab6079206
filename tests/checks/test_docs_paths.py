"""Every file, folder, module, class and make target that the documents name exists."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names as wire_names
from tests.chart_values import documented

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ROOT / "hami_node"
PAGES: Final = sorted(
    (*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")))
)
TARGETS: Final = frozenset(
    re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
)
FOLDERS: Final = frozenset(
    path.name for base in (ROOT, PRODUCT) for path in base.iterdir() if path.is_dir()
) - {".venv", ".git"}
"""What a path in the documents begins with; it starts at the root or in hami_node/."""
ROOMS: Final = frozenset(path.stem for path in PRODUCT.iterdir() if path.stem != "__init__")
"""What a dotted name in the documents begins with."""
CHART_VALUES: Final = tuple(value.path for value in documented() if "." in value.path)

_FENCE: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_CODE: Final = re.compile(r"`([^`\n]+)`")
_PATH: Final = re.compile(r"[\w.-]+(/[\w.-]+)*/?")
_DOTTED: Final = re.compile(r"[a-z_]+(\.\w+)+")
_FILE: Final = re.compile(r"\.(json|md|py|toml|yaml)")


def is_path(word: str) -> bool:
    """True for `wire/names.py`, `vendors/` and `spec.py`; not for `nvidia.com/gpu` or `/filter`."""
    if not _PATH.fullmatch(word):
        return False
    first, slash, _ = word.partition("/")
    return first in FOLDERS if slash else word.endswith(".py")


def is_dotted(word: str) -> bool:
    """True for `model.Device` and `node.allocate.identity.Candidate`."""
    is_name = _DOTTED.fullmatch(word) is not None and not _FILE.search(word)
    return is_name and word.partition(".")[0] in ROOMS


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def names_something(dotted: str) -> bool:
    """True for a module of the product, or a name that is defined in it, not just imported."""
    parts = ["hami_node", *dotted.split(".")]
    count = max(n for n in range(1, len(parts) + 1) if is_module(".".join(parts[:n])))
    module = ".".join(parts[:count])
    found: object = import_module(module)
    for name in parts[count:]:
        found = getattr(found, name, None)
        if getattr(found, "__module__", module) != module:
            return False
    return found is not None and count > 1


def exists(path: str) -> bool:
    """True for a path from the root or from hami_node/, and for a file name found anywhere there.

    A module goes without its `.py` too, and with a name in it: `node/daemon.Daemon.start`.
    """
    if "/" not in path:
        return (ROOT / path).exists() or any(PRODUCT.rglob(path))
    if (ROOT / path).exists() or (PRODUCT / path).exists():
        return True
    return not path.endswith(".py") and names_something(path.strip("/").replace("/", "."))


def is_chart_value(dotted: str) -> bool:
    """True for a value of the chart, a group of values, a key below one: `config.settings.x`."""
    found = f"{dotted}."
    return any(found.startswith(f"{one}.") or f"{one}.".startswith(found) for one in CHART_VALUES)


def missing(text: str) -> list[str]:
    """What a page names that is not there."""
    prose = _FENCE.sub("", text)
    spans = _CODE.findall(prose)
    words = [word.strip(",;:()") for span in spans for word in span.split()]
    wrong = [word for word in words if is_path(word) and not exists(word)]
    dotted = [
        word.partition("=")[0] for word in words if not is_chart_value(word.partition("=")[0])
    ]
    wrong += [word for word in dotted if is_dotted(word) and not names_something(word)]
    wrong += [path for path in re.findall(r"-k (\w[\w.-]*/[^\s`]+)", text) if not exists(path)]
    modules = re.findall(r"python -m (tests[\w.]+)", text)
    wrong += [module for module in modules if find_spec(module) is None]
    made = [target for span in spans for target in re.findall(r"^make ([a-z0-9-]+)", span)]
    return wrong + [f"make {target}" for target in made if target not in TARGETS]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_page_names_only_what_exists(page: Path) -> None:
    assert missing(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def headings(page: Path) -> set[str]:
    """The anchors of a page, as a git host makes them from its headings."""
    found = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text())
    wrong = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in headings(page.parent / target if target else page)
    ]
    assert wrong == []


def test_every_page_is_in_the_index() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    index = ROOT.joinpath("docs/README.md").read_text()
    assert pages - set(re.findall(r"\]\(([\w-]+\.md)\)", index)) == set()


@pytest.mark.parametrize(
    "text",
    [
        "`engine/gone.py`",
        "`vendors/gone/`",
        "`gone.py`",
        "`node/daemon.Gone`",
        "`node/gone`",
        "`model.Gone`",
        "`engine.fit.Ask`",
        "`make gone`",
        "`python -m tests.gone`",
        "```sh\nkubectl apply -k daemonset/gone\n```",
    ],
)
def test_name_of_nothing_is_found(text: str) -> None:
    assert len(missing(text)) == 1


def test_uninstalling_removes_every_annotation_of_ours_from_the_nodes() -> None:
    text = ROOT.joinpath("docs/install.md").read_text()
    (command,) = re.findall(r"kubectl annotate node --all((?: [^`\n]*\n)+)```", text)
    of_others = {wire_names.NODE_LOCK, wire_names.NODE_CORDON}
    ours = {
        value
        for module in (wire_names, neuron_names, nvidia_names)
        for name, value in vars(module).items()
        if name.startswith("NODE_") and value not in of_others
    }
    assert set(re.findall(r"([\w./-]+)-(?:\s|$)", command)) == ours


INSTALLS: Final = re.compile(r"""pipx? install (?:--?[\w-]+ )*['"`]*hami-node""")


def test_no_text_installs_from_an_index_where_the_name_is_not_published() -> None:
    files = [*PAGES, *PRODUCT.rglob("*.py"), *(ROOT / "plugin").iterdir()]
    files += [path for path in (ROOT / "daemonset").rglob("*") if path.is_file()]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert INSTALLS.search("pipx install 'hami-node[view]'")
    assert [str(path.relative_to(ROOT)) for path in files if INSTALLS.search(texts[path])] == []
