"""The embedded corpus: 2 MB of English that every CPython carries, so that a first run needs no download.

It consists of the language reference behind `help()` (`pydoc_data.topics`, one document per topic) and the docstrings
of the standard library (one document per module). The text differs a little from one Python version to the next.
"""

import ast
import itertools
import os
import re
import sysconfig
import warnings
from pathlib import Path

from errors import DataError

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
SHORTEST = 200  # characters
UNDERLINE = re.compile(r"^([*=~^-])\1{2,}\n", re.MULTILINE)  # the row of ***** below a heading


def documents():
    """Yield the documents, each a string, in the same order on every run of the same Python.

    Raises DataError on a Python that carries neither part.
    """
    seen = set()
    module_texts = ("\n\n".join(text for _, _, text in docstrings(module)) for _, module in modules())
    for text in itertools.chain(topics().values(), module_texts):
        text = UNDERLINE.sub("", text).strip()
        if len(text) >= SHORTEST and text not in seen:
            seen.add(text)
            yield text
    if not seen:
        raise DataError("this Python has neither help() topics nor its library's source: give your own --source=FILE")


def topics():
    """Return {name: text} of the topics of `help()`, sorted; it is empty where the distribution has no pydoc_data."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return {}
    return dict(sorted(topics.items()))


def modules():
    """Yield (dotted name, ast.Module) of each module of the standard library."""
    root = sysconfig.get_path("stdlib")
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)  # os.walk visits only these
        for path in sorted(Path(folder, name) for name in files if name.endswith(".py")):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # old modules have escapes that newer Pythons warn about
                    module = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):  # a template with placeholders, not a module
                continue
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            yield name.removesuffix(".__init__"), module


def docstrings(node, names=()):
    """Yield (names, node, docstring) of a module, class or function and of everything in its body, in source order.

    names: those of the enclosing classes and functions and its own, such as ("List", "append"), without the module's.
    """
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        if not isinstance(node, ast.Module):
            names = *names, node.name
        if text := ast.get_docstring(node):
            yield names, node, text
    for child in getattr(node, "body", ()):
        yield from docstrings(child, names)
