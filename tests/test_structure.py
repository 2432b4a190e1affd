"""Imports point one way: scripts are never imported, there are no circles, and model.py needs nothing of ours."""

import ast
import graphlib
import re
import subprocess

from helpers import ROOT

FILES = [ROOT / name for name in subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).split()]
CODE = {path for path in FILES if path.exists() and path.relative_to(ROOT).parts[0] not in ("tests", "config")}
NAMES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in CODE}
SCRIPTS = {name for name in NAMES if name in ("train", "finetune") or name.endswith("__main__")}
# Each may import those before it.
ORDER = "errors configurator model runtime model_checks data checkpoint run eval.tasks".split()


def imports(path):
    """The modules that a file imports anywhere, as dotted names; for `from x import y` both x and x.y."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


GRAPH = {name: {other for other in imports(path) if other in NAMES} for name, path in NAMES.items()}


def test_scripts_are_never_imported():
    tests = {path.name: set(imports(path)) for path in FILES if path.exists() and path not in CODE}
    for name, imported in {**GRAPH, **tests}.items():
        assert not imported & SCRIPTS, f"{name} imports a script"


def test_there_are_no_circles():
    graphlib.TopologicalSorter(GRAPH).prepare()  # raises CycleError, with the circle


def test_imports_point_one_way():
    def rank(name):
        return next((i for i, room in enumerate(ORDER) if name == room or name.startswith(room + ".")), len(ORDER))

    for name, imported in GRAPH.items():
        assert all(rank(other) <= rank(name) for other in imported), f"{name} imports {sorted(imported)}"
    assert GRAPH["model"] == set()


def test_pip_and_uv_install_the_same():
    required = (ROOT / "requirements.txt").read_text().split("\n")
    project = re.search(r"dependencies = \[.*?\n(.*?)\n\]", (ROOT / "pyproject.toml").read_text(), re.S)[1]
    assert [line.strip(' ",').replace("'", '"') for line in project.splitlines()] == [line for line in required if line]
