"""eval/study.py: the plan of the paper's study by its own counts; a study that is killed and goes on; its page."""

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, TINY
from test_report import make_result

import checkpoint
import configurator
from eval import page, study
from eval.study.plan import Plan, tell


def plan_of(*words):
    return Plan(configurator.load(study.__file__, list(words), study.check))


@pytest.fixture(scope="module")
def paper():
    return plan_of(
        str(ROOT / "config/study_paper.py"),
        f"--train={ROOT}/config/610m.py",
        '--sizes=(("610m", ""), ("210m", "--model=210m"), ("1b", "--model=1b"))',
    )


def test_the_counts_of_the_papers_study(paper):
    text = tell(paper)
    for line in ("final models 38", "intermediate models 12", "fine-tuning runs 15000", "fine-tuning runs of random weights 900",
                 "steps trained 812000"):  # fmt: skip
        assert f"\n{line}\n" in text
    runs = paper.runs.values()
    steps = {kind: sum(run.budget - run.start for run in runs if of(run)) for kind, of in {
        "base": lambda run: run.clm in (0, 42_000) and run.budget == 42_000,
        "splits": lambda run: not run.base and (run.budget < 42_000 or 0 < run.clm < 42_000),
        "continued": lambda run: run.base}.items()}  # fmt: skip
    assert steps == {"base": 630_000, "splits": 130_000, "continued": 52_000}
    kinds = [sum(map(of, runs)) for of in (lambda run: run.clm in (0, 42_000) and run.budget == 42_000,
             lambda run: not run.base and (run.budget < 42_000 or 0 < run.clm < 42_000), lambda run: bool(run.base))]  # fmt: skip
    assert kinds == [15, 17, 6]
    assert int(re.search(r"steps saved by sharing (\d+)", text)[1]) == sum(run.start for run in runs)


def test_the_splits_branch_where_the_paper_says(paper):
    """CLM, then MLM, in thousands of steps, and where each leaves the trunk (the config files of the splits agree)."""
    splits = {12: [(0, 12), (3, 9), (6, 6), (9, 3), (12, 0)], 22: [(0, 22), (5, 17), (11, 11), (17, 5), (22, 0)],
              42: [(0, 42), (10, 32), (21, 21), (32, 10), (42, 0)]}  # fmt: skip
    for budget, phases in splits.items():
        for clm, mlm in phases:
            kind = {0: f"mlm40-{budget}k", budget: f"clm-{budget}k"}.get(clm, f"clm-{clm}k-mlm40-{budget}k")
            run = paper.runs[f"610m-{kind}"]
            assert (run.clm, run.budget - run.clm) == (clm * 1000, mlm * 1000)
            leaves = clm if 0 < clm < budget else budget - 2 if budget < 42 else 0
            assert run.start == leaves * 1000
            trunk = "610m-mlm40-42k" if clm == 0 else "610m-clm-42k"
            assert run.parent == (trunk if leaves else "")
            assert not leaves or run.start in paper.runs[trunk].keep
            file = ROOT / f"config/splits/{budget}k-{[0, 25, 50, 75, 100][phases.index((clm, mlm))]}.py"
            given = dict(re.findall(r"^(\w+) = ([^#\n]+)", file.read_text(), re.M))
            assert (int(given["max_steps"]), int(given["switch_step"])) == (budget * 1000, clm * 1000)
            assert given.get("branch_from", "").strip() == (f'"out/{trunk}/ckpt-{run.start}.pt"' if leaves else "")
    for mask in (20, 30, 40, 50):
        run = paper.runs[f"610m-clm-40k-mlm{mask}-42k"]
        assert (run.parent, run.start, run.mask) == ("610m-clm-42k", 40_000, mask / 100)
    assert {model.step for model in paper.inside} == {1000, 2000, 5000, 10_000, 20_000, 40_000}


def test_budgets_share_what_they_do_alike():
    """The last 200 steps decay: a short budget leaves the long one before it decays, on whatever trunk goes farthest; one
    that switches in its own decay goes with CLM of the same budget until then."""
    p = plan_of("--splits=((500, 0, 200, 490, 500), (1000, 0, 200, 1000))")
    starts = {name: (run.parent, run.start) for name, run in p.runs.items()}
    assert starts == {
        "demo-clm-1k": ("", 0), "demo-clm-200-mlm40-1k": ("demo-clm-1k", 200), "demo-mlm40-1k": ("", 0),
        "demo-clm-500": ("demo-clm-1k", 300), "demo-clm-490-mlm40-500": ("demo-clm-500", 490),
        "demo-clm-200-mlm40-500": ("demo-clm-200-mlm40-1k", 300), "demo-mlm40-500": ("demo-mlm40-1k", 300),
    }  # fmt: skip
    assert plan_of("--splits=((240, 0), (1000, 0))").runs["demo-mlm40-240"].start == 0  # within the warmup: not shared
    sharp = plan_of("--train=--decay_steps=0", "--splits=((500, 0), (1000, 0))").runs["demo-mlm40-500"]
    assert sharp.start == 499  # its last step is its own: there must be one to train
    seeds = plan_of("--splits=((1000, 0, 200, 1000),)", "--seeds=1,2", "--repeated=0,200").runs
    assert seeds["demo-clm-200-mlm40-1k-seed-2"].parent == "" and len(seeds) == 5  # its trunk is not trained
    two = plan_of("--splits=((500, 0, 200, 500), (1000, 0, 500, 1000))", "--seeds=1,2", "--repeated=0,500").runs
    assert [name for name in two if "seed" in name] == [f"demo-{name}-seed-2" for name in (
        "clm-500-mlm40-1k", "mlm40-1k", "clm-500", "mlm40-500")]  # on both budgets  # fmt: skip


@pytest.mark.parametrize("words, sentence", [
    ("--splits='((100, 0, 120),)'", "splits: (100, 0, 120): give a budget, then steps of CLM between 0 and it"),
    ("--tasks='((\"embedded-xx\", \"\"),)'", "no data set is called"),
    ("--continued=10 --splits='((100, 0, 50),)'", "continued: needs both pure objectives"),
    ("--lrs=1e-3,2e-3", "lr_steps=0: is for the choice between several lrs"),
    ("--repeated=7 --seeds=1,2", "repeated: 7 is none of the steps of CLM"),
    ("--intermediate=9999", "intermediate: 9999 is not within the budget"),
    ("--late_switch=650", "late_switch=650: must be within the budget"),
    ("--seeds=1,1", "seeds: 1 is given twice"),
    ("--only=nothing", "only=nothing: is none of its runs"),
    ("--only=finetune:4/3", "only=finetune:4/3: is none of its runs"),
    ("--splits='((650, 0), (650, 650))'", "splits: 650 is given twice"),
    ("--tasks='((\"sst2\", \"\"), (\"sst2\", \"--max_steps=1\"))'", "tasks: sst2 is given twice"),
    ("--continued=300,300", "continued: 300 is given twice"),
    ("--mask_ratios=40", "mask_ratios: 40.0 is not above 0"),
    ("--lrs=1e-3,2e-3 --lr_steps=9 --splits='((1000, 0, 200, 1000),)' --seeds=1,2 --repeated=0,200", "has both objectives in one"),
    ("--train=--data=/", "/ is not a folder that data/prepare.py has written"),
    ("--only=finetune:0/3", "only=finetune:0/3: is none of its runs"),
])  # fmt: skip
def test_wrong_settings_are_told(words, sentence, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["eval/study.py", "--plan", *shlex.split(words)])
    with pytest.raises(SystemExit) as stop:
        study.main()
    assert sentence in capsys.readouterr().err + str(stop.value)


@pytest.fixture(scope="module")
def small(sweep_words, data_dir, tmp_path_factory):
    """A settings file of a study that takes seconds: three shares of CLM and the untrained arm on one task."""
    folder = tmp_path_factory.mktemp("study")
    tasks_dir = re.search(r"--tasks_dir=(\S+)", " ".join(sweep_words))[1]
    shared = " ".join(word for word in TINY if not word.startswith(("--max_steps", "--switch_step", "--keep_last")))
    (folder / "study.py").write_text(f"""
train = "{shared} --data={data_dir} --decay_steps=4"
sizes = (("tiny", ""),)
splits = ((12, 0, 6, 12),)
lrs = (1e-3,)
tasks = (("sst2", "--max_steps=2"),)
finetune = "--tasks_dir={tasks_dir} --batch_size=8 --dtype=float32"
finetune_lrs = (1e-3,)
finetune_seeds = (1,)
out_dir = "out/tiny"
""")
    return folder / "study.py"


def report_of(folder):
    """The text of each file that the page consists of."""
    return {file.name: file.read_text() for file in (folder / "out/tiny/report").iterdir() if file.suffix != ".png"}


def test_a_study_killed_twice_and_resumed_gives_the_same_page(small, tmp_path):
    command = [sys.executable, str(ROOT / "eval/study.py"), str(small)]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    result = subprocess.run(command, cwd=whole, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for number, kind, n in ((signal.SIGKILL, "runs/*/ckpt-*.pt", 3), (signal.SIGTERM, "results/*/*/*/result.json", 1)):
        process = subprocess.Popen(command, cwd=parts, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(list(parts.glob(f"out/tiny/{kind}"))) < n:
            time.sleep(0.05)
            assert process.poll() is None
        process.send_signal(number)
        process.wait()
    assert not (parts / "out/tiny/report").exists()
    result = subprocess.run(command, cwd=parts, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert report_of(parts) == report_of(whole)
    page = report_of(whole)["page.md"]
    assert "- pretraining: 3 of 3 runs have ended" in page and "- fine-tuning: 4 of 4 jobs have a result" in page
    for title in (
        "The answer",
        "Scores against the share of CLM",
        "Both losses through the switch",
        "Stability of fine-tuning",
    ):
        assert f"\n## {title}\n" in page
    # Checkpoints may be deleted. What a lost result takes is made again, and nothing else.
    for path in parts.glob("out/tiny/runs/*/ckpt-*.pt"):
        path.unlink()
    shutil.rmtree(parts / "out/tiny/results/tiny-clm-6-mlm40-12-12")
    result = subprocess.run(command, cwd=parts, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert report_of(parts) == report_of(whole)
    assert {path.parent.name for path in parts.glob("out/tiny/runs/*/ckpt-*.pt")} == {"tiny-clm-12", "tiny-clm-6-mlm40-12"}


# ----------------------------------------------------------------------------
# The page, on made-up results


def fill(p, right, models=None, lr=1e-3):
    """Results for a plan's models, all of them by default: of 400 test instances right(model, task, fine-tuning seed);
    None for no result."""
    for model, (task, _), seed in itertools.product(models or p.models, p.s["tasks"], (1, 2, 3)):
        run, step = model.run, model.step or model.run.budget
        if (test := right(model, task, seed)) is not None:
            make_result(Path(p.s["out_dir"], "results"), model.name, task, "tc" if task == "wnut17" else "sc", lr, seed,
                        test=test, n=400, pretraining=run.seed, step=step, max_steps=run.budget,
                        clm_steps=min(run.clm, step), mask_ratio=run.mask, untrained=model.untrained,
                        init_from=f"out/{run.base}" if run.base else "")  # fmt: skip


def one_task(folder, *words):
    """A plan of 0, 50 and 100 % CLM."""
    return plan_of(f"--out_dir={folder}", "--splits=((40, 0, 20, 40),)", "--finetune_lrs=1e-3",
                   '--tasks=(("sst2", ""),)', *words)  # fmt: skip


def made_up(folder, scores):
    """A plan whose results say that each share of CLM (%, or "untrained") got about `scores` of 400 right."""
    p = one_task(folder)

    def right(model, task, seed):
        share = "untrained" if model.untrained else 100 * model.run.clm // model.run.budget
        return scores[share] + np.roll((-1, 0, 2), p.models.index(model))[seed - 1]

    fill(p, right)
    return p


@pytest.mark.parametrize("scores, sentences", [
    ({0: 300, 50: 350, 100: 290, "untrained": 200},
     ["Begin with CLM: clearly better than MLM alone on sst2, the best first: **50% CLM**. MLM only has 75.1"]),
    ({0: 300, 50: 302, 100: 250, "untrained": 200},
     ["No share of CLM is clearly better than **MLM alone** on sst2: 50% CLM is ahead by 0.5 ± ", "A gain of ",
      "Clearly worse than MLM alone: CLM only."]),
    ({0: 300, 50: 260, 100: 299, "untrained": 200},
     ["Stay with **MLM alone**: on sst2 nothing that begins with CLM is ahead.", " points is not ruled out.",
      "Clearly worse than MLM alone: 50% CLM."]),
    ({0: 212, 50: 196, 100: 194, "untrained": 200},  # only one objective pays: then the task must count
     ["MLM only: +", "| yes", "Stay with **MLM alone**: on sst2"]),
    ({0: 300, 50: 302, 100: 297, "untrained": 300},
     ["No recommendation: no task is shown to tell a pretrained model from an untrained one.", "not shown: no interval is above 0"]),
    ({0: 300, 50: 310, 100: 290, "untrained": 380},
     ["No recommendation: no task is shown", "no: random weights are better"]),
])  # fmt: skip
def test_the_recommendation_follows_from_the_comparisons(tmp_path, scores, sentences):
    text = page.write(made_up(tmp_path, scores)).read_text()
    for sentence in sentences:
        assert sentence in text, text


def test_what_was_not_tested_is_not_said(tmp_path):
    scores = {0: 300, 50: 350, 100: 290, "untrained": 200}
    p = made_up(tmp_path, scores)
    text = page.write(p).read_text()
    assert "Careful: what is said of 50% CLM, CLM only rests on one pretraining seed" in text
    assert "| 3 fine-tuning seeds |" in text and "3 pretraining" not in text
    for path in (tmp_path / "results").rglob("lr-0.001_seed-[23]"):
        shutil.rmtree(path)
    text = page.write(p).read_text()
    assert "not known: needs two fine-tuning seeds" in text and "No recommendation" in text and "nan" not in text
    shutil.rmtree(tmp_path / "results/untrained-demo")
    text = page.write(p).read_text()
    assert "every task has a vote" in text and "no share of CLM has two seeds in common with MLM alone" in text
    shutil.rmtree(tmp_path / "results/demo-mlm40-40-40")
    assert "No recommendation yet: MLM alone has no result on sst2." in page.write(p).read_text()
    (path,) = (tmp_path / "results/demo-clm-40-40").rglob("result.json")
    path.with_name("error.txt").write_text("out of memory\n")
    path.unlink()
    assert "1 failed" in page.write(p).read_text()


def test_a_share_with_a_missing_result_is_named_and_a_task_no_longer_asked_for_has_no_say(tmp_path):
    both = '--tasks=(("sst2", ""), ("mnli", ""))'
    p = one_task(tmp_path, both)
    fill(p, lambda model, task, seed: 200 + seed if model.untrained else None if (model.run.clm, task) == (20, "mnli")
         else 300 + 80 * (model.run.clm == 20) + seed * (model.run.clm == 40))  # fmt: skip
    assert "Not compared yet, for results are missing: 50% CLM." in page.write(p).read_text()
    text = page.write(one_task(tmp_path)).read_text()
    assert "mnli" not in text and "on sst2, the best first: **50% CLM**" in text and "Not compared yet" not in text
    assert "- fine-tuning: 12 of 12 jobs have a result" in text
    shutil.rmtree(tmp_path / "results/untrained-demo/mnli")
    text = page.write(one_task(tmp_path, both)).read_text()
    assert "| mnli | -" in text and "random weights too" in text


def test_arms_are_ranked_by_pairs_of_seeds(tmp_path):
    """The first pretraining seed is poor for everyone; a share that has no other seed is compared on it alone."""
    p = one_task(tmp_path, "--seeds=1,2,3", "--repeated=0,40")
    fill(p, lambda model, task, seed: 100 if model.untrained else 330 - 90 * (model.run.seed == 1)
         + 30 * (model.run.clm == 20) + (seed + model.run.clm) % 2)  # fmt: skip
    text = page.write(p).read_text()
    assert "the best first: **50% CLM**" in text and "what is said of 50% CLM rests on one pretraining seed" in text
    assert re.search(r"\| MLM only +\| 75", text) and re.search(r"\| 50% CLM +\| 67", text)


def test_a_task_on_which_pretraining_does_not_matter_has_no_vote(tmp_path):
    """A study of two tasks, three pretraining seeds, two budgets and continued pretraining; also while results come in."""
    p = plan_of(f"--out_dir={tmp_path}", "--splits=((20, 0, 10, 20), (40, 0, 20, 40))", "--seeds=1,2,3", "--continued=10,20",
                "--intermediate=8,16", "--mask_ratios=0.4,0.2", "--finetune_lrs=1e-3",
                '--tasks=(("sst2", ""), ("wnut17", ""))')  # fmt: skip
    rng = np.random.default_rng(0)

    def right(model, task, seed):
        told_apart = not model.untrained and task == "sst2"
        return 200 + (60 + 40 * (model.run.clm == 20) + int(rng.integers(-2, 3))) * told_apart

    for i in range(0, len(p.models), 6):
        fill(p, right, p.models[i : i + 6])
        text = page.write(p).read_text()
    assert "the best first: **50% CLM**" in text and "| wnut17 | " in text and "not shown: no interval" in text
    assert "| 3 pretraining seeds |" in text
    assert "After 10 more steps of MLM, corrected together:\n\n- sst2: " in text
    assert "| CLM only, then 10 MLM |" in text and "| CLM only              |" in text
    for title in ("Data efficiency", "Mask ratio", "Continued pretraining", "Stability of fine-tuning"):
        assert f"\n## {title}\n" in text
    header = (tmp_path / "report/comparisons-40.csv").read_text().splitlines()
    assert len(header) == 1 + 2 and all(
        "sst2" in line for line in header[1:]
    )  # each share against MLM alone, once a target


def test_a_page_of_a_study_that_has_hardly_begun(tmp_path):
    p = plan_of(f"--out_dir={tmp_path}", '--tasks=(("sst2", ""),)')
    assert "0 of 3 runs have ended" in page.write(p).read_text()
    make_result(tmp_path / "results", "demo-mlm40-650-650", lr=1e-3, step=650, max_steps=650)
    text = page.write(p).read_text()
    assert "1 of " in text and "No recommendation" in text and "| MLM only" in text


# ----------------------------------------------------------------------------
# Learning rates and clusters


def ended(p, name, loss=None):
    """Leaves what a run of train.py leaves; without a loss, of one that diverged."""
    folder, run = study.folder_of(p, name), p.runs[name]
    folder.mkdir(parents=True)
    (folder / "output.txt").write_text("step 7 (mlm): loss nan. Stopped before the update" if loss is None else "")
    if loss is not None:
        (folder / f"ckpt-{run.budget}.pt").touch()
        (folder / "metrics.jsonl").write_text(
            f'{{"step": {run.budget}, "val_clm_loss": {loss}, "val_mlm_loss": {9 - loss}}}\n'
        )


def test_each_objective_has_its_best_learning_rate_and_one_that_diverges_has_lost(tmp_path):
    p = plan_of(f"--out_dir={tmp_path}", "--lrs=1e-3,2e-3,3.0", "--lr_steps=260", "--splits=((650, 0, 325, 650),)")
    assert study.command(p, p.runs["demo-mlm40-650"]) is None  # nothing is chosen yet
    for lr, loss in (("0.001", 5.5), ("0.002", 5.0), ("3", None)):
        ended(p, f"demo-clm-260-lr-{lr}", loss)
    assert "--lr=0.002" in study.command(p, p.runs["demo-clm-650"]) and study.command(p, p.runs["demo-mlm40-650"]) is None
    for lr, loss in (("0.001", 5.5), ("0.002", 5.0), ("3", 4.0)):
        ended(p, f"demo-mlm40-260-lr-{lr}", loss)
    assert "--lr=0.001" in study.command(p, p.runs["demo-mlm40-650"])
    run = p.runs["demo-clm-325-mlm40-650"]
    assert study.command(p, run) is None and "is not there" in study.why_not(p, run)
    trunk = study.folder_of(p, "demo-clm-650")
    trunk.mkdir()
    (trunk / "ckpt-650.pt").touch()
    assert "demo-clm-650 is done and has not kept step 325" in study.why_not(p, run)
    (trunk / "ckpt-325.pt").touch()
    words = study.command(p, run)
    assert "--lr=0.001" in words and f"--branch_from={trunk}/ckpt-325.pt" in words  # what it trains is MLM


def test_what_is_trained_again_where_checkpoints_are_gone(tmp_path):
    p = one_task(tmp_path, "--seeds=1,2", "--choose_once=True", "--finetune_lrs=1e-3,3e-3",
                 "--splits=((650, 0, 325, 650),)")  # fmt: skip
    for name, run in p.runs.items():
        ended(p, name, 5.0)
        checkpoint.path_of(study.folder_of(p, name), run.budget).unlink()
    fill(p, lambda model, task, seed: 300)
    first = [model for model in p.models if model.run.seed == 1]
    fill(p, lambda model, task, seed: 299 if seed == 1 else None, first, lr=3e-3)
    assert study.to_train(p) == set()
    # Of a choice of the rate only what it needs; that of the second pretraining seed waits for it.
    shutil.rmtree(tmp_path / "results/demo-mlm40-650-650/sst2/lr-0.003_seed-1")
    assert study.to_train(p) == {"demo-mlm40-650"}
    # A branch needs its trunk, but not to go on from a checkpoint of its own.
    shutil.rmtree(tmp_path / "results/demo-clm-325-mlm40-650-650")
    trunk, branch = p.runs["demo-clm-650"], p.runs["demo-clm-325-mlm40-650"]
    assert study.to_train(p) == {"demo-mlm40-650", trunk.name, branch.name} and study.command(p, branch) is None
    (study.folder_of(p, branch.name) / "ckpt-600.pt").touch()
    assert study.to_train(p) == {"demo-mlm40-650", branch.name} and "--resume=True" in study.command(p, branch)
    # Half of the last line is not the end of a run; nor is a run with its last checkpoint trained again.
    log = study.folder_of(p, "demo-clm-650-seed-2") / "metrics.jsonl"
    log.write_text(log.read_text()[:-20])
    assert study.to_train(p) == {"demo-mlm40-650", branch.name, "demo-clm-650-seed-2"}
    (log.parent / "ckpt-650.pt").touch()
    assert study.to_train(p) == {"demo-mlm40-650", branch.name}


def test_where_every_learning_rate_diverged_none_is_chosen(tmp_path):
    p = plan_of(f"--out_dir={tmp_path}", "--lrs=1.0,3.0", "--lr_steps=260", "--splits=((650, 0, 650),)")
    for lr in (1, 3):
        ended(p, f"demo-clm-260-lr-{lr}")
    run = p.runs["demo-clm-650"]
    assert study.command(p, run) is None and "all of them diverged" in study.why_not(p, run)


def test_a_rate_is_chosen_among_those_that_worked(tmp_path):
    p = plan_of(f"--out_dir={tmp_path}", "--choose_once=True", "--seeds=1,2", "--finetune_lrs=1e-3,3e-3,1.0",
                '--tasks=(("sst2", ""),)')  # fmt: skip
    first, second = (next(m for m in p.models if m.run.name == f"demo-mlm40-650{seed}") for seed in ("", "-seed-2"))
    rounds = study.rounds(p)
    assert {(m.run.seed, seed) for m, _, _, seed in rounds[0]} == {(1, 1)} and {lr for _, _, lr, _ in rounds[1]} == {None}
    assert len(rounds[0]) == 4 * 3 and len(rounds[1]) == 7 * 3 and sum(map(p.jobs, p.models)) == 4 * 3 + 7 * 3 - 4
    for lr, validation in ((1e-3, 60.0), (3e-3, 70.0)):
        make_result(tmp_path / "results", first.name, lr=lr, validation=validation)
        assert study.best_rate(p, second, ("sst2", "")) is None  # the third has not been tried
    failed = study.make_job(p, first, ("sst2", ""), 1.0, 1).folder
    failed.mkdir()
    (failed / "error.txt").write_text("the loss is nan\n")
    assert study.best_rate(p, first, ("sst2", "")) == study.best_rate(p, second, ("sst2", "")) == 3e-3


def test_a_part_of_a_study_asks_only_for_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    words = [f"--out_dir={tmp_path}", "--processes=8", f"--finetune=--tasks_dir={tmp_path}", '--tasks=(("sst2", ""),)',
             "--train=--lr=-1"]  # fmt: skip
    p = plan_of(*words)
    runs, tuning, report = (list(study.problems(p, what)) for what in ("demo-clm-650", "finetune", "report"))
    assert runs[0] == "processes=8: this machine has 1 GPUs" and "demo-clm-650: lr=-1.0: must be above 0" in runs
    assert not any("sst2" in sentence for sentence in runs) and "train.tsv" in tuning[0] and report == []
    assert "WORLD_SIZE" not in os.environ


def test_the_job_scripts_of_a_cluster(tmp_path, monkeypatch, capsys):
    """Each depth of the tree is an array whose tasks are that depth's runs; submit.sh makes each wait for the one before."""
    words = [
        "--splits=((500, 0, 200), (1000, 0, 200, 1000))",
        f"--out_dir={tmp_path}",
        "--processes=8",
        "--choose_once=True",
    ]
    monkeypatch.setattr(sys, "argv", ["eval/study.py", *words, "--slurm"])
    study.main()
    submit = tmp_path / "slurm/submit.sh"
    assert capsys.readouterr().out.strip() == str(submit)
    (tmp_path / "sbatch").write_text('#!/bin/bash\necho "$@" >> log\necho $((100 + $(wc -l < log)))\n')
    (tmp_path / "sbatch").chmod(0o755)
    subprocess.run(["bash", str(submit)], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    names = ["runs-0", "runs-1", "runs-2", "finetune-0", "finetune-1", "report"]
    expected = [f"--parsable {f'--dependency=afterany:{100 + i} ' if i else ''}{tmp_path}/slurm/{name}.sbatch"
                for i, name in enumerate(names)]  # fmt: skip
    assert (tmp_path / "log").read_text().splitlines() == expected
    p, seen = plan_of(*words), []
    for script, n in (("runs-0", 2), ("runs-1", 2), ("runs-2", 1)):
        text = (tmp_path / f"slurm/{script}.sbatch").read_text()
        assert f"--array=0-{n - 1}\n" in text and "--gpus-per-node=8 --cpus-per-task=64\n" in text
        for i in range(n):  # the line that the task would run, echoed
            line = text.replace("exec ", "echo ").splitlines()
            run = subprocess.run(["bash", "-c", "\n".join(line[-2:])], env={"SLURM_ARRAY_TASK_ID": str(i)},
                                 capture_output=True, text=True).stdout.split()  # fmt: skip
            seen.append(run[-1].removeprefix("--only="))
    assert sorted(seen) == sorted(p.runs)
