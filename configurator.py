"""The settings of a script: plain assignments at its top, changed from the command line.

    python train.py config/small.py --lr=5e-4 --keep_steps=3000,6000

The defaults are the script's own `name = literal  # comment` lines. A config file holds lines of the same kind and may
include another file: base = "610m.py". Both are parsed, never executed. All mistakes are reported before any work.
"""

import ast
import operator
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from errors import nearest

NOT_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)  # what literal_eval raises
RELATIONS = {"at least": operator.ge, "above": operator.gt, "below": operator.lt}
TAKES = {bool: "True or False", int: "an int below 2**63", float: "a float below 2**63", str: "a str"}
NO_TEXT = r"[\0\ud800-\udfff]"  # neither a path nor UTF-8 text can hold these


class Settings(dict):
    """A dict whose values are attributes too: `cfg.lr` is `cfg["lr"]`."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(f"no setting is called {name!r}")
        return self[name]


def load(script, argv, check=None, command=""):
    """Return the Settings of `script` with `argv` applied. If any are wrong, report them all in one message and exit.

    script: `__file__`; see `read_script`. argv: config files and `--key=value` words, of which a later one wins; or
    --help, or --check, which only checks. check: a function of the settings (without the wrong values) that yields a
    sentence for each problem. command: how to start the script, if not by `python SCRIPT`.
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
# From the command line and files to assignments


def parse(argv, defaults):
    """Apply argv (see `load`) to `defaults`. Return the Settings and a list of problems, a sentence each."""
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
    """Yield (origin, name, value) for each assignment in argv and its files. Add all other words to `problems`."""
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
    """Yield (path:line, name, value) for each assignment in a config file. Add all other lines to `problems`.

    A line `base = "other.py"` includes that file, given relative to this file's folder. readers: the files that include
    this one, directly or not.
    """
    try:
        if Path(path).is_fifo():
            raise OSError("reading a pipe could wait forever")
        source = Path(path).read_text(encoding="utf-8")
        tree = ast.parse(source, path)
    except (OSError, *NOT_LITERAL) as error:
        problems.append(f"{path}: neither --key=value nor a readable config file: {error}")
        return
    for node in tree.body:
        name, value = literal_assignment(node)
        if name == "base":
            base = Path(path).parent / (convert(value, "") or "")  # no path: the folder, which is then reported
            chain = (*readers, Path(path).resolve())
            if base.resolve() in chain:
                problems.append(f"{path}:{node.lineno}: base={value!r} includes this file itself")
            else:
                yield from read_config(str(base), problems, chain)
        elif name:
            yield f"{path}:{node.lineno}", name, value
        else:
            statement = ast.get_source_segment(source, node).splitlines()[0]
            problems.append(f"{path}:{node.lineno}: a config holds only `name = literal`, not `{statement}`")


def read_script(path):
    """Return the settings of a script as {name: default}, and its --help text: the docstring and the settings' lines.

    Settings are the module-level `name = literal` lines before the first def, block or constant that is not a literal.
    Imports and bare expressions in between are skipped, and names in capitals are constants. Raises SystemExit for a
    setting whose value is not a literal, such as 12 * 2048: nothing is executed.
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
    """Return (name, value) of a statement `name = literal`, or ("", None) for any other statement."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        with suppress(*NOT_LITERAL):
            return node.targets[0].id, ast.literal_eval(node.value)
    return "", None


# ----------------------------------------------------------------------------
# Values


def value_of(text, kind):
    """Return the value that the text after --key= stands for. A str and the items of a tuple need no quotes."""
    if kind is str:
        return text
    with suppress(*NOT_LITERAL):
        return ast.literal_eval(text)
    if kind is tuple:
        return [item for item in text.split(",") if item]
    return text


def convert(value, default):
    """Return `value` as the type of `default` (1e6 as 1000000), or None if it does not fit that type."""
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
    """Return an item that shows the type of a tuple's items: the first, or 0 for an empty tuple (integers)."""
    return default[0] if default else 0


def takes(name, default):
    """Return which values a setting takes, as the beginning of a sentence."""
    kind = TAKES.get(type(default))
    if kind is None:
        kind = f"a tuple of {type(first_item(default)).__name__}"
    return f"{name} takes {kind} (default {default!r})"


def value_problems(cfg, limits=(), choices={}):
    """Yield a sentence for each setting that has a forbidden value or item.

    limits: (a key of RELATIONS, bound, names of settings), ... choices: {name: its allowed values}.
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
