"""What the tree as a whole keeps: direction of imports, size of modules, light commands."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(p for folder in ("wdsmix", "converters", "tools") for p in (ROOT / folder).rglob("*.py"))


def imports(tree: ast.Module, *, typing_too: bool = False) -> set[str]:
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing_too
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", CODE, ids=lambda p: str(p.relative_to(ROOT)))
def test_module_is_small_and_imports_in_one_direction(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 600
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    is_facade = path == ROOT / "wdsmix" / "__init__.py"
    if path.is_relative_to(ROOT / "wdsmix"):
        upward = {
            n for n in imports(tree, typing_too=not is_facade) if n.startswith(("wdsmix.converters", "wdsmix.tools"))
        }
        assert not upward
    if path.is_relative_to(ROOT / "converters"):
        assert not {n for n in imports(tree) if n.startswith("wdsmix.tools")}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)], "assert is not validation"


def test_modules_are_short_in_the_median():
    lengths = sorted(len(path.read_text().splitlines()) for path in CODE)
    assert lengths[len(lengths) // 2] < 200


def test_help_needs_no_heavy_import():
    code = (
        "import sys, wdsmix.cli; wdsmix.cli.main(['--help']); "
        "sys.exit(str(sorted({'torch', 'pyarrow', 'h5py', 'webdataset', 'PIL'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"
