"""train.py accepts every preset and every run of every study."""

import re

import pytest
from helpers import ROOT

import configurator
from eval.study.plan import TRAIN, Plan
from eval.study.run import FINETUNE, arguments, refusals

STUDIES = sorted((ROOT / "config").glob("study_*.py"))
CONFIGS = sorted({*(ROOT / "config").glob("*.py")} - {*STUDIES})
MISSING = re.compile(r"no such folder; prepare it|no such file|already holds a run")  # what may be missing here


@pytest.fixture
def problems(monkeypatch):
    """problems(commands) -> what train.py finds wrong with (arguments, number of processes), but for missing files."""

    def find(commands):
        found = []
        for args, n in commands:
            monkeypatch.setenv("WORLD_SIZE", str(n))
            found += [sentence for _, sentence in refusals(TRAIN, [("", args)]) if not MISSING.search(sentence)]
        return found

    return find


def test_every_config_is_accepted(problems):
    """On one process and on whole nodes, for which the batches of a laptop are too small. Wrong settings are not."""
    commands = [([str(path)], n) for path in CONFIGS for n in (1, 64) if n == 1 or path.stem != "openstax"]
    commands += [(["--lr=0", "--mask_ratio=2"], 1)]
    assert problems(commands) == ["lr=0.0: must be above 0", "mask_ratio=(2.0,): must be above 0 and below 1"]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_run_of_a_study_is_accepted(path, problems, monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = Plan(configurator.load(ROOT / "eval/study/__main__.py", [str(path)]))
    assert plan.problems == []
    assert problems([(arguments(run), plan.cfg.processes) for run in plan.runs.values()]) == []
    commands = [("", [*args, f"--task={task}", "--out_dir=nowhere"]) for task, args in plan.tasks.items()]
    assert [its for _, its in refusals(FINETUNE, commands) if not its.startswith("init_from")] == []
