"""A module imports only modules of a lower layer. The edges import everything, nothing them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import agentruns

PACKAGE = Path(agentruns.__file__).parent

LAYERS = [
    {"exceptions", "ids", "conf", "text", "negotiation", "shutdown", "reply", "metrics", "tracing"},
    {"plans"},
    {"models", "db", "agents"},
    {"wake", "fence", "hub", "events", "presence"},
    {"turns", "steps", "journal", "viewer"},
    {"claim", "lease", "finalize", "enqueue", "reader", "questions"},
    {"suspended", "answer"},
    {"stop", "retry", "limits", "tail"},
    {"reaper"},
    {"api", "execution"},
    {"context", "writer", "heart", "claimer", "sweeper"},
    {"host"},
    {"worker"},
]
"""The core, from the ground up. Whatever is not named here is an edge."""

LAYER = {module: number for number, modules in enumerate(LAYERS) for module in modules}
EDGE = len(LAYERS)


def files() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts]


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported(path: Path) -> set[str]:
    """The modules of the package that the file imports at run time."""
    found: set[str] = set()
    depth = len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(without_type_checking(ast.parse(path.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            found |= (
                {node.module.partition(".")[0]} if node.module else {a.name for a in node.names}
            )
    return found


def without_type_checking(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return tree


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_lower_layers(path: Path) -> None:
    module = module_of(path)
    if module == "__init__" or module not in LAYER:
        return

    too_high = {name for name in imported(path) if LAYER.get(name, EDGE) >= LAYER[module]}

    assert not too_high, f"{module} (layer {LAYER[module]}) imports {sorted(too_high)}"


def test_every_layered_module_exists() -> None:
    assert set(LAYER) <= {module_of(path) for path in files()}


def uses(path: Path, name: str) -> bool:
    return name in path.read_text()


@pytest.mark.parametrize(
    ("name", "homes"),
    [
        ("sync_to_async", {"db"}),
        ("psycopg.connect", {"hub"}),
        ("django.conf import settings", {"conf", "models"}),
        ("status = 'cancelled'", {"finalize"}),
    ],
)
def test_a_mechanism_has_one_home(name: str, homes: set[str]) -> None:
    assert {module_of(path) for path in files() if uses(path, name)} <= homes
