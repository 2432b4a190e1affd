"""Settings: what wins, which types are taken, and that every mistake is reported before any work."""

import ast
import itertools
import os
import re
import runpy
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import pytest

import configurator
from helpers import ROOT, rows_of

SCRIPT = (ROOT / "tests/sample_script.txt").read_text()
DEFAULTS = dict(out_dir="out/#1", max_steps=600, keep_steps=(), resume=False, lr=5e-4, betas=(0.9, 0.95))
DEFAULTS |= dict(tasks=("cola", "rte"), offset=-3, compile=True)
STATEMENTS = "__import__('os').system('touch executed')", "lr = 12 * 2048", "lr = offset = 1", "lr = " + "-" * 200 + "x"


@pytest.fixture(autouse=True)
def sample(tmp_path, monkeypatch):
    """A folder that holds train.py and an empty config/, as the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    Path("config").mkdir()


def load(*argv, check=None):
    return configurator.load("train.py", list(argv), check)


def config(text, name="config/x.py"):
    Path(name).write_text(text, encoding="utf-8")
    return name


@pytest.fixture
def problems(capsys):
    """Call load, which must exit with code 2, and return its problems without their numbers."""

    def run(*argv, check=None):
        with pytest.raises(SystemExit) as error:
            load(*argv, check=check)
        assert error.value.code == 2
        first, *middle, last = capsys.readouterr().err.splitlines()
        assert first.endswith("nothing was started, because of these settings:") and "--help" in last
        return [line.split(". ", 1)[1] for line in middle]

    return run


def test_the_last_word_wins():
    assert list(load().items()) == list(DEFAULTS.items())
    one, two = config("lr = 1.0\noffset = 1\n", "config/1.py"), config("lr = 2.0\n", "config/2.py")
    assert load(one, two) == DEFAULTS | {"lr": 2.0, "offset": 1}
    assert (load("--lr=3", two, one).lr, load("--lr=3", one, "--lr=4", "--lr=5").lr) == (1, 5)


def test_values(problems):
    """The same on the command line and in a file. True is not 1, and 1.0 is not 1. A shell leaves --out_dir=~/x."""
    assert load("--out_dir=~/x").out_dir == load(config('out_dir = "~/x"')).out_dir == str(Path.home() / "x")
    taken = rows_of("settings in a file and as a flag")
    for key, text, expected in taken + rows_of("settings as a flag"):
        assert repr(load(f"--{key}={text}")[key]) == expected
    for key, text, expected in taken:
        assert repr(load(config(f"{key} = {text}\n"))[key]) == expected
    for key, text, takes in rows_of("settings that are refused"):
        expected = f"{key} takes {takes} (default {DEFAULTS[key]!r}), got {ast.literal_eval(text)!r}"
        assert problems(f"--{key}={text}") == [f"--{key}={text}: {expected}"]
        assert problems(config(f"\n{key} = {text}\n")) == [f"config/x.py:2: {expected}"]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_config_is_data_and_never_executed(problems, statement):
    path = config(f"offset = 1\n{statement}\ncompile = False\n")
    assert problems(path, check=lambda s: [f"{s.offset} {s.compile} {s.lr}"]) == [
        f"config/x.py:2: a config holds only `name = literal`, not `{statement}`",
        "1 False 0.0005",
    ]
    assert not Path("executed").exists()


def test_a_config_may_begin_with_another(problems):
    config("lr = 1.0\noffset = 2\n", "config/recipe.py")
    assert load(config('base = "recipe.py"\nlr = 3.0\n')) == DEFAULTS | {"lr": 3.0, "offset": 2}
    config('base = "x.py"\noffset = 3\n', "config/third.py")
    assert load("config/third.py") == DEFAULTS | {"lr": 3.0, "offset": 3}
    config('base = "third.py"\nlr = "a"\n', "config/recipe.py")
    found = problems("config/x.py")
    assert [problem.split(": ")[0] for problem in found] == ["config/third.py:1", "config/recipe.py:2"]
    assert "base='x.py' includes this file itself" in found[0]
    odd = [(value, "config") for value in ("", 3, "a\0b", "\ud800")]
    for missing, path in [("none.py", "config/none.py"), ("../none.py", "config/../none.py"), *odd]:
        (problem,) = problems(config(f"base = {missing!r}\n"))
        assert problem.startswith(f"{path}: neither")


def test_a_setting_that_is_no_literal_is_refused():
    for line in "max_steps = 10 * 60", "lr: float = 5e-4", "compile = not True":
        Path("train.py").write_text(SCRIPT.replace("resume = False", line))
        with pytest.raises(SystemExit, match=f"^train.py:12: a setting is `name = literal`, not `{re.escape(line)}`$"):
            load()


LONG = [pytest.param(script, marks=pytest.mark.slow) for script in ("train.py", "data/prepare.py")]
SCRIPTS = "finetune.py eval/sample.py eval/study/__main__.py eval/lesson/__main__.py eval/bench/doctor.py".split()
ODD = "1e308 9e18 -9e18 0 1e-308 nan () (9e18,) ('',) \udcff folder pipe a\0b".split() + ["", "x" * 5000, "9" * 400]


@pytest.mark.parametrize("script", LONG + SCRIPTS)
def test_no_value_of_a_setting_is_a_traceback(script, monkeypatch):
    """Each odd value of each setting is taken, or ends in a sentence. None waits for ever, as to open a pipe does."""
    Path("folder").mkdir()
    os.mkfifo("pipe")
    check = runpy.run_path(str(ROOT / script), run_name="a script").get("check")
    monkeypatch.setattr(configurator, "read_script", lru_cache(configurator.read_script))  # which takes long
    names, _ = configurator.read_script(ROOT / script)
    for word in ["pipe", *(f"--{name}={value}" for name, value in itertools.product(names, ODD))]:
        with suppress(SystemExit):
            configurator.load(ROOT / script, [word], check)
