"""The settings of a script: plain assignments at its top, changed from the command line.

    python train.py config/small.py --lr=5e-4 --keep_steps=3000,6000

The defaults are the script's own `name = literal  # comment` lines; a config file holds lines of
the same kind, and may begin with the lines of another: base = "610m.py". All are parsed, never
executed. All mistakes are reported before any work starts.
"""

import ast
import sys
from contextlib import suppress
from pathlib import Path

from errors import nearest, protect_output

NOT_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)  # by literal_eval
TAKES = {bool: "True or False", int: "an int", float: "a finite float", str: "a str"}


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
    protect_output()  # here, because every script begins here
    command, (defaults, about) = command or f"python {Path(script).name}", read_script(script)
    if "--help" in argv or "-h" in argv:
        print(f"usage: {command} [config.py ...] [--key=value ...] [--check]   (a later word wins)\n\n{about}")
        sys.exit(0)
    settings, problems = parse([word for word in argv if word != "--check"], defaults)
    try:
        problems += (check(settings) if check else None) or ()
    except OSError as error:  # such as a path that is too long
        problems.append(str(error))
    if problems:
        listed = "".join(f"  {number}. {problem}\n" for number, problem in enumerate(problems, 1))
        count = f"{len(problems)} problem{'s' * (len(problems) > 1)} in the settings; nothing was started."
        print(f"{command}: {count}\n{listed}{command} --help lists every setting.", file=sys.stderr)
        sys.exit(2)
    if "--check" in argv:
        print(f"{command}: the settings fit together")
        sys.exit(0)
    return settings


def parse(argv, defaults):
    """Return the Settings that argv (see `load`) makes of `defaults`, and what is wrong with it, a sentence each."""
    settings, problems = Settings(defaults), []
    for word in argv:
        name, equals, text = word.partition("=")
        if not name.startswith("--"):
            assigned = read_config(word, problems)
        elif equals:
            assigned = [(word, name[2:], value_of(text, type(defaults.get(name[2:]))))]
        else:
            problems.append(f"{word}: write {word}=VALUE, such as {word}=True")
            continue
        for origin, name, value in assigned:
            if name not in defaults:
                problems.append(f"{origin}: unknown setting {name!r}.{nearest(name, defaults)}")
            elif (converted := convert(value, defaults[name])) is not None:
                settings[name] = converted
            else:
                default = defaults[name]
                takes = TAKES.get(type(default)) or f"a tuple of {type((default or (0,))[0]).__name__}"
                problems.append(f"{origin}: {name} takes {takes} (default {default!r}), got {value!r}")
    return settings, problems


def read_config(path, problems, may_have_base=True):
    """Yield (path:line, name, value) for each line of a config file; add others to `problems`.

    A line `base = "other.py"` stands for the lines of that file, which lies beside this one and has no base itself.
    """
    try:
        tree = ast.parse(source := Path(path).read_text(encoding="utf-8"), path)
    except (OSError, *NOT_LITERAL) as error:
        problems.append(f"{path}: neither --key=value nor a readable config file: {error}")
        return
    for node in tree.body:
        name, value = literal_assignment(node)
        if name == "base" and may_have_base:
            yield from read_config(str(Path(path).with_name(str(value))), problems, may_have_base=False)
        elif name:
            yield f"{path}:{node.lineno}", name, value
        else:
            statement = ast.get_source_segment(source, node).splitlines()[0]
            problems.append(f"{path}:{node.lineno}: a config holds only `name = literal`, not `{statement}`")


def read_script(path):
    """Return the settings of a script as {name: default}, and for --help its docstring and the lines that set them.

    Settings are the module-level `name = literal` lines before the first other assignment, def or block. Imports and
    bare expressions in between do not count, and names in capitals are constants.
    """
    tree = ast.parse(source := Path(path).read_text(encoding="utf-8"), path)
    defaults, first, last = {}, 0, 0
    for node in tree.body:
        name, value = literal_assignment(node)
        if name and not name.isupper():
            defaults[name], last = value, node.end_lineno
        elif not name and not isinstance(node, (ast.Import, ast.ImportFrom, ast.Expr)):
            break
        elif not defaults:
            first = node.end_lineno
    lines = "\n".join(source.splitlines()[first:last]).strip()
    return defaults, f"{ast.get_docstring(tree) or ''}\n\n{lines}"


def literal_assignment(node):
    """Return (name, value) of a statement `name = literal`, ("", None) of any other."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            with suppress(*NOT_LITERAL):
                return name, ast.literal_eval(value)
    return "", None


def value_of(text, kind):
    """Return what the text of a word stands for. A str needs no quotes, nor do the parts of a tuple."""
    with suppress(*NOT_LITERAL):
        return text if kind is str else ast.literal_eval(text)
    return [item for item in text.split(",") if item] if kind is tuple else text


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


def outside_limits(cfg, at_least_1=(), at_least_0=(), above_0=(), choices=(), below_1=()):
    """Yield a sentence for each setting outside its limits. choices: {name: possible values}; the others are names."""
    for low, names in ((1, at_least_1), (0, at_least_0)):
        yield from (f"{k}={cfg[k]}: must be at least {low}" for k in names if cfg[k] < low)
    yield from (f"{k}={cfg[k]}: must be above 0" for k in above_0 if cfg[k] <= 0)
    yield from (f"{k}={cfg[k]}: must be below 1" for k in below_1 if cfg[k] >= 1)
    yield from (f"{k}={cfg[k]}: must be one of {', '.join(v)}" for k, v in dict(choices).items() if cfg[k] not in v)
