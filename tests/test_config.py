"""train.py accepts every preset and every run of every study."""

import ast
import re
import shlex

import pytest
from helpers import ROOT

import configurator
from eval.study import jobs
from eval.study.plan import TRAIN, Plan
from eval.study.run import CONTINUED_SEED, args_for

STUDIES = sorted((ROOT / "config").glob("study_*.py"))
CONFIGS = sorted({*(ROOT / "config").glob("*.py")} - {*STUDIES})
MISSING = re.compile(r"no such folder; prepare it|no such file|already holds a run")  # what may be missing here


def problems(commands):
    """What train.py finds wrong with (arguments, number of processes), but for missing files."""
    found = jobs.check_all([([TRAIN, *args], {"WORLD_SIZE": str(n)}) for args, n in commands], jobs.slots(0))
    return [sentence for sentences in found for sentence in sentences if not MISSING.search(sentence)]


def test_every_config_is_accepted():
    """On one process and on whole nodes, for which the batches of a laptop are too small. Wrong settings are not."""
    laptop = "demo", "openstax"
    commands = [([str(path)], n) for path in CONFIGS for n in (1, 64) if n == 1 or path.stem not in laptop]
    commands += [(["--lr=0", "--mask_ratio=2"], 1)]
    assert len(commands) > 10
    assert problems(commands) == ["lr=0.0: must be above 0", "mask_ratio=(2.0,): must be above 0 and below 1"]


@pytest.mark.parametrize(
    "path", [path if path.stem == "study_demo" else pytest.param(path, marks=pytest.mark.slow) for path in STUDIES]
)
def test_every_run_of_a_study_is_accepted(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = Plan(configurator.load(ROOT / "eval/study/__main__.py", [str(path)]))
    commands = [(args_for(plan, run, plan.cfg.lrs[-1]), plan.cfg.processes) for run in plan.runs.values()]
    assert problems(commands) == []
    for (args, _), run in zip(commands, plan.runs.values()):
        cfg = configurator.load(TRAIN, args)
        seed = run.seed + CONTINUED_SEED * bool(run.base)
        assert (cfg.max_steps, cfg.switch_step, cfg.seed) == (run.budget, run.clm, seed)
    for _, args in plan.cfg.tasks:
        configurator.load(jobs.FINETUNE, shlex.split(f"{plan.cfg.finetune} {args}"))


def test_the_demo_is_the_default():
    named = ast.parse((ROOT / "config/demo.py").read_text()).body
    changed = {node.targets[0].id: ast.literal_eval(node.value) for node in named}
    default, _ = configurator.read_script(TRAIN)
    assert changed == {name: default[name] for name in changed} and {"max_steps", "switch_step", "lr"} <= changed.keys()
