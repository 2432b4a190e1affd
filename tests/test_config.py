"""Every preset is accepted by train.py, and the splits are the recipe's."""

import ast
import re
import shlex

import pytest

import configurator
import train
from helpers import ROOT
from eval import study
from eval.study.plan import Plan

STUDIES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "config").glob("study_*.py"))
CONFIGS = sorted({str(p.relative_to(ROOT)) for p in (ROOT / "config").rglob("*.py")} - {*STUDIES})
MISSING = re.compile(r"no such folder; prepare it|no such file|already holds a run")  # what is there or not yet


def settings_of(capsys, *args):
    """The settings that train.py runs with, missing files aside."""
    found = []

    def check(s):
        found.extend(train.check(s))
        return [sentence for sentence in found if not MISSING.search(sentence)]

    try:
        return configurator.load(ROOT / "train.py", [str(ROOT / a) if a.endswith(".py") else a for a in args], check)
    except SystemExit:
        pytest.fail(capsys.readouterr().err)


@pytest.mark.parametrize("path", CONFIGS)
def test_every_config_is_accepted(path, capsys, monkeypatch):
    for world in ("1", "8", "64"):
        monkeypatch.setenv("WORLD_SIZE", world)
        if "splits" in path:
            settings_of(capsys, "config/610m.py", path)
        elif world == "1" or "demo" not in path:
            settings_of(capsys, path)


@pytest.mark.parametrize("path", STUDIES)
def test_every_study_is_accepted_and_so_are_its_runs(path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    p = Plan(configurator.load(study.__file__, [path], study.check))
    monkeypatch.setattr("eval.study.checkpoint.path_of", lambda *_: ROOT / "train.py")  # what they begin with is there
    monkeypatch.setattr("eval.study.chosen_lr", lambda *_, **__: p.s["lrs"][-1])
    monkeypatch.setenv("WORLD_SIZE", str(p.s["processes"]))
    for run in p.runs.values():
        words = study.command(p, run)
        words = [w for w in words[words.index(study.TRAIN) + 1 :] if not w.startswith(("--init_from", "--branch_from"))]
        s = settings_of(capsys, *words)
        assert (s["max_steps"], s["switch_step"], s["seed"]) == (run.budget, run.clm, run.seed)
    for _, words in p.s["tasks"]:
        configurator.load(ROOT / "finetune.py", shlex.split(f"{p.s['finetune']} {words}"))


def test_the_demo_is_the_default(capsys):
    named = ast.parse((ROOT / "config/demo.py").read_text()).body
    changed = {node.targets[0].id: ast.literal_eval(node.value) for node in named}
    default = settings_of(capsys)
    assert changed == {name: default[name] for name in changed} and {"max_steps", "switch_step", "lr"} <= changed.keys()


@pytest.mark.parametrize("name", ["210m", "610m", "1b"])
def test_the_recipe(name, capsys):
    s = settings_of(capsys, f"config/{name}.py")
    recipe = dict(model=name, global_batch_tokens=2_359_296, max_steps=42_000, warmup_steps=2_000, decay_steps=2_000,
                  lr=5e-4, beta1=0.9, beta2=0.95, eps=1e-5, weight_decay=0.1, grad_clip=1.0, mask_ratio=0.4,
                  mask_proportions=(1.0, 0.0, 0.0), window_split="random", tie_embeddings=False)  # fmt: skip
    assert {key: s[key] for key in recipe} == recipe


def test_the_splits(capsys):
    """CLM and MLM steps of each split, and where it leaves the trunk: an un-decayed checkpoint that the trunk keeps."""
    clm_steps = {12: (0, 3, 6, 9, 12), 22: (0, 5, 11, 17, 22), 42: (0, 10, 21, 32, 42)}
    trunks = {"out/610m-clm-42k": settings_of(capsys, "config/610m.py", "config/splits/42k-100.py"),
              "out/610m-mlm40-42k": settings_of(capsys, "config/610m.py")}  # fmt: skip
    names = set()
    for budget, splits in clm_steps.items():
        for share, clm in zip((0, 25, 50, 75, 100), splits):
            s = settings_of(capsys, "config/610m.py", f"config/splits/{budget}k-{share}.py")
            assert (s["max_steps"], s["switch_step"]) == (budget * 1000, clm * 1000)
            names.add(s["out_dir"])
            if s["branch_from"]:
                trunk, step = s["branch_from"].rsplit("/ckpt-", 1)
                step = int(step.removesuffix(".pt"))
                assert step in trunks[trunk]["keep_steps"] and step <= 40_000
                assert trunk.startswith("out/610m-clm") == (clm > 0)
                assert step == min(clm * 1000 if clm else budget * 1000, (budget - 2) * 1000)
            else:
                assert s["out_dir"] in trunks
    assert len(names) == 15
