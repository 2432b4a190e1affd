"""A study's plan: the paper's by its own counts, branches, waves, what is trained again. Every preset is accepted."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

import checkpoint
import configurator
from data.flops import flops_per_token
from errors import DataError
from eval.study import run as carry_out
from eval.study.branch import Schedule, schedule_problems
from eval.study.jobs import PLANNED_FILE, begin
from eval.study.plan import DEFAULTS, FINETUNE, TRAIN, describe
from eval.study.run import arguments, fingerprint, refusals
from helpers import ROOT
from model import ModelConfig, Transformer
from runtime import resolve_auto
from study_helpers import facts_of, plan_of, write_result

HERE = Path(__file__).parent
REFUSED = (HERE / "refused.txt").read_text().strip().split("\n\n")[1:]


def test_the_plan_of_the_papers_study(monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = plan_of("config/study_paper.py")
    assert plan.problems == [] and describe(plan) + "\n" == (HERE / "paper_plan.txt").read_text()
    runs = {name: run for (name, _), run in plan.runs.items()}
    seeds = {run.continues: run.train_seed for run in runs.values()}  # those of other batches
    assert seeds == {"": 1, "610m-clm-42k": 1001, "610m-mlm40-42k": 1001}
    assert runs["610m-clm-dec42k-mlm40-54k"].continues == "610m-clm-42k"
    branch = runs["610m-clm-5k-mlm40-22k"]
    assert (branch.settings.switch_step, branch.max_steps) == (5000, 22_000) and 5000 in branch.parent.keep
    assert all(rate for _, _, rate, _ in plan.points())


def test_seeds_and_names():
    plan = plan_of(seeds="1,2", also="mlm@100", random="mlm", finetune_seeds="1,2", rates="1e-3,3e-3")
    assert [run.folder.name for run in plan.runs.values()] == ["clm-seed-1", "clm-seed-2", "mlm-seed-1", "mlm-seed-2"]
    names = "clm-seed-{} mlm-seed-{} mlm@100-seed-{} random-mlm-seed-{}".split()
    assert [model.folder for model in plan.models] == [name.format(seed) for name in names for seed in (1, 2)]
    assert plan.runs["mlm", 2].keep == {100} and plan.problems == []
    points = plan.points()
    assert len(points) == 8 * (2 + 1) and {seed for _, _, _, seed in points[:16]} == {1}  # a table of one seed is first
    assert {(rate, seed) for _, _, rate, seed in points} == {(1e-3, 1), (3e-3, 1), (None, 2)}


def test_a_run_begins_with_what_its_row_says_whatever_a_file_says(tmp_path):
    (tmp_path / "own.py").write_text('init_from = "x"\nbranch_from = "y"\nswitch_step = 0\n')
    rows, origins = {"a": "", "b": "a@300", "c": "a"}, []
    plan = plan_of(runs=tuple((name, begins, f"{tmp_path}/own.py") for name, begins in rows.items()))
    for run in plan.runs.values():
        settings, _ = configurator.parse(carry_out.training(run, 1).command[1:], DEFAULTS)
        origins.append((Path(settings.init_from).parent.name, Path(settings.branch_from).parent.name))
    assert origins == [("", ""), ("", "a-seed-1"), ("a-seed-1", "")] and plan.runs["a", 1].settings.init_from == "x"


def branching(cases):
    rows = [(f"row{i}", begins, args) for i, (begins, args, _) in enumerate(cases)]
    mixed = ("mixed", "", "--switch_step=0 --clm_windows=0.25")
    return plan_of(runs=(("clm", "", "--switch_step=650"), ("mlm", "", "--switch_step=0"), mixed, *rows))


def test_a_branch_is_the_run_that_its_own_settings_describe():
    """By the settings, for the last three, and by what train.py says of its steps."""
    cases = [map(str.strip, line.split(";")) for line in (HERE / "branches.txt").read_text().splitlines()[1:]]
    *cases, a, b, c = map(tuple, cases)
    plan = branching(cases)
    assert plan.problems == [] and plan.runs["clm", 1].keep == {300, 400, 420}
    found = dict(schedule_problems(plan.runs.values()))
    for i, case in enumerate(cases):
        assert case[-1] in (found.pop(f"row{i}-seed-1") if case[-1] else ""), case
    assert found == {}  # nothing else is refused
    for case, problem in zip((a, b, c), branching([a, b, c]).problems, strict=True):
        assert case[-1] in problem


def test_the_plan_follows_edits_of_train(tmp_path):
    """With a cosine, a run cannot leave the middle of a longer one. Windows that are left out cost nothing, and a batch
    must grow alike, and a mask ratio fall alike."""
    script, text = tmp_path / "train.py", (ROOT / "train.py").read_text()
    cosine = "    return cfg.lr * (1 + math.cos(math.pi * step / cfg.max_steps)) / 2\n"
    edited = text.replace("def learning_rate(step, cfg):\n", f"def learning_rate(step, cfg):\n{cosine}")
    script.write_text(edited.replace("        return CLM()\n", "        return CLM() if window % 2 else None\n"))
    runs = branching([("clm@300", "--switch_step=300 --max_steps=500", ""), ("clm@300", "--switch_step=300", "")]).runs
    ((name, why),) = schedule_problems(runs.values(), script)
    assert name == "row0-seed-1" and "step 2 has a rate of 0.00299997" in why and "At most the first 1 steps" in why
    model = Transformer(ModelConfig(vocab_size=4096, seq_len=128))  # the demo's
    flops = 650 * 2048 * flops_per_token(model, 128, True, 1)
    assert Schedule(runs["clm", 1], script).flops() == pytest.approx(flops)

    grows = tmp_path / "grows.py"
    few = "    if window >= 8 + 24 * step // cfg.max_steps:\n        return None\n    if step <"
    grows.write_text(text.replace("    if step <", few, 1))
    runs = branching([("clm@100", "--switch_step=100 --max_steps=400", ""), ("clm@9", "--switch_step=9", "")]).runs
    ((name, why),) = schedule_problems(runs.values(), grows)
    assert name == "row0-seed-1" and "trains 34.4% clm, 65.6% left out, there" in why
    falls = tmp_path / "falls.py"
    falls.write_text(text.replace("MLM(cfg.mask_ratio,", "MLM(cfg.mask_ratio - 0.3 * step / cfg.max_steps,"))
    runs = branching([("mlm@9", f"--switch_step=0 {x}", "") for x in ("--max_steps=400", "--mask_ratio=0.5")]).runs
    assert [*dict(schedule_problems(runs.values(), falls))] == ["row0-seed-1"]


@pytest.mark.parametrize("case", REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_work_is_told_together_before_any_work(run, case):
    expected, *lines = case.splitlines()
    args = [line.strip() for line in lines if line.startswith("    ")]
    code, output = run(args, "eval.study")
    told = [re.sub(r"^ +\d+\. ", "", line) for line in output.splitlines()]
    missing = [line for line in lines[len(args) :] if not any(other.startswith(line) for other in told)]
    assert (code, missing) == (int(expected), []) and "Traceback" not in output, output
    assert not (ROOT / "none").exists()


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_table_that_cannot_be_read_is_told_before_any_work(tmp_path, split):
    paths = dict.fromkeys(("train", "validation", "test"), "good.csv") | {split: "bad.csv"}
    given = dict(family="sc", label="topic", **paths)
    (tmp_path / "own.py").write_text("".join(f"{name} = {value!r}\n" for name, value in given.items()))
    (tmp_path / "good.csv").write_text("text, topic \na,0\nb,1\n")
    (tmp_path / "bad.csv").write_text("text,topic\nx,1\ny,\nz,\n")
    plan = plan_of(tasks=f"{tmp_path}/own.py")
    ((name, problem),) = carry_out.problems_of(plan, [], plan.points())
    assert name == "own" and f"{tmp_path}/bad.csv" in problem and "line 3: the label is ''" in problem


def test_what_is_there_must_have_been_asked_for_as_now(tmp_path, data_dir, mixture):
    """Of a run, of fine-tuning a model of the study, and of fine-tuning a given one."""
    rows = {"a": ("", ""), "c": ("a@300", ""), "b": ("a", "--lr=1e-4 --mask_proportions=.5,.5,0")}
    train = f"--device=cpu --data={data_dir}"
    before = dict(out_dir=tmp_path, train=train, checkpoints="x/ckpt-9.pt", rates="1e-3")

    def plan_with(a=rows["a"], b=rows["b"], **now):
        table = [(name, *row) for name, row in (rows | {"a": a, "b": b}).items()]
        plan = plan_of(**before | dict(runs=(*table,), tasks="sst2") | now)
        return plan, plan.runs["b", 1], [(plan.models[i], "sst2", 1e-3, 1) for i in (2, 3)]

    def refused(**now):
        plan, run, points = plan_with(**now)
        found = [line for line in carry_out.problems_of(plan, [run], points) if " was given " in line[1]]
        return "+".join(dict.fromkeys(name.partition(",")[0] for name, _ in found)), " ".join({why for _, why in found})

    plan, run, points = plan_with()
    jobs = [carry_out.training(run, 1), *(carry_out.finetuning(plan, *point) for point in points)]
    for job in jobs:
        job.folder.mkdir(parents=True)
        (job.folder / "config.json").touch()
        begin(job)
        assert not (job.folder / "config.json").exists()  # of a run without checkpoints
        (job.folder / "config.json").touch()
        job.result.touch()
    trained, ours, given = "b-seed-1+b-seed-1 on sst2", "b-seed-1 on sst2", "x-9 on sst2"
    used = resolve_auto(jobs[0].planned["train.py"])["dtype"]
    other = {"float32": "bfloat16", "bfloat16": "float32"}[used]
    for now, which, what, then in (
        ({}, "", "", ""),
        (dict(train=f"{train} --micro_batch=7 --dtype={used}", finetune="--eval_interval=7"), "", "", ""),
        (dict(train="--data=not/here"), "", "", ""),
        (dict(train=f"--data={mixture}"), trained, fingerprint(mixture), fingerprint(str(data_dir))),
        (dict(train=f"{train} --dtype={other}"), trained, f"dtype={other}", f"dtype={used}"),
        (dict(b=("a", rows["b"][1].replace("1e", "2e"))), trained, "lr=0.0002", "lr=0.0001"),
        (dict(a=("", "--lr=1e-3")), trained, "lr of a=0.001", "lr of a=0.003"),
        (dict(b=("c", rows["b"][1])), trained, "begins_with=c-seed-1/ckpt-650.pt", "begins_with=a-seed-1/ckpt-650.pt"),
        (dict(finetune="--batch_size=7"), f"{ours}+{given}", "batch_size=7", "batch_size=32"),
        (dict(checkpoints="y/x/ckpt-9.pt"), given, "init_from=y/x/ckpt-9.pt", "init_from=x/ckpt-9.pt"),
    ):
        names, why = refused(**now)
        assert names == which and re.match(rf".*{what}\W.* was given .*{then}\W" if what else "$", why), (now, why)
    path = jobs[0].folder / PLANNED_FILE
    record = json.loads(path.read_text())
    del record["train.py"]["grad_clip"]  # of before there was such a setting
    path.write_text(json.dumps(record))
    assert refused() == ("", "") and "grad_clip=2.0, but" in refused(train=f"{train} --grad_clip=2")[1]
    checkpoint.path_of(jobs[0].folder, 9).touch()
    begin(jobs[0])  # goes on from there: all stays
    assert json.loads(path.read_text()) == record and (jobs[0].folder / "config.json").exists()
    assert carry_out.differs("init_from", "out/a", "") and carry_out.differs("init_from", "", "out/a")
    path.unlink()
    assert refused(b=("a", "--lr=2e-4"))[0] == ours  # the run is of before there were records
    branch = carry_out.decides(plan.runs["c", 1])  # the schedule of the steps that it shares is its own
    assert "lr of a" not in branch and branch["mask_ratio of a"] == 0.4


@pytest.mark.parametrize("name", ["ckpt-9.pt", "model.safetensors"])  # of a run, and of a folder of the hub
def test_a_given_checkpoint_is_the_one_that_the_results_are_of(tmp_path, name):
    file, library, found = tmp_path / "x" / name, pytest.importorskip("safetensors.torch"), []
    path, save = (file, torch.save) if file.suffix == ".pt" else (file.parent, library.save_file)
    plan = plan_of(runs="", checkpoints=path, rates="1e-3", out_dir=tmp_path)
    file.parent.mkdir()
    for weight in 5.0, 5.0, 6.0, None:  # None: it is gone
        save({"weight": torch.tensor(weight)}, file) if weight else file.unlink()
        carry_out.content_of.cache_clear()
        job = carry_out.finetuning(plan, *plan.points()[0])
        found.append([why for _, why in carry_out.changed(job, "")])
        job.folder.mkdir(parents=True, exist_ok=True)
        begin(job) if len(found) == 1 else None
    assert found[:2] == [[], []] == [*found[3:], []] and f"{path.name}', 'fingerprint': " in found[2][0]


def tuned(plan, model, rate, seed=1, **result):
    folder = plan.results / carry_out.job_folder(model, "sst2", rate, seed)
    return write_result(folder, facts_of(model.folder, seed=model.run.seed), lr=rate, seed=seed, **result)


def test_what_is_trained_again_where_checkpoints_are_gone(tmp_path):
    rows = (("clm", "", "--switch_step=650"), ("split", "clm@325", "--switch_step=325"), ("mlm", "", "--switch_step=0"))
    plan = plan_of(runs=rows, out_dir=tmp_path, finetune_seeds="1")
    assert [run.row for run in carry_out.to_train(plan)] == ["clm", "split", "mlm"]
    for run, model in zip(plan.runs.values(), plan.models):  # they have ended, and their checkpoints were deleted
        tuned(plan, model, 1e-3)
        run.folder.mkdir(parents=True)
        (run.folder / "metrics.jsonl").write_text(json.dumps({"step": run.max_steps, "val_mlm_loss": 3.0}) + "\n")
    for line in (HERE / "gone.txt").read_text().splitlines()[1:]:
        made, gone, needed = line.split("; ")
        if made != "-":
            (tmp_path / made).touch()
        if gone != "-":
            (tmp_path / gone).unlink()
        if needed.startswith("error: "):  # train.py would not train clm again
            with pytest.raises(DataError, match=needed.removeprefix("error: ")):
                carry_out.to_train(plan)
            assert carry_out.carry_out(plan, {"report": []}) == []  # which needs no checkpoint
        else:
            assert " ".join(run.row for run in carry_out.to_train(plan)) == needed.strip("-"), line
    command = carry_out.training(plan.runs["split", 1], 1).command
    assert f"--branch_from={tmp_path}/runs/clm-seed-1/ckpt-325.pt" in command and "--resume=True" in command


def test_each_pretraining_seed_chooses_its_rate_among_those_that_worked(tmp_path):
    plan = plan_of(seeds="1,2", out_dir=tmp_path, rates="1e-3,3e-3,1.0", finetune_seeds="1,2")
    for model in plan.models[2:]:  # mlm
        best, later = {1: 3e-3, 2: 1e-3}[model.run.seed], (model, "sst2", None, 2)
        for rate in (1e-3, 3e-3):
            tuned(plan, model, rate, validation=60.0 + 10 * (rate == best))
        assert not carry_out.chosen_rate(plan, model, "sst2")  # the third has not been tried
        (failure,) = carry_out.carry_out(plan, {"finetune-2": [later]})
        assert "no learning rate is chosen, because the runs with seed 1 are missing" in failure[1]
        failed = carry_out.finetuning(plan, model, "sst2", 1.0, 1).folder
        failed.mkdir()
        (failed / "error.txt").write_text("the loss is nan\n")
        assert carry_out.chosen_rate(plan, model, "sst2") == best and not carry_out.has_result(plan, later)
        tuned(plan, model, best, seed=2)
        assert carry_out.has_result(plan, later)


def test_models_that_are_given_or_continued_have_their_names_and_shapes(tmp_path, encoder):
    """`encoder` has a shape of its own. The checkpoints of a study's runs are pretraining seeds of one model."""
    rows = (("mntp", "", f"--model=origin --init_from={encoder}"), ("mlm", "mntp", "--model=origin"))
    plan = plan_of(runs=rows, train="--switch_step=0 --global_batch_tokens=1024", out_dir=tmp_path)
    assert plan.problems == [] and [*carry_out.problems_of(plan, plan.runs.values(), points=[])] == []
    assert [run.continues for run in plan.runs.values()] == [encoder.parent.name, "mntp"]
    for name in ("mlm-seed-1", "mlm-seed-2", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ckpt-9.pt").touch()
    plan = plan_of(runs="", checkpoints=f"{tmp_path}/mlm-seed-1,{tmp_path}/mlm-seed-2,hf:organization/other")
    assert [model.label for model in plan.models] == ["mlm-9", "mlm-9", "other"] and not plan.problems
    assert [model.folder for model in plan.models] == ["mlm-seed-1-9", "mlm-seed-2-9", "other"]
    plan = plan_of(runs="", checkpoints=f"{tmp_path}/other,{tmp_path}/other/ckpt-9.pt")
    assert plan.problems == ["checkpoints: two models would be called other-9: rename one"]


def test_the_points_of_tasks():
    """What is scored zero-shot has neither rates nor seeds."""
    plan = plan_of(tasks="sst2,wnut17 --max_steps=9", rates="1e-3,3e-3", finetune="--batch_size=8")
    jobs = [carry_out.finetuning(plan, *point) for point in plan.points() if point[2]]
    assert len({job.folder for job in jobs}) == len(jobs) == 8
    for job in jobs:
        assert "--batch_size=8" in job.command and ("--max_steps=9" in job.command) == ("wnut17" in str(job.folder))
    plan = plan_of(tasks="scifact,wnut17 --max_steps=9", rates="1e-3,3e-3", finetune="--max_steps=0")
    assert [len([point for point in plan.points() if point[1] == task]) for task in plan.tasks] == [2, 12]
    (problem,) = plan_of(tasks="sst2", finetune="--max_steps=0").problems
    assert problem.startswith("tasks: max_steps=0: sst2 has a head, which must be trained")


def test_the_parts_of_the_waves_are_the_whole_study(monkeypatch):
    """Runs come after those that they begin with, and the chosen rates after all given ones."""
    rows = (("clm", "", "--switch_step=650"), ("b", "clm@300", "--switch_step=300"), ("c", "b", ""), ("mlm", "", ""))
    plan = plan_of(runs=rows, finetune_seeds="1,2", rates="1e-3,3e-3")
    waves = plan.waves()
    assert waves.pop("finetune-1") + waves.pop("finetune-2") == plan.points()
    names = {name: [run.row for run in items] for name, items in waves.items()}
    assert names == {"pretrain-1": ["clm", "mlm"], "pretrain-2": ["b"], "pretrain-3": ["c"]}

    # The commands for a cluster: a wave of pretraining has as many parts as it has runs.
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


def problems(script, commands):
    """What a script finds wrong with some arguments, but for missing files."""
    return [why for _, why in refusals(script, [("", args) for args in commands]) if not MISSING.search(why)]


def test_every_config_is_accepted(monkeypatch):
    """On one process and on whole nodes, for which the batches of a laptop are too small. Wrong settings are not."""
    assert problems(TRAIN, [[str(path)] for path in CONFIGS]) == []
    monkeypatch.setenv("WORLD_SIZE", "64")
    assert problems(TRAIN, [[str(path)] for path in CONFIGS if path.stem != "openstax"]) == []
    assert problems(TRAIN, [["--lr=0", "--mask_ratio=2"]])[1] == "mask_ratio=2.0: must be below 1"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_run_of_a_study_is_accepted(path, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    plan = plan_of(str(path), out_dir=tmp_path)  # a reader may have run it in its own folder
    rows = {run.row: run for run in plan.runs.values()}  # seeds of a row differ in names only
    monkeypatch.setenv("WORLD_SIZE", str(plan.cfg.processes))
    assert plan.problems == [] and problems(TRAIN, map(arguments, rows.values())) == []
    assert problems(FINETUNE, [[*its.args, "--out_dir=nowhere"] for its in plan.tasks.values()]) == []
