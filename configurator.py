"""The settings of a script: plain assignments at its top, changed from the command line.

    python train.py config/demo.py --lr=5e-4 --keep_steps=3000,6000

The defaults are the script's own `name = literal  # comment` lines; a config file holds lines of
the same kind. Both are parsed, never executed. All mistakes are reported before any work starts.
"""

import ast
import difflib
import io
import os
import sys
import textwrap
import tokenize
from contextlib import suppress
from pathlib import Path

NOT_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)  # by literal_eval
TAKES = {bool: "True or False", int: "an int", float: "a finite float", str: "a str"}


class Settings(dict):
    """A dict whose values are attributes too: `cfg.lr` is `cfg["lr"]`."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no setting is called {name!r}") from None


def load(script, argv, check=None, command=""):
    """Return the Settings of `script`, in its order, with `argv` applied.

    script: `__file__`. Its settings are the module-level `name = literal` lines before the first
        other assignment, def or block; imports and bare expressions in between do not count, and names
        in capitals are constants, not settings.
    argv: config files and `--key=value` words in any order, a later one wins; or `--help`. With `--check`
        the settings are checked and nothing else happens.
    check: called with the settings, rejected values left out; yields a sentence for each value or
        combination of values that cannot work.
    Raises SystemExit: 2 with all problems on stderr, 0 after --help or --check. ValueError: a default in the
    script is not a bool, int, finite float, str or tuple of one of these.
    """
    command, (defaults, notes) = command or start_command(script), read_script(script)
    if "--help" in argv or "-h" in argv:
        print_help(command, defaults, notes)
        raise SystemExit(0)
    only_check = "--check" in argv and "check" not in defaults
    argv = [word for word in argv if word != "--check"] if only_check else argv
    settings, problems = parse(argv, defaults)
    try:
        problems += check(settings) or () if check else ()
    except OSError as error:  # such as a path that is too long
        problems.append(str(error))
    if problems:
        count = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
        print(
            f"{command}: {count} in the settings; nothing was started.",
            *(f"  {number}. {problem}" for number, problem in enumerate(problems, 1)),
            f"{command} --help lists every setting.",
            sep="\n",
            file=sys.stderr,
        )
        raise SystemExit(2)
    if only_check:
        print(f"{command}: the settings fit together")
        raise SystemExit(0)
    return settings


def parse(argv, defaults):
    """Return the Settings that argv (see `load`) makes of `defaults`, and what is wrong with it, a sentence each."""
    settings, problems = Settings(defaults), []
    for origin, name, value in assignments(argv, defaults, problems):
        if name not in defaults:
            problems.append(f"{origin}: unknown setting {name!r}.{nearest(name, defaults)}")
        elif (converted := convert(value, defaults[name])) is not None:
            settings[name] = converted
        else:
            default = defaults[name]
            takes = TAKES.get(type(default)) or f"a tuple of {type((default or (0,))[0]).__name__}"
            problems.append(f"{origin}: {name} takes {takes} (default {default!r}), got {value!r}")
    return settings, problems


def outside_limits(settings, at_least_1=(), at_least_0=(), above_0=(), choices=()):
    """Yield a sentence for each setting outside its limits.

    The first three are names of settings; choices is {name: its possible values}.
    """
    for low, names in ((1, at_least_1), (0, at_least_0)):
        yield from (f"{k}={settings[k]}: must be at least {low}" for k in names if settings[k] < low)
    yield from (f"{k}={settings[k]}: must be above 0" for k in above_0 if settings[k] <= 0)
    for k, values in dict(choices).items():
        if settings[k] not in values:
            yield f"{k}={settings[k]}: must be one of {', '.join(values)}"


def start_command(script):
    """Return how a user starts a script: `python train.py`, or `python -m eval.study` for a module in a folder."""
    path = Path(os.path.relpath(Path(script).resolve(), Path(__file__).resolve().parent))
    if len(path.parts) == 1 or ".." in path.parts:
        return f"python {os.path.relpath(script)}"
    return "python -m " + ".".join(path.with_suffix("").parts).removesuffix(".__main__")


def read_script(path):
    """Return the settings of a script as {name: default} and {name: (heading, comment)}."""
    source = Path(path).read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [(*token.start, token.string.lstrip("# ")) for token in tokens if token.type == tokenize.COMMENT]
    defaults, notes, body = {}, {}, ast.parse(source).body
    for above, node, below in zip([None, *body], body, [*body[1:], None]):
        name, value = literal_assignment(node)
        if name and name.isupper():
            continue
        if name:
            defaults[name] = convert(value, value)
            if defaults[name] is None:
                raise ValueError(f"{path}:{node.lineno}: {value!r} cannot be a setting's default")
            start, stop = above.end_lineno if above else 0, below.lineno if below else sys.maxsize
            heading = [text for row, col, text in comments if start < row < node.lineno and not col]
            comment = [text for row, col, text in comments if node.end_lineno <= row < stop and col]
            notes[name] = " ".join(heading).strip("-= "), " ".join(comment)
        elif not isinstance(node, (ast.Import, ast.ImportFrom, ast.Expr)):
            break
    return defaults, notes


def literal_assignment(node):
    """Return (name, value) of a statement `name = literal`, (None, None) of any other."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            with suppress(*NOT_LITERAL):
                return name, ast.literal_eval(value)
    return None, None


def assignments(argv, defaults, problems):
    """Yield (origin, name, value) for all that argv sets; add other words to `problems`."""
    for word in argv:
        name, equals, text = word[2:].partition("=")
        default, value = defaults.get(name, ""), text
        if not word.startswith("--"):
            yield from read_config(word, problems)
        elif name in defaults and not equals:
            problems.append(f"{word}: write {word}={type(default) is bool or 'VALUE'}")
        else:
            with suppress(*NOT_LITERAL):  # what is no literal stays text
                value = ast.literal_eval(text)
            if type(default) is tuple and value == text:
                value = text.split(",") if text else ()
            yield word, name, text if type(default) is str and type(value) is not str else value


def read_config(path, problems):
    """Yield (path:line, name, value) for each line of a config file; add others to `problems`."""
    try:
        tree = ast.parse(source := Path(path).read_text(encoding="utf-8"), path)
    except (OSError, *NOT_LITERAL) as error:
        files = Path(path).parent.glob("*.py") if isinstance(error, FileNotFoundError) else ()
        hint = nearest(path, map(str, files))
        problems.append(f"{path}: neither --key=value nor a readable config file: {error}.{hint}")
        return
    seen = {}
    for node in tree.body[ast.get_docstring(tree) is not None :]:  # from after the docstring
        origin, (name, value) = f"{path}:{node.lineno}", literal_assignment(node)
        if name is None:
            statement = ast.get_source_segment(source, node).splitlines()[0]
            problems.append(f"{origin}: a config holds only `name = literal`, not `{statement}`")
        elif seen.setdefault(name, node) is not node:
            problems.append(f"{origin}: {name} is already set on line {seen[name].lineno}")
        else:
            yield origin, name, value


def convert(value, default):
    """Return `value` as the type of `default` (1e6 as 1000000), None if it is of another type."""
    kind = type(default)
    if kind is tuple:
        items = value if isinstance(value, (tuple, list)) else (value,)
        items = tuple(convert(item, (default or (0,))[0]) for item in items)
        return None if None in items else items
    if kind in (int, float) and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return kind(value) if kind(value) == value else None
    return value if type(value) is kind in (bool, str) else None


def nearest(word, words):
    return "".join(f" Did you mean {near!r}?" for near in difflib.get_close_matches(word, words, 1))


def print_help(command, defaults, notes):
    """Print every setting with its default and comment, in groups under the script's headings."""
    print(f"usage: {command} [config.py ...] [--key=value ...]   (a later word wins; --check only checks)")
    for name, (heading, comment) in notes.items():
        if heading:
            print(f"\n{heading}")
        cell = f"  {name} = {defaults[name]!r}  ".ljust(40)
        print(
            textwrap.fill(comment, 100, initial_indent=cell, subsequent_indent=" " * 40, break_long_words=False)
            or cell.rstrip()
        )
