"""python -m eval.study: the plan of the paper's study by its own counts; a study that is killed and goes on."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from helpers import ROOT, TINY, Run

import checkpoint
import configurator
from data.files import is_locked
from errors import DataError
from eval.study import run as runs
from eval.study.costs import describe, flops
from eval.study.plan import TRAIN


# ----------------------------------------------------------------------------
# The plan


def start_of(run):
    return run.parent and run.parent.name, run.start


def test_the_plan_of_the_papers_study(plan_of, monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = plan_of("config/study_paper.py")
    text = describe(plan)
    assert "\nfinal models 39\nintermediate models 12\nfine-tuning runs 15300\n" in text
    assert "\nfine-tuning runs of random weights 900\nsteps trained 844000\nsteps saved by sharing 364000" in text
    trunk = plan.runs["610m-clm-42k"]
    for budget, switches in {12: (3, 6, 9), 22: (5, 11, 17), 42: (10, 21, 32)}.items():
        for clm in switches:
            run = plan.runs[f"610m-clm-{clm}k-mlm40-{budget}k"]
            assert (*start_of(run), run.clm, run.budget) == (trunk.name, clm * 1000, clm * 1000, budget * 1000)
            assert run.start in trunk.keep
        for kind in ("clm", "mlm40"):  # a short budget leaves a long one where its learning rate decays
            run = plan.runs[f"610m-{kind}-{budget}k"]
            start = (f"610m-{kind}-42k", (budget - 2) * 1000) if budget < 42 else (None, 0)
            assert (start_of(run), run.budget) == (start, budget * 1000)
    assert start_of(plan.runs["1b-clm-10k-mlm40-42k"]) == ("1b-clm-42k", 10_000)
    for mask in (20, 30, 40, 50):
        run = plan.runs[f"610m-clm-40k-mlm{mask}-42k"]
        assert (*start_of(run), run.mask) == (trunk.name, 40_000, mask / 100)
    assert {model.step for model in plan.inside} == {1000, 2000, 5000, 10_000, 20_000, 40_000}
    seeds = {
        run.base and run.base.name: word
        for run in plan.runs.values()
        for word in runs.args_for(plan, run, 1.0)
        if word.startswith("--seed=")
    }
    assert seeds == {None: "--seed=1", "610m-clm-42k": "--seed=1001", "610m-mlm40-42k": "--seed=1001"}  # other batches


def test_budgets_share_what_they_do_alike(plan_of):
    """The last 200 steps decay: a short budget leaves the long one before that, on whatever trunk goes farthest.

    One that switches in its own decay shares it with CLM of the same budget until then.
    """
    plan = plan_of("--splits=((500, 0, 200, 490, 500), (1000, 0, 200, 1000))")
    assert {name: start_of(run) for name, run in plan.runs.items()} == {
        "demo-clm-1k": (None, 0),
        "demo-clm-200-mlm40-1k": ("demo-clm-1k", 200),
        "demo-mlm40-1k": (None, 0),
        "demo-clm-500": ("demo-clm-1k", 300),
        "demo-clm-490-mlm40-500": ("demo-clm-500", 490),
        "demo-clm-200-mlm40-500": ("demo-clm-200-mlm40-1k", 300),
        "demo-mlm40-500": ("demo-mlm40-1k", 300),
    }
    assert plan_of("--splits=((240, 0), (1000, 0))").runs["demo-mlm40-240"].start == 0  # within the warmup: not shared
    seeds = plan_of("--splits=((1000, 0, 200, 1000),)", "--seeds=1,2", "--repeated=0,200").runs
    assert seeds["demo-clm-200-mlm40-1k-seed-2"].parent is None and len(seeds) == 5  # its trunk is not trained


VARIANTS = """--variants=(("mixed 1:1", "--clm_windows=0.5"), ("Mask 40 to 10 %", "--mask_ratio=0.4,0.1"),
("MNTP", "--switch_step=325 --predict_from=before"), ("Muon, 50 % CLM", "--switch_step=325 --optimizer=muon"))"""


def test_a_variant_begins_with_the_steps_of_clm_that_it_has_in_common(plan_of):
    """All but the one with another optimizer. A variant is trained on the longest budget with every seed."""
    plan = plan_of(VARIANTS, "--splits=((400, 0), (650, 0, 650))", "--seeds=1,2", "--repeated=0,650")
    for seed in ("", "-seed-2"):
        trunk = plan.runs[f"demo-clm-650{seed}"]
        starts = {"mixed-1-1": (None, 0), "mask-40-to-10": (None, 0), "mntp": (trunk.name, 325)}
        for key, start in (starts | {"muon-50-clm": (None, 0)}).items():
            run = plan.runs[f"demo-{key}-650{seed}"]
            assert start_of(run) == start and [model.run for model in plan.finals].count(run) == 1
        assert trunk.keep == (325,)
    assert len(plan.finals) == 2 * (3 + 4) and len(plan.random) == 1
    assert "demo-mntp-650: from step 325, to 650 as 'MNTP': --switch_step=325 --predict_from=before\n" in describe(plan)

    settings = {name: configurator.load(TRAIN, runs.args_for(plan, run, 1e-3)) for name, run in plan.runs.items()}
    changed = {"mixed-1-1": {"clm_windows": 0.5}, "mask-40-to-10": {"mask_ratio": (0.4, 0.1)}}
    changed["mntp"] = {"switch_step": 325, "predict_from": "before"}
    for key, its in changed.items():  # all else is that of MLM alone
        mlm = settings["demo-mlm40-650"] | {"out_dir": settings[f"demo-{key}-650"]["out_dir"], "keep_steps": ()}
        assert settings[f"demo-{key}-650"] == mlm | its


def test_flops_of_a_variant_follow_its_objectives(plan_of):
    plan = plan_of(VARIANTS, "--splits=((650, 0, 325, 650),)", "--mask_ratios=0.4,0.25")
    names = "clm-650 mlm40-650 mlm25-650 clm-325-mlm40-650 mixed-1-1-650 mask-40-to-10-650 mntp-650"
    clm, mlm, mlm25, half, mixed, falling, mntp = (flops(plan, plan.runs[f"demo-{name}"], 0) for name in names.split())
    assert mixed == mntp == half == pytest.approx((clm + mlm) / 2) and falling == pytest.approx(mlm25) and mlm25 < mlm


# ----------------------------------------------------------------------------
# Settings


WRONG = {
    "--lrs=1e-3,2e-3 --repeated=7 --seeds=1,1 --intermediate=9999 --late_switch=650 --continued=3,3": """
        lr_steps=0: is for the choice between several
        repeated: 7 is none of the steps of CLM
        seeds: 1 is given twice
        intermediate: 9999 is not within the longest
        late_switch=650: must be within the longest
        continued: 3 is given twice""",
    "--splits=((99,0,120),(99,0)) --continued=10 --sizes=(('a','','120'),('b',),('$(x)','')) --tasks=(('xx',''),('sst2',''),('sst2','x'))": """
        splits: (99, 0, 120): give a budget, then steps of CLM between 0 and it
        splits: 99 is given twice
        continued: needs both pure objectives
        sizes: '120': steps of CLM must be a number up to the longest budget of 99
        sizes: each is (name, arguments) or
        sizes: '$(x)': a name has letters
        tasks: task=xx: no such task
        tasks: sst2 is given twice""",
    "--lrs=1e-3,2e-3 --lr_steps=9 --splits=((999,0,200,999),) --seeds=1,2 --repeated=0,200": "both objectives in one run",
    "--variants=(('a:b','--clm_window=1'),('A-b','--max_steps=3'),('c','--lr=1'),('%','--seed=1'),('x',),('Demo','')) --lrs=1e-3": """
        variants: each is (name, arguments), got ('x',)
        variants: 'A-b' and 'a:b' would both be called a-b
        variants: 'Demo' and size 'demo' would both be called demo
        variants: a:b: --clm_window=1: unknown setting 'clm_window'
        variants: A-b: max_steps is set by the study
        variants: c: lr is set by the study, because it has lrs=(0.001,)
        variants: '%': a name needs letters""",
    "--variants=(('mlm40',''),)": "two runs would be called demo-mlm40-650: give a variant another name",
    "--only=finetune:4/3": "only=finetune:4/3: is none of its runs",
    "--train=--data=/": "/ is not a prepared folder",
}


@pytest.mark.parametrize("args", WRONG)
def test_wrong_settings_are_told(args, run):
    code, output = run(["--plan", *args.split()], "eval.study")
    assert code and all(sentence.strip() in output for sentence in WRONG[args].splitlines()), output


def test_what_train_or_finetune_would_refuse_is_told_before_any_work(tmp_path, run):
    args = [
        f"--out_dir={tmp_path}/study",
        '--tasks=(("sst2", "--dropout=2"),)',
        f"--finetune=--tasks_dir={tmp_path} --max_stepz=1",
    ]
    args.append('--variants=(("odd", "--clm_windows=0.3"),)')
    code, output = run([*args, "--train=--beta1=2"], "eval.study")
    assert code == 1 and not (tmp_path / "study").exists()
    _, output = output.split("nothing was started:")
    for sentence in (
        "demo-clm-650 and 3 more: beta1=2.0",
        "demo-odd-650: clm_windows=0.3: is 9.6 of the 32 windows",
        "sst2: dropout=2.0: must be",
        "sst2: --max_stepz",
        "\nsst2: missing:",
    ):
        assert output.count(sentence) == 1, output


# ----------------------------------------------------------------------------
# Carrying it out


@pytest.fixture
def tiny_study(tmp_path, data_dir, tasks_dir):
    """Arguments of a study that takes seconds: three splits and random weights on one task. Starts in tmp_path."""
    shared = " ".join(arg for arg in TINY if not arg.startswith(("--max_steps", "--switch_step", "--keep_last")))
    return [
        f"--train={shared} --data={data_dir} --decay_steps=4",
        '--sizes=(("tiny", ""),)',
        "--splits=((12, 0, 6, 12),)",
        "--lrs=1e-3",
        '--tasks=(("sst2", "--max_steps=2"),)',
        "--finetune_lrs=1e-3",
        "--finetune_seeds=1",
        f"--finetune=--tasks_dir={tasks_dir} --batch_size=8 --dtype=float32",
        "--out_dir=study",
    ]


def start(args, folder):
    folder.mkdir(exist_ok=True)
    return Run(args, folder / f"output-{time.time()}", "eval.study", folder)


def finish(args, folder):
    code, output = start(args, folder).wait(600)
    assert code == 0, output


def results(folder):
    paths = folder.glob("study/results/*/*/*/result.json")
    return {path.parent.relative_to(folder): path.read_text() for path in paths}


def losses(folder):
    """What each run logged, but for its speed."""
    logs = {path.parent.name: path.read_text().splitlines() for path in folder.glob("study/runs/*/metrics.jsonl")}
    return {name: [{**json.loads(line), "tokens_per_s": 0} for line in lines] for name, lines in logs.items()}


def wait_for(folder, pattern, n, process):
    while len(list(folder.glob(f"study/{pattern}"))) < n:
        assert process.is_alive()
        time.sleep(0.02)


def test_a_study_killed_while_it_trains_goes_on(tiny_study, tmp_path):
    args = [*tiny_study, "--splits=((12, 0),)", "--random_weights=False"]
    args += ["--choose_once=True", "--finetune_lrs=1e-3,2e-3", "--finetune_seeds=1,2"]
    first = start(args, tmp_path)
    wait_for(tmp_path, "runs/*/config.json", 1, first.process)
    os.kill(first.process.pid, signal.SIGKILL)  # its run trains on
    finish(args, tmp_path)
    assert {job.parts[2] for job in results(tmp_path)} == {"tiny-mlm40-12-12"}
    seeds = [job.name.rpartition("-")[2] for job in results(tmp_path)]
    assert sorted(seeds) == ["1", "1", "2"]  # the second seed only at the chosen rate
    assert list((tmp_path / "study/report").glob("*.md"))


@pytest.mark.slow
def test_a_study_with_variants(tiny_study, tmp_path):
    variants = '(("mixed 1:1", "--clm_windows=0.5"), ("MNTP after CLM", "--switch_step=6 --predict_from=before"))'
    finish([*tiny_study, "--splits=((12, 0, 12),)", f"--variants={variants}", "--random_weights=False"], tmp_path)
    facts = {job.parts[2]: json.loads(text)["checkpoint"] for job, text in results(tmp_path).items()}
    mixed, mntp = (facts[f"tiny-{key}-12-12"] for key in ("mixed-1-1", "mntp-after-clm"))
    assert [(its["phase"], its["steps"], its["clm_steps"]) for its in mixed["phases"]] == [("mixed", 12, 6.0)]
    phases = [(its["phase"], its["predict_from"], its["steps"]) for its in mntp["phases"]]
    assert phases == [("clm", "mask", 6), ("mlm", "before", 6)]  # the first six are those of the CLM run
    assert losses(tmp_path)["tiny-mntp-after-clm-12"][0]["step"] == 6
    text = (tmp_path / "study/report/report.md").read_text()
    assert "| mixed 1:1 " in text and "| MNTP after CLM " in text


@pytest.mark.slow
def test_a_study_killed_at_any_moment_gives_the_same_results(tiny_study, tmp_path):
    args, whole, parts = [*tiny_study, "--jobs=1"], tmp_path / "whole", tmp_path / "parts"
    finish(args, whole)
    kill, end = signal.SIGKILL, signal.SIGTERM
    kills = [(end, "runs/*/ckpt-*.pt", 1), (kill, "runs/*/ckpt-*.pt", 3)]
    kills += [(number, "results/*/*/*/result.json", n) for number, n in ((kill, 1), (end, 2))]
    for number, pattern, n in kills:
        study = start(args, parts)
        wait_for(parts, pattern, n, study.process)
        os.kill(study.process.pid, number)
        assert study.wait()[0] == (143 if number == end else -9)
        if pattern == kills[0][1] and n == 1:  # its runs have ended too; those of a study that was killed go on
            assert not any(is_locked(lock.parent) for lock in parts.rglob("lock"))
    assert not (parts / "study/report").exists()
    finish(args, parts)
    assert results(parts) == results(whole) and len(results(parts)) == 4
    assert losses(parts) == losses(whole) and len(losses(parts)) == 3
    # What a lost result takes is made again, and nothing else.
    before = {path: path.stat().st_mtime_ns for path in parts.glob("study/results/*/*/*/result.json")}
    for path in parts.glob("study/runs/*/ckpt-*.pt"):
        path.unlink()
    shutil.rmtree(parts / "study/results/tiny-clm-6-mlm40-12-12")
    finish(args, parts)
    assert results(parts) == results(whole)
    changed = {path.parts[-4] for path, stamp in before.items() if path.stat().st_mtime_ns != stamp}
    assert changed == {"tiny-clm-6-mlm40-12-12"}
    assert {path.parent.name for path in parts.glob("study/runs/*/ckpt-*.pt")} == {"tiny-clm-12", "tiny-clm-6-mlm40-12"}


def test_divergence_is_told_by_what_train_prints(tiny, tmp_path, run):
    code, output = run([*tiny, "--lr=1e30", f"--out_dir={tmp_path}/run"])
    assert code == 1 and runs.DIVERGED in output


# ----------------------------------------------------------------------------
# Learning rates, and what is trained


def ended(plan, name, loss=None):
    """Leave what a run of train.py leaves; without a loss, of one that diverged."""
    folder, budget = plan.runs[name].folder, plan.runs[name].budget
    folder.mkdir(parents=True, exist_ok=True)
    if loss is None:
        (folder / "error.txt").write_text("step 7 (mlm): loss nan. Stopped before the update")
    else:
        (folder / f"ckpt-{budget}.pt").touch()
        line = {"step": budget, "val_clm_loss": loss, "val_mlm_loss": 9 - loss}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")


def command(plan, run):
    """The command that starts or resumes a run, None as long as it cannot begin."""
    job = runs.training(plan, run)
    return job and job.command


RESULT = """{"task": "sst2", "family": "sc", "main": {"field": ["accuracy"], "paper": ["accuracy"]}, "baselines": {},
"checkpoint": {"model": {}, "parameters": 9, "max_steps": 650, "step": 650, "clm_steps": 0, "mask_ratio": 0.4,
"init_from": "", "untrained": false, "peak_lr": 1, "recipe": ""}, "examples": {"test": 9}, "test_set": "",
"settings": {}, "versions": {}, "counts": {}, "steps": 9}"""


def tuned(plan, models, lr=1e-3, seeds=(1, 2, 3), validation=50.0, **other):
    """Leave the results of models on sst2. other: what differs in them."""
    for model, seed in itertools.product(models, seeds):
        result = json.loads(RESULT) | {"lr": lr, "seed": seed}
        result["metrics"] = {"validation": {"accuracy": validation}, "test": {"accuracy": 50.0}}
        result["checkpoint"] |= {"seed": model.run.seed, "name": model.name}
        folder = runs.finetuning_of(plan, model, ("sst2", ""), lr, seed).folder
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result | other))


def test_each_objective_has_its_best_learning_rate_and_one_that_diverges_is_out(tmp_path, plan_of):
    plan = plan_of(f"--out_dir={tmp_path}", "--lrs=1e-3,2e-3,3.0", "--lr_steps=260", "--splits=((650, 0, 325, 650),)")
    clm, mlm, split = (plan.runs[f"demo-{name}"] for name in ("clm-650", "mlm40-650", "clm-325-mlm40-650"))
    assert command(plan, mlm) is None  # nothing is chosen yet
    for lr, loss in (("0.001", 5.5), ("0.002", 5.0), ("3", None)):
        ended(plan, f"demo-clm-260-lr-{lr}", loss)
    assert "--lr=0.002" in command(plan, clm) and command(plan, mlm) is None
    for lr, loss in (("0.001", 5.5), ("0.002", 5.0), ("3", 4.0)):
        ended(plan, f"demo-mlm40-260-lr-{lr}", loss)
    assert "--lr=0.001" in command(plan, mlm)
    assert command(plan, split) is None
    trunk = plan.runs[clm.name].folder
    trunk.mkdir()
    (trunk / "ckpt-325.pt").touch()
    args = command(plan, split)
    assert "--lr=0.001" in args and f"--branch_from={trunk}/ckpt-325.pt" in args  # what it trains is MLM
    log = plan.runs["demo-clm-260-lr-0.002"].folder / "metrics.jsonl"
    log.write_text(log.read_text() + '{"step": 260, "loss": 5.0}\n')  # without a validation loss it is out
    assert "--lr=0.001" in command(plan, clm)
    for lr in ("0.001", "0.002", "3"):
        shutil.rmtree(plan.runs[f"demo-clm-260-lr-{lr}"].folder)
        ended(plan, f"demo-clm-260-lr-{lr}")
    assert command(plan, clm) is None


def test_each_variant_has_its_best_learning_rate(tmp_path, plan_of):
    """By MLM loss, in trials without steps of CLM at the beginning."""
    args = [f"--out_dir={tmp_path}", VARIANTS, "--lrs=1e-3,2e-3", "--lr_steps=260", "--splits=((650, 0, 650),)"]
    plan = plan_of(*args)
    mixed, mntp, muon = (plan.runs[f"demo-{key}-650"] for key in ("mixed-1-1", "mntp", "muon-50-clm"))
    for name, losses in (("clm", (4, 5)), ("mlm40", (4, 5)), ("muon-50-clm", (4, 5)), ("mixed-1-1", (5, 4))):
        assert command(plan, mixed) is None
        for lr, loss in zip(("0.001", "0.002"), losses):  # val_mlm_loss is 9 - loss
            ended(plan, f"demo-{name}-260-lr-{lr}", loss)
    assert "--lr=0.001" in command(plan, mixed) and "--lr=0.002" in command(plan, muon)
    assert command(plan, mntp) is None
    for lr, loss in (("0.001", 4), ("0.002", 5)):
        ended(plan, f"demo-mntp-260-lr-{lr}", loss)
    ended(plan, "demo-clm-650", 5.0)
    (plan.runs["demo-clm-650"].folder / "ckpt-325.pt").touch()
    assert {"--lr=0.002", f"--branch_from={tmp_path}/runs/demo-clm-650/ckpt-325.pt"} <= {*command(plan, mntp)}
    cfg = configurator.load(TRAIN, runs.args_for(plan, plan.runs["demo-mntp-260-lr-0.001"], 1e-3))
    assert (cfg.switch_step, cfg.predict_from, cfg.max_steps) == (0, "before", 260)
    with pytest.raises(DataError, match="demo-mntp-650-seed-2 has both objectives in one run"):
        plan_of(*args, "--seeds=1,2", "--repeated=0")  # its CLM is not trained


ONCE = ["--seeds=1,2", "--choose_once=True", '--tasks=(("sst2", ""),)']


def test_what_is_trained_again_where_checkpoints_are_gone(tmp_path, plan_of):
    plan = plan_of(*ONCE, f"--out_dir={tmp_path}", "--finetune_lrs=1e-3,3e-3")
    for name, run in plan.runs.items():
        ended(plan, name, 5.0)
        checkpoint.path_of(plan.runs[name].folder, run.budget).unlink()
    tuned(plan, plan.models)
    tuned(plan, [model for model in plan.models if model.run.seed == 1], lr=3e-3, seeds=[1], validation=40.0)
    assert runs.to_train(plan) == set()
    # Of a choice of the rate only what it needs; that of the second pretraining seed waits for it.
    shutil.rmtree(tmp_path / "results/demo-mlm40-650-650/sst2/lr-0.003_seed-1")
    assert runs.to_train(plan) == {"demo-mlm40-650"}
    # A branch needs its trunk, but not to go on from a checkpoint of its own.
    shutil.rmtree(tmp_path / "results/demo-clm-325-mlm40-650-650")
    trunk, branch = plan.runs["demo-clm-650"], plan.runs["demo-clm-325-mlm40-650"]
    assert runs.to_train(plan) == {"demo-mlm40-650", trunk.name, branch.name} and command(plan, branch) is None
    (plan.runs[branch.name].folder / "ckpt-600.pt").touch()
    assert runs.to_train(plan) == {"demo-mlm40-650", branch.name} and "--resume=True" in command(plan, branch)
    # Half of the last line is not the end of a run; nor is a run with its last checkpoint trained again.
    log = plan.runs["demo-clm-650-seed-2"].folder / "metrics.jsonl"
    log.write_text(log.read_text()[:-20])
    assert runs.to_train(plan) == {"demo-mlm40-650", branch.name, "demo-clm-650-seed-2"}
    (log.parent / "ckpt-650.pt").touch()
    assert runs.to_train(plan) == {"demo-mlm40-650", branch.name}


@pytest.mark.parametrize("metric, chosen", [("field", [1e-3, 3e-3]), ("paper", [3e-3])])
def test_each_set_of_a_retrieval_task_chooses_a_rate_by_the_studys_metric(tmp_path, plan_of, metric, chosen):
    plan = plan_of(*ONCE, f"--out_dir={tmp_path}", "--finetune_lrs=1e-3,3e-3", f"--metrics={metric}")
    first, second = (m for m in plan.models if m.variant == plan.models[0].variant)
    names = ["nq/ndcg@10", "mldr/ndcg@10", "nq/ndcg@10_judged", "mldr/ndcg@10_judged"]
    main, test = {"field": names[:2], "paper": names[2:]}, dict.fromkeys(names, 50.0)
    for lr, values in ((1e-3, (60, 10, 10, 10)), (3e-3, (10, 60, 60, 60))):
        metrics = {"validation": dict(zip(names, values)), "test": test}
        tuned(plan, [first], lr, [1], family="ir", main=main, metrics=metrics)
    assert runs.best_lrs(plan, second, ("sst2", "")) == chosen
    for lr in chosen:
        assert not runs.has_result(plan, second, ("sst2", ""), None, 2)
        tuned(plan, [second], lr, [2])
    assert runs.has_result(plan, second, ("sst2", ""), None, 2)


def test_a_rate_is_chosen_among_those_that_worked(tmp_path, plan_of):
    plan = plan_of(*ONCE, f"--out_dir={tmp_path}", "--finetune_lrs=1e-3,3e-3,1.0")
    first, second = (next(m for m in plan.models if m.run.name == f"demo-mlm40-650{seed}") for seed in ("", "-seed-2"))
    search, chosen = plan.points()[: 4 * 3], plan.points()[4 * 3 :]
    assert {(m.run.seed, seed) for m, _, _, seed in search} == {(1, 1)} and {lr for _, _, lr, _ in chosen} == {None}
    assert len(chosen) == 7 * 3 - 4  # without the one that the search has made
    for lr, validation in ((1e-3, 60.0), (3e-3, 70.0)):
        tuned(plan, [first], lr, [1], validation)
        assert runs.best_lrs(plan, second, ("sst2", "")) == []  # the third has not been tried
    failed = runs.finetuning_of(plan, first, ("sst2", ""), 1.0, 1).folder
    failed.mkdir()
    (failed / "error.txt").write_text("the loss is nan\n")
    assert runs.best_lrs(plan, first, ("sst2", "")) == runs.best_lrs(plan, second, ("sst2", "")) == [3e-3]


# ----------------------------------------------------------------------------
# A cluster


def test_the_job_scripts_of_a_cluster(tmp_path, plan_of, run):
    """Each depth of the tree is an array of its runs; submit.sh makes each wait for the one before.

    Nothing in a path or a setting is executed, and a space does no harm.
    """
    out = tmp_path / "a 'study' $(touch hacked)\n#SBATCH --wrap; touch hacked"
    args = [
        f"--out_dir={out}",
        "--finetune=--form='`touch hacked` {}'",
        "--splits=((500, 0, 200), (1000, 0, 200, 1000))",
        "--processes=8",
        "--choose_once=True",
    ]
    code, output = run([*args, "--slurm"], "eval.study")
    assert (code, output.strip()) == (0, f"{out}/slurm/submit.sh")
    stub = 'n=$(ls log-* 2>/dev/null | wc -l)\nprintf "%s\\0" "$@" > log-$n\necho $((101 + n))\n'
    (tmp_path / "sbatch").write_text(f"#!/bin/bash\n{stub}")
    (tmp_path / "sbatch").chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["bash", output.strip()], cwd=tmp_path, env=path, check=True)
    for n, name in enumerate(("runs-0", "runs-1", "runs-2", "finetune-0", "finetune-1", "report")):
        after = [f"--dependency=afterany:{100 + n}"] * (n > 0)
        words = ["--parsable", *after, f"--output={out}/slurm/{name}-%a.txt", f"{out}/slurm/{name}.sbatch"]
        assert (tmp_path / f"log-{n}").read_text().split("\0")[:-1] == words
    plan, seen = plan_of(*args), []
    for script, n in (("runs-0", 2), ("runs-1", 2), ("runs-2", 1)):
        text = (out / f"slurm/{script}.sbatch").read_text()
        assert f"--array=0-{n - 1}\n" in text and "--gpus-per-node=8 --cpus-per-task=64\n" in text
        body = text.replace("\nexec ", "\nprintf '%s\\0' ")  # what the task would run
        for i in range(n):
            words = subprocess.check_output(["bash", "-c", body], env={"SLURM_ARRAY_TASK_ID": str(i)}, text=True)
            words = words.split("\0")[:-1]
            assert words[:-1] == [sys.executable, "-m", "eval.study", *args]
            seen.append(words[-1].removeprefix("--only="))
    assert sorted(seen) == sorted(plan.runs)
    assert not list(tmp_path.rglob("hacked")) and not (ROOT / "hacked").exists()
