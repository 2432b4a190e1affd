"""A study's plan: the paper's by its own counts, branches, waves, what is trained again. Every preset is accepted."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import checkpoint
import configurator
from data.objective import flops_per_token
from errors import DataError
from eval.study import run as carry_out
from eval.study.branch import Schedule, schedule_problems
from eval.study.plan import describe, Plan, TRAIN
from eval.study.run import arguments, FINETUNE, refusals
from helpers import ROOT
from model import ModelConfig, Transformer
from study_helpers import facts_of, plan_of, write_result


def start_of(run):
    return run.parent and run.parent.row, run.start


def test_the_plan_of_the_papers_study(monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = plan_of("config/study_paper.py")
    assert plan.problems == []
    assert describe(plan) + "\n" == Path(__file__).with_name("paper_plan.txt").read_text()
    trunk, runs = plan.runs["610m-clm-42k", 1], {name: run for (name, _), run in plan.runs.items()}
    for budget, switches in {12: (3, 6, 9), 22: (5, 11, 17), 42: (10, 21, 32)}.items():
        for clm in switches:
            run = runs[f"610m-clm-{clm}k-mlm40-{budget}k"]
            found = *start_of(run), run.settings.switch_step, run.max_steps
            assert found == (trunk.row, clm * 1000, clm * 1000, budget * 1000) and run.start in trunk.keep
    seeds = {run.continues: run.train_seed for run in runs.values()}  # those of other batches
    assert seeds == {"": 1, "610m-clm-42k": 1001, "610m-mlm40-42k": 1001}
    late = runs["610m-clm-dec42k-mlm40-54k"]
    assert start_of(late) == ("610m-clm-dec42k-mlm40-64k", 10_000) and late.continues == trunk.row
    assert len(plan.points()) == 16_200 and all(rate for _, _, rate, _ in plan.points())


def test_seeds_and_names():
    plan = plan_of(seeds="1,2", also="mlm@100", random="mlm", finetune_seeds="1,2", rates="1e-3,3e-3")
    assert plan.problems == []
    assert [run.folder.name for run in plan.runs.values()] == ["clm-seed-1", "clm-seed-2", "mlm-seed-1", "mlm-seed-2"]
    folders = (
        "clm-seed-1 clm-seed-2 mlm-seed-1 mlm-seed-2 mlm@100-seed-1 mlm@100-seed-2 random-mlm-seed-1 random-mlm-seed-2"
    )
    assert [model.folder for model in plan.models] == folders.split()
    assert plan.runs["mlm", 2].keep == {100}
    points = plan.points()
    assert len(points) == 8 * (2 + 1) and {seed for _, _, _, seed in points[:16]} == {1}  # a table of one seed is first
    assert {(rate, seed) for _, _, rate, seed in points} == {(1e-3, 1), (3e-3, 1), (None, 2)}


BRANCHES = {  # rows have 650 steps, whose last 200 decay: (begins, arguments): what is wrong
    ("clm@300", "--switch_step=300"): "",
    ("clm@300", "--switch_step=300 --mask_ratio=0.2 --predict_from=before --seq_len=64"): "",
    ("clm@300", "--switch_step=300 --clm_windows=0.5"): "",
    ("clm@400", "--switch_step=400 --max_steps=600"): "",
    (
        "clm@420",
        "--switch_step=420 --max_steps=600",
    ): "step 402 has a rate of 0.002985 and trains clm",
    ("clm@300", "--switch_step=200"): "trains clm, clm, clm, clm. Only the first 200",
    (
        "mlm@300",
        "--switch_step=400",
    ): "step 1 has a rate of 6e-05 and trains clm",
    ("mlm@300", "--switch_step=0 --clm_windows=0.5"): "trains clm, clm, mlm, mlm, there",
    (
        "mixed@300",
        "--switch_step=0 --clm_windows=0.125",
    ): "there a rate of 0.00198 and trains clm, mlm",
    ("mlm@300", "--switch_step=0 --predict_from=before"): "trains mntp, mntp, mntp, mntp, there",
    ("clm@300", "--switch_step=300 --lr=1"): "step 1 has a rate of",
    ("clm@300", "--switch_step=300 --warmup_steps=9"): "step 1 has a rate of",
    ("clm", "--max_steps=100 --warmup_steps=9 --decay_steps=9"): "",  # final weights, a new optimizer
}
REFUSED = {
    ("clm@300", "--switch_step=300 --optimizer=muon --d_ff=64"): "d_ff=64, there 0; optimizer=muon, there adamw",
    ("clm@650", "--switch_step=650"): "between 1 and 649",
    ("clm@x", "--switch_step=10"): "between 1 and",
}


def branching(cases):
    rows = [(f"row{i}", *case) for i, case in enumerate(cases)]
    mixed = ("mixed", "", "--switch_step=0 --clm_windows=0.25")
    return plan_of(runs=(("clm", "", "--switch_step=650"), ("mlm", "", "--switch_step=0"), mixed, *rows))


def test_a_branch_is_the_run_that_its_own_settings_describe():
    """By the settings, and by what train.py says of its steps."""
    plan = branching(BRANCHES)
    assert plan.problems == []
    assert (start_of(plan.runs["row3", 1]), plan.runs["clm", 1].keep) == (("clm", 400), {300, 400, 420})
    runs = plan.runs.values()
    found = dict(schedule_problems(runs))
    for i, (case, wrong) in enumerate(BRANCHES.items()):
        assert wrong in (found.pop(f"row{i}-seed-1") if wrong else ""), case
    assert found == {}  # nothing else is refused
    problems = branching(REFUSED).problems
    assert len(problems) == 3 and all(wrong in problem for wrong, problem in zip(REFUSED.values(), problems))


def test_the_plan_follows_edits_of_train(tmp_path):
    """With a cosine, a run cannot leave the middle of a longer one. Windows that are left out cost nothing, and a batch
    must grow alike."""
    script, text = tmp_path / "train.py", (ROOT / "train.py").read_text()
    cosine = "    return cfg.lr * (1 + math.cos(math.pi * step / cfg.max_steps)) / 2\n"
    text = text.replace("def learning_rate(step, cfg):\n", f"def learning_rate(step, cfg):\n{cosine}")
    script.write_text(text.replace("        return CLM()\n", "        return CLM() if window % 2 else None\n"))
    rows = {("clm@300", "--switch_step=300 --max_steps=500"): "", ("clm@300", "--switch_step=300"): ""}
    runs = branching(rows).runs.values()
    ((name, why),) = schedule_problems(runs, script)
    assert name == "row0-seed-1" and "step 2 has a rate of 0.00299997" in why and "Only the first 1 steps" in why
    model = Transformer(ModelConfig(vocab_size=4096, seq_len=128))  # the demo's
    run = next(run for run in runs if run.row == "clm")
    assert Schedule(run, script).flops() == pytest.approx(650 * 2048 * flops_per_token(model, 128, True, 1))

    grows = tmp_path / "grows.py"
    few = "    if window >= 8 + 24 * step // cfg.max_steps:\n        return None\n    if step <"
    grows.write_text((ROOT / "train.py").read_text().replace("    if step <", few, 1))
    rows = {("clm@100", "--switch_step=100 --max_steps=400"): "", ("clm@9", "--switch_step=9"): ""}
    ((name, why),) = schedule_problems(branching(rows).runs.values(), grows)
    assert name == "row0-seed-1" and "left out" in why


FIVE = ("a b", "", ""), ("x", "y", ""), ("x", "", "--max_stepz=1"), ("z", "x", "--seed=2 --init_from=y"), ("q",)
WRONG = [  # rows, other settings, what is told
    (FIVE, {}, ["runs: a b: a name has letters", "runs: x: it begins with 'y', which is no row above it",
                "runs: x: two rows have this name", "unknown setting 'max_stepz'", "runs: z: seed is set by the study",
                "runs: z: init_from is set by the study", "not ('q',)"]),
    ([("a", "", "--out_dir='x")], {}, ['runs: a: "--out_dir=\'x": No closing quotation']),
    ([("a", "", ""), ("b", "a", "")],
     dict(also="a@900,a@x,c@1", random="d", primary=(("a", "e"), ("a", "b", "c"))),
     ["a@900: give a step", "no 'c'", "no 'd'", "no 'e'", "not ('a', 'b', 'c')"]),
    ([("a", "", "")],
     dict(rates=(), seeds=(9, 9), metrics="x", jobs=-1, processes="1e18", finetune="'",
          tasks="sst3,own/sst2.py,sst2,sst2"),
     ["rates: give at least one", "seeds=(9, 9): give each only once", "metrics=x", "jobs=-1", "processes=10",
      "finetune: \"'\": No closing", "sst3", "there is a task sst2 already", "tasks: two are called sst2"]),
    ([("mlm", "", "")],
     dict(figures=(("score", "step", "mlm", "a"), ("losses", "flops", "mlm", ""), ("scores", "step", "elm", ""), "d")),
     ["no 'score'. Did you mean", "no 'flops'", "no 'elm'. Did you mean", "not ('d',)"]),
]  # fmt: skip


@pytest.mark.parametrize("rows, settings, wanted", WRONG)
def test_wrong_settings_are_told_together_and_without_a_traceback(run, rows, settings, wanted):
    args = [f"--runs={(*rows,)}", *(f"--{name}={value}" for name, value in settings.items())]
    code, output = run(args, "eval.study")
    assert code == 2 and [its for its in wanted if its not in output] == [] and "Traceback" not in output, output


def test_what_train_or_finetune_would_refuse_is_told_before_any_work(tmp_path, run):
    rows = (("odd", "", "--switch_step=700"), ("other", "", ""))
    args = [f"--runs={rows}", "--train=--mask_proportions=1", f"--out_dir={tmp_path}/study", "--checkpoints=nowhere"]
    args += ["--tasks=sst2 --dropout=2,wnut17", f"--finetune=--tasks_dir={tmp_path}", "--rates=1e-3,1e-4"]
    code, output = run(args, "eval.study")
    assert code == 1 and not (tmp_path / "study").exists()
    _, output = output.split("nothing was started:")
    for sentence in (
        "odd-seed-1 and 1 more: mask_proportions=(1.0,)",
        "odd-seed-1: max_steps=650: the schedule has 700 steps",
        "sst2: dropout=2.0: must be",
        "\nwnut17: missing:",
        "\nnowhere: nowhere is neither a checkpoint",
    ):
        assert output.count(sentence) == 1, output
    code, output = run([f"--runs={rows}", "--train=--model=300m --global_batch_tokens=64", "--plan"], "eval.study")
    assert code == 2 and "runs: odd: model=300m: must be one of demo" in output, output
    wrong = "clm-seed-1", "finetune-2:1/3", "finetune-1:0/3", "finetune-1:4/3", "finetune-1:1/"
    for only in wrong:
        code, output = run([f"--only={only}", "--checkpoints=x", "--finetune_seeds=1"], "eval.study")
        said = f"only={only}: give one of finetune-1, report; a part of a wave is"
        if only.startswith("finetune-1"):
            said = f"part={only.partition(':')[2]}: expected a number and how many parts there are"
        assert code == 1 and said in output, output


TABLES = {  # a table that stops a fine-tuning, and what is told of it
    "text,label \nx,1\n": "line 1: no column 'topic'; the columns are ['text', 'label']",
    "text;topic\nx;1\ny;0\n": "line 1: no column 'text'; the columns are ['text;topic']",
    "t\0e\0x\0t\0\n\0x\0\n\0": "line 1: no column 'text'",  # UTF-16
    "": "there are no examples in it",
    "text,topic\n": "there are no examples in it",
    "topic\nx\n": "line 1: no column 'text'",
    "text,text,topic\nx,y,1\n": "line 1: two columns have the same name",
    "text,topic\nx,1\ny,\nz,\n": "no 'topic' in lines [3, 4]",
    "text,topic\nx,1\ny,0\n" + "z\n": "line 4: 1 fields, but line 1 has 2",
}


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_cannot_be_read_is_told_before_any_work(tmp_path, table, split):
    (tmp_path / "good.csv").write_text("text, topic \na,0\nb,1\n")
    (tmp_path / "bad.csv").write_text(table)
    paths = dict.fromkeys(("train", "validation", "test"), "good.csv") | {split: "bad.csv"}
    given = dict(family="sc", label="topic", **paths)
    (tmp_path / "own.py").write_text("".join(f"{name} = {value!r}\n" for name, value in given.items()))
    plan = plan_of(tasks=f"{tmp_path}/own.py")
    ((name, problem),) = carry_out.problems_of(plan, [], plan.points())
    assert name == "own" and f"{tmp_path}/bad.csv" in problem and TABLES[table] in problem
    (tmp_path / "bad.csv").write_text("text,topic \na,0\nb,1\n")
    assert not [*carry_out.problems_of(plan, [], plan.points())]


def test_every_rate_and_seed_is_checked_before_any_work():
    plan = plan_of(tasks="embedded-sc", rates="1e-3,0,-1", finetune_seeds="1,-1")
    problems = [problem for _, problem in carry_out.problems_of(plan, [], plan.points())]
    assert [problem.partition(":")[0] for problem in problems] == ["seed=-1", "lr=0.0", "lr=-1.0"]


def test_a_damaged_config_of_a_run_is_named(tmp_path):
    run = plan_of(out_dir=tmp_path).runs["mlm", 1]
    run.folder.mkdir(parents=True)
    path = run.folder / "config.json"
    for text in ("", "{", "[" * 10**5, "\xff", "null", '{"settings": {}}', '{"settings": [], "data_fingerprint": ""}'):
        path.write_text(text, encoding="latin-1")
        assert f"{path} is damaged" in carry_out.changed(run, path, tmp_path), text


def test_a_run_and_a_result_must_be_of_their_row(tmp_path):
    runs = (("a", "", ""), ("b", "a", "--lr=1e-4"), ("c", "a@300", ""))
    runs = plan_of(out_dir=tmp_path, runs=runs, train="--data=elsewhere --dtype=float32 --device=cpu").runs
    run, branch = runs["b", 1], runs["c", 1]
    settings = run.settings | {"seed": run.train_seed, "init_from": f"moved/a-seed-1/{run.origin.name}"}
    run.folder.mkdir(parents=True)
    for name in ("config.json", "result.json"):
        for change, why in (
            ({}, ""),
            ({"init_from": f"{tmp_path}/runs/c-seed-1/{run.origin.name}"}, f"init_from={run.origin}, but the run in"),
            ({"init_from": ""}, f"init_from={run.origin}, but the run in"),
            ({"lr": 0.5}, "lr=0.0001, but the run in"),
        ):
            record = {"settings": settings | change, "data_fingerprint": "0" * 64}
            if name == "result.json":
                record = {"checkpoint": {"settings": settings | change, "data": "0" * 64}}
            (run.folder / name).write_text(json.dumps(record))
            found = carry_out.changed(run, run.folder / name, tmp_path)
            assert found.startswith(why) and bool(found) == bool(why), found
    record = {"settings": branch.settings | {"seed": branch.train_seed}, "data_fingerprint": "0" * 64}
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert carry_out.changed(branch, tmp_path / "config.json", tmp_path) == ""  # it was trained from the start


def ended(run):
    """Leave what a run of train.py leaves whose checkpoints were deleted."""
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text(json.dumps({"step": run.max_steps, "val_mlm_loss": 3.0}) + "\n")


def tuned(plan, model, rate, seed=1, **result):
    folder = plan.results / carry_out.job_folder(model, "sst2", rate, seed)
    return write_result(folder, facts_of(model.folder, seed=model.run.seed), lr=rate, seed=seed, **result)


def test_what_is_trained_again_where_checkpoints_are_gone(tmp_path):
    rows = (("clm", "", "--switch_step=650"), ("split", "clm@325", "--switch_step=325"), ("mlm", "", "--switch_step=0"))
    plan = plan_of(runs=rows, out_dir=tmp_path, finetune_seeds="1")
    names = lambda: [run.row for run in carry_out.to_train(plan)]  # noqa: E731
    clm, split, mlm = plan.runs.values()
    assert names() == ["clm", "split", "mlm"]
    for run, model in zip(plan.runs.values(), plan.models):
        ended(run)
        tuned(plan, model, 1e-3)
    assert names() == []
    # A branch needs its parent, but not to go on from a checkpoint of its own.
    shutil.rmtree(tmp_path / "results/split-seed-1")
    assert names() == ["clm", "split"]
    (clm.folder / "ckpt-325.pt").touch()
    assert names() == ["split"]
    command = carry_out.training(split, 1).command
    assert f"--branch_from={clm.folder}/ckpt-325.pt" in command and "--resume=True" in command
    (split.folder / "ckpt-600.pt").touch()
    (clm.folder / "ckpt-325.pt").unlink()
    assert names() == ["split"]
    # The parent has its last checkpoint, but not the one to branch off: train.py would not train it again.
    (split.folder / "ckpt-600.pt").unlink()
    clm.checkpoint().touch()
    with pytest.raises(DataError, match="ckpt-325.pt is not there. Delete .*ckpt-650.pt, too"):
        names()
    assert carry_out.carry_out(plan, {"report": []}) == []  # which needs no checkpoint
    clm.checkpoint().unlink()
    (split.folder / "ckpt-600.pt").touch()
    # Half of the last line is not the end of a run; nor is a run with its last checkpoint trained again.
    log = mlm.folder / "metrics.jsonl"
    log.write_text(log.read_text()[:-20])
    assert names() == ["split", "mlm"]
    checkpoint.path_of(mlm.folder, 650).touch()
    assert names() == ["split"]


def test_each_pretraining_seed_chooses_its_rate_among_those_that_worked(tmp_path):
    plan = plan_of(seeds="1,2", out_dir=tmp_path, rates="1e-3,3e-3,1.0", finetune_seeds="1,2")
    for model in plan.models[2:]:  # mlm
        best = {1: 3e-3, 2: 1e-3}[model.run.seed]
        for rate in (1e-3, 3e-3):
            tuned(plan, model, rate, validation=60.0 + 10 * (rate == best))
        assert not carry_out.chosen_rate(plan, model, "sst2")  # the third has not been tried
        assert not carry_out.has_result(plan, (model, "sst2", None, 2))
        failed = carry_out.finetuning(plan, model, "sst2", 1.0, 1).folder
        failed.mkdir()
        (failed / "error.txt").write_text("the loss is nan\n")
        assert carry_out.chosen_rate(plan, model, "sst2") == best
        tuned(plan, model, best, seed=2)
        assert carry_out.has_result(plan, (model, "sst2", None, 2))


def test_rows_that_continue_a_model_have_its_shape_and_say_so(tmp_path, encoder):
    """`encoder` is of another shape than the presets."""
    shape = f"--model=origin --init_from={encoder}"
    rows = (("mntp", "", f"{shape} --predict_from=before"), ("mlm", "mntp", "--model=origin"))
    plan = plan_of(runs=rows, train="--switch_step=0 --global_batch_tokens=1024", out_dir=tmp_path)
    assert plan.problems == [] and [*carry_out.problems_of(plan, plan.runs.values(), points=[])] == []
    assert [run.continues for run in plan.runs.values()] == [encoder.parent.name, "mntp"]


def test_given_checkpoints_are_called_as_in_their_results(tmp_path):
    """Those of a study's runs are pretraining seeds of one model."""
    for name in ("mlm-seed-1", "mlm-seed-2", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ckpt-9.pt").touch()
    plan = plan_of(runs="", checkpoints=f"{tmp_path}/mlm-seed-1,{tmp_path}/mlm-seed-2,hf:organization/other")
    assert [model.label for model in plan.models] == ["mlm-9", "mlm-9", "other"] and not plan.problems
    assert [model.folder for model in plan.models] == ["mlm-seed-1-9", "mlm-seed-2-9", "other"]
    plan = plan_of(runs="", checkpoints=f"{tmp_path}/other,{tmp_path}/other/ckpt-9.pt")
    assert plan.problems == ["checkpoints: two models would be called other-9: rename one"]


def test_one_job_of_a_task_scores_its_baselines():
    plan = plan_of(tasks="sst2,wnut17 --max_steps=9", rates="1e-3,3e-3", finetune="--batch_size=8")
    jobs = [carry_out.finetuning(plan, *point) for point in plan.points() if point[2]]
    assert len({job.folder for job in jobs}) == len(jobs) == 8
    first = [job for job in jobs if "--baseline=True" in job.command]
    assert sorted(job.folder.parent.name for job in first) == ["sst2", "wnut17"]
    assert all(("--max_steps=9" in job.command) == ("wnut17" in str(job.folder)) for job in jobs)
    assert all("--batch_size=8" in job.command for job in jobs)
    plan = plan_of(tasks="sst2,scifact --max_steps=0", rates="1e-3,3e-3")  # zero-shot: without rates and seeds
    assert [point[2:] for point in plan.points() if point[1] == "scifact"] == [(1e-3, 1)] * 2
    plan = plan_of(tasks="scifact,wnut17 --max_steps=9", rates="1e-3,3e-3", finetune="--max_steps=0")
    assert [len([point for point in plan.points() if point[1] == task]) for task in plan.tasks] == [2, 12]
    (problem,) = plan_of(tasks="sst2", finetune="--max_steps=0").problems
    assert problem.startswith("tasks: max_steps=0: sst2 has a head, which must be trained")


def test_the_parts_of_the_waves_are_the_whole_study(tmp_path):
    """Runs come after those that they begin with, and the chosen rates after all given ones."""
    rows = (("clm", "", "--switch_step=650"), ("b", "clm@300", "--switch_step=300"), ("c", "b", ""), ("mlm", "", ""))
    plan = plan_of(runs=rows, finetune_seeds="1,2", rates="1e-3,3e-3", out_dir=tmp_path)
    waves = plan.waves()
    names = {name: [run.row for run in items] for name, items in waves.items() if name.startswith("pretrain")}
    assert names == {"pretrain-1": ["clm", "mlm"], "pretrain-2": ["b"], "pretrain-3": ["c"]}
    assert [*waves][3:] == ["finetune-1", "finetune-2"] and [len(waves[name]) for name in [*waves][3:]] == [8, 4]
    assert waves["finetune-1"] + waves["finetune-2"] == plan.points()
    failed = carry_out.carry_out(plan, {"finetune-2": waves["finetune-2"][:1]})
    assert len(failed) == 1 and "no learning rate is chosen, because the runs with seed 1 are missing" in failed[0][1]


def test_the_commands_for_a_cluster_run_every_part_once(monkeypatch):
    """A wave of pretraining has as many parts as it has runs."""
    (block,) = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/study.md").read_text(), re.S)
    subprocess.run(["bash", "-n", "-c", block], check=True)
    parts = dict(word.split(":") for word in re.search("for wave in (.*); do", block)[1].split())
    monkeypatch.chdir(ROOT)
    waves = plan_of("config/study_paper.py").waves()
    assert [*parts] == [*waves, "report"]
    assert all(int(parts[wave]) == len(waves[wave]) for wave in waves if wave.startswith("pretrain"))


STUDIES = sorted((ROOT / "config").rglob("study_*.py"))
CONFIGS = sorted({*(ROOT / "config").glob("*.py")} - {*STUDIES})
# What may be missing here
MISSING = re.compile(r"^missing:|^init_from|no such folder; prepare it|no such file|already holds a run")


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
    assert problems(commands) == ["lr=0.0: must be above 0", "mask_ratio=2.0: must be below 1"]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_run_of_a_study_is_accepted(path, problems, monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = Plan(configurator.load(ROOT / "eval/study/__main__.py", [str(path)]))
    assert plan.problems == []
    rows = {run.row: run for run in plan.runs.values()}  # seeds of a row differ in names only
    assert problems([(arguments(run), plan.cfg.processes) for run in rows.values()]) == []
    commands = [("", [*its.args, "--out_dir=nowhere"]) for its in plan.tasks.values()]
    assert [its for _, its in refusals(FINETUNE, commands) if not MISSING.search(its)] == []
