"""The settings of a script: plain assignments at its top, changed from the command line.

    python train.py config/small.py --lr=5e-4 --keep_steps=3000,6000

The defaults are the script's own `name = literal  # comment` lines; a config file holds lines of
the same kind, and may begin with the lines of another: base = "610m.py". All are parsed, never
executed. All mistakes are reported before any work starts.
"""

import ast
import operator
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from errors import nearest

NOT_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)  # by literal_eval
RELATIONS = {"at least": operator.ge, "above": operator.gt, "below": operator.lt}
TAKES = {bool: "True or False", int: "an int below 2**63", float: "a float below 2**63", str: "a str"}
NO_TEXT = r"[\0\ud800-\udfff]"  # in no path, and in no text that is UTF-8


class Settings(dict):
    """A dict whose values are attributes too: `cfg.lr` is `cfg["lr"]`."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(f"no setting is called {name!r}")
        return self[name]


def load(script, argv, check=None, command=""):
    """Return the Settings of `script` with `argv` applied, after everything that is wrong was reported in one message.

    script: `__file__`; see `read_script`. argv: config files and `--key=value` words, of which a later one wins; or
    --help, or --check, which only checks. check: called with the settings (wrong values left out); yields a sentence
    for each thing that cannot work. command: how to start the script, if not by `python SCRIPT`. Raises SystemExit.
    """
    command = command or f"python {Path(script).name}"
    defaults, about = read_script(script)
    if "--help" in argv or "-h" in argv:
        print(f"usage: {command} [config.py ...] [--key=value ...] [--check]   (the last value counts)\n\n{about}")
        sys.exit(0)
    settings, problems = parse([word for word in argv if word != "--check"], defaults)
    if check:
        try:
            problems += check(settings)
        except (OSError, ValueError, MemoryError) as error:  # such as a path that is too long
            problems = problems or [str(error)]
    if problems:
        lines = [f"  {number}. {problem}" for number, problem in enumerate(dict.fromkeys(problems), 1)]
        print(f"{command}: nothing was started, because of these settings:", *lines, sep="\n", file=sys.stderr)
        print(f"{command} --help lists every setting.", file=sys.stderr)
        sys.exit(2)
    if "--check" in argv:
        print(f"{command}: the settings fit together")
        sys.exit(0)
    return settings


# ----------------------------------------------------------------------------
# From words and files to assignments


def parse(argv, defaults):
    """Return the Settings that argv (see `load`) makes of `defaults`, and what is wrong with it, a sentence each."""
    settings = Settings(defaults)
    problems = []
    for origin, name, value in assignments(argv, defaults, problems):
        if name not in defaults:
            problems.append(f"{origin}: unknown setting {name!r}.{nearest(name, defaults)}")
            continue
        converted = convert(value, defaults[name])
        if converted is None or (defaults[name] and converted == ""):  # such as --out_dir=$UNSET
            problems.append(f"{origin}: {takes(name, defaults[name])}, got {value!r}")
        else:
            settings[name] = converted
    return settings, problems


def assignments(argv, defaults, problems):
    """Yield (where it stands, name, value) for each assignment in argv and its files; add other words to `problems`."""
    for word in argv:
        if not word.startswith("--"):
            yield from read_config(word, problems)
            continue
        name, equals, text = word[2:].partition("=")
        if equals or name not in defaults:
            yield word, name, value_of(text, type(defaults.get(name)))
        else:
            problems.append(f"{word}: write {word}=VALUE")


def read_config(path, problems, readers=()):
    """Yield (path:line, name, value) for each line of a config file; add others to `problems`.

    A line `base = "other.py"` stands for the lines of that file, a path from this file's folder. readers: the files
    whose base this one is, directly or not.
    """
    try:
        if Path(path).is_fifo():
            raise OSError("reading a pipe could wait for ever")
        source = Path(path).read_text(encoding="utf-8")
        tree = ast.parse(source, path)
    except (OSError, *NOT_LITERAL) as error:
        problems.append(f"{path}: neither --key=value nor a readable config file: {error}")
        return
    for node in tree.body:
        name, value = literal_assignment(node)
        if name == "base":
            base = Path(path).parent / (convert(value, "") or "")  # what is no path leaves the folder
            chain = (*readers, Path(path).resolve())
            if base.resolve() in chain:
                problems.append(f"{path}:{node.lineno}: base={value!r} begins with the lines of this file itself")
            else:
                yield from read_config(str(base), problems, chain)
        elif name:
            yield f"{path}:{node.lineno}", name, value
        else:
            statement = ast.get_source_segment(source, node).splitlines()[0]
            problems.append(f"{path}:{node.lineno}: a config holds only `name = literal`, not `{statement}`")


def read_script(path):
    """Return the settings of a script as {name: default}, and for --help its docstring and the lines that set them.

    Settings are the module-level `name = literal` lines before the first def, block or constant that is no literal.
    Imports and bare expressions in between do not count, and names in capitals are constants. Raises SystemExit for a
    setting with another value, such as 12 * 2048: nothing is executed.
    """
    source = Path(path).read_text(encoding="utf-8")
    tree = ast.parse(source, path)
    defaults = {}
    first = last = 0  # the lines of the settings in the file
    for node in tree.body:
        name, value = literal_assignment(node)
        if name and not name.isupper():
            defaults[name] = value
            last = node.end_lineno
        elif not name and not isinstance(node, (ast.Import, ast.ImportFrom, ast.Expr)):
            statement = ast.get_source_segment(source, node).splitlines()[0]
            if re.match(r"[a-z_0-9]+(: \w+)? = ", statement):
                sys.exit(f"{path}:{node.lineno}: a setting is `name = literal`, not `{statement}`")
            break
        elif not defaults:
            first = node.end_lineno
    lines = "\n".join(source.splitlines()[first:last]).strip()
    return defaults, f"{ast.get_docstring(tree) or ''}\n\n{lines}"


def literal_assignment(node):
    """Return (name, value) of a statement `name = literal`, ("", None) of any other."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        with suppress(*NOT_LITERAL):
            return node.targets[0].id, ast.literal_eval(node.value)
    return "", None


# ----------------------------------------------------------------------------
# Values


def value_of(text, kind):
    """Return what the text of a word stands for. A str needs no quotes, nor do the parts of a tuple."""
    if kind is str:
        return text
    with suppress(*NOT_LITERAL):
        return ast.literal_eval(text)
    if kind is tuple:
        return [item for item in text.split(",") if item]
    return text


def convert(value, default):
    """Return `value` as the type of `default` (1e6 as 1000000), None if it is of another type."""
    kind = type(default)
    if kind is tuple:
        values = value if isinstance(value, (tuple, list)) else [value]
        items = [convert(item, first_item(default)) for item in values]
        return None if None in items else tuple(items)
    if kind in (int, float):
        is_number = type(value) in (int, float) and abs(value) < 2**63
        return kind(value) if is_number and kind(value) == value else None
    if type(value) is not kind or re.search(NO_TEXT, str(value)):
        return None
    return os.path.expanduser(value) if kind is str else value  # a shell leaves the ~ in --out_dir=~/runs


def first_item(default):
    """Return the item of a tuple whose type all its items have; an empty tuple is one of integers."""
    return default[0] if default else 0


def takes(name, default):
    """Return what a setting takes, as the beginning of a sentence."""
    kind = TAKES.get(type(default))
    if kind is None:
        kind = f"a tuple of {type(first_item(default)).__name__}"
    return f"{name} takes {kind} (default {default!r})"


def value_problems(cfg, limits=(), choices={}):
    """Yield a sentence for each setting with a value, or an item, that it cannot have.

    limits: (one of RELATIONS, bound, names of settings), ... choices: {name: the values that there are}.
    """
    for relation, bound, names in limits:
        for name in names.split():
            for value in items_of(cfg[name]):
                if not RELATIONS[relation](value, bound):
                    yield f"{name}={value}: must be {relation} {bound}"
    for name, values in choices.items():
        for value in items_of(cfg[name]):
            if value not in values:
                yield f"{name}={value}: must be one of {', '.join(values)}"


def items_of(value):
    """Return a tuple as it is, and any other value as a tuple of one."""
    return value if isinstance(value, tuple) else (value,)
