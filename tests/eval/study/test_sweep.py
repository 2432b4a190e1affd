"""python -m eval.study sweep: every job once, whatever interrupts it; a failed one stops nothing."""

import shutil
import time
from pathlib import Path

import pytest
from encoder_helpers import write_encoder
from helpers import Run

import configurator
from data.files import lock_folder
from eval.study import sweep
from eval.study.jobs import Job, run_all, sentences_of
from eval.tasks.registry import GLUE


def settings(*args):
    return configurator.load(sweep.__file__, args, sweep.check)


@pytest.fixture(scope="module")
def args(encoder, tasks_dir, tmp_path_factory):
    """The arguments of a sweep over two checkpoints and two miniature data sets, but for out_dir."""
    folder = tmp_path_factory.mktemp("sweep")
    shutil.copytree(encoder.parent, folder / "other")
    return [
        f"--checkpoints={encoder},{folder}/other",
        "--tasks=sst2,wnut17",
        "--lrs=1e-3,3e-3",
        "--seeds=1,2",
        f"--finetune=--tasks_dir={tasks_dir} --max_steps=2 --batch_size=8 --dtype=float32",
    ]


def results(folder):
    return {path.relative_to(folder).parent: path for path in Path(folder).rglob("result.json")}


def test_a_failing_job_and_one_that_runs_elsewhere_stop_nothing(args, tmp_path, encoder, run):
    broken = tmp_path / "broken/ckpt-7.pt"
    broken.parent.mkdir()
    data = bytearray(encoder.read_bytes())
    data[len(data) // 2] ^= 1
    broken.write_bytes(data)
    args = [*args, f"--checkpoints={broken},{encoder}", "--tasks=sst2", "--lrs=1e-3", f"--out_dir={tmp_path}/r"]
    elsewhere, failed = (tmp_path / f"r/{name}/sst2/lr-0.001_seed-1" for name in ("tiny-650", "broken-7"))
    held = lock_folder(elsewhere)
    sweeping = Run(["sweep", *args], tmp_path / "output", "eval.study")
    while not (failed / "error.txt").exists() or not results(tmp_path / "r"):
        assert sweeping.process.is_alive(), sweeping.output.read_text()
        time.sleep(0.05)
    assert "lr-0.001_seed-1" not in [job.name for job in results(tmp_path / "r")]
    held.close()  # the other process ends without a result
    code, output = sweeping.wait()
    assert code == 1 and "2 of 4 jobs failed" in output
    assert "damaged" in (failed / "error.txt").read_text() and "damaged" in output
    assert {job.parts[0] for job in results(tmp_path / "r")} == {"tiny-650"} and len(results(tmp_path / "r")) == 2

    shutil.copy(encoder, broken)  # mended: what has no result yet is tried again
    code, output = run(["sweep", *args], "eval.study")
    assert code == 0 and "4 jobs, 2 of them done before" in output, output
    assert len(results(tmp_path / "r")) == 4 and not (failed / "error.txt").exists()


def test_progress_counts_a_job_when_it_ends(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("import sys, time; time.sleep(0.3); open(sys.argv[1], 'w').close()")
    folders = [tmp_path / str(i) for i in range(3)]
    jobs = [Job(folder, [script, folder / "result.json"], folder / "result.json") for folder in folders]
    assert run_all(jobs, lambda job: job, [{}], "") == ([], [])
    shown = capsys.readouterr().err
    assert "1/3" in shown and "2/3" in shown and "3/3" in shown, shown


def test_parts_are_the_grid_and_its_baselines_are_computed_once(args):
    jobs = list(sweep.plan_jobs(settings(*args)))
    assert len({job.folder for job in jobs}) == len(jobs) == 16
    with_baselines = [job for job in jobs if "--baseline=True" in job.command]
    assert sorted(job.folder.parent.name for job in with_baselines) == ["sst2", "wnut17"]
    assert all("--seed=1" in job.command for job in jobs[:8])  # a whole table of one seed comes first
    for part in range(2):  # and no part has all of a slow task
        assert len({job.folder.parent.name for job in jobs[part::2]}) == 2
    cfg = settings(*args)
    cfg |= {"checkpoints": ("hf:an-organization/a-model",), "tasks": ("wnut17", "glue")}
    jobs = sweep.plan_jobs(cfg)
    assert {job.folder.parts[2:4] for job in jobs} == {("a-model", task) for task in ("wnut17", *GLUE)}
    assert all("--init_from=hf:an-organization/a-model" in job.command for job in jobs)


def test_task_files_of_one_family_live_side_by_side(args, encoder, tasks_dir, tmp_path, run):
    for name in ("films", "other"):
        text = 'family = "sc"\ntrain = "sst2/train.tsv"\ntest = "sst2/dev.tsv"\ncolumns = "sentence"\n'
        (tasks_dir / f"{name}.py").write_text(text + 'form = "Film: {}"\n' * (name == "films"))
    args = [*args, f"--checkpoints={encoder}", f"--tasks={tasks_dir}/films.py,{tasks_dir}/other.py", "--lrs=1e-3"]
    args.append("--seeds=1")
    code, output = run(["sweep", *args, f"--out_dir={tmp_path}"], "eval.study")
    assert code == 0, output
    assert {job.parts[1:] for job in results(tmp_path)} == {("films", "lr-0.001_seed-1"), ("other", "lr-0.001_seed-1")}
    code, output = run(["report", str(tmp_path)], "eval.study")
    assert code == 0 and "films (accuracy)" in output and "sc mean" in output, output
    (tmp_path / "films.py").write_text("")
    code, output = run(["sweep", f"--tasks={tasks_dir}/films.py,{tmp_path}/films.py"], "eval.study")
    assert code == 2 and "tasks: two are called films" in output and "family='': must be one of" in output


def test_wrong_settings_are_told_together(args, encoder, tmp_path, capsys):
    shutil.copytree(encoder.parent, tmp_path / "tiny")
    wrong = ["--lrs=", "--seeds=1,2,1", f"--checkpoints=nowhere,{encoder},{tmp_path}/tiny", "--tasks=sst3", "--jobs=-1"]
    with pytest.raises(SystemExit):
        settings(*args, *wrong, "--part=0/4")
    told = capsys.readouterr().err
    sentences = """lrs: give at least one
        seeds: 1 is given twice
        nowhere is neither a checkpoint nor a folder
        two would be called tiny-650
        tasks: task=sst3: no such task
        part=0/4: must be I/N
        jobs=-1: must be at least 0"""
    assert all(sentence.strip() in told for sentence in sentences.splitlines()), told
    with pytest.raises(SystemExit):
        settings(*args, "--part=x")


def test_what_finetune_would_refuse_is_told_before_any_job(args, encoder, tmp_path, run):
    pytest.importorskip("transformers")
    write_encoder(tmp_path / "bert", "bert")
    args = [*args, f"--checkpoints={encoder},{tmp_path}/bert", f"--out_dir={tmp_path}/r", "--jobs=4"]
    code, output = run(["sweep", *args, f"--finetune=--tasks_dir={tmp_path} --max_stepz=1 --causal=True"], "eval.study")
    assert code == 1 and not (tmp_path / "r").exists()
    _, output = output.split("nothing was started:\n")
    for line in (
        "\nsst2: missing:\n  ",
        "\nwnut17: missing:\n  ",
        " and 1 more: init_from: ",
        " and 1 more: --max_stepz=1: ",
    ):
        assert f"\n{output}".count(line) == 1, output
    assert "bert: causal=True" in output


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("", ["no output"]),
        (
            "  1. not this\nx: 2 problems in the settings; nothing was started.\n  1. a=1\n  2. b=2\nx --help lists\n",
            ["a=1", "b=2"],
        ),
        (
            "sst2\nsst2: missing:\n  sst2/dev.tsv\n  Get them from x\n  Or pip install datasets\n",
            ["sst2: missing: sst2/dev.tsv"],
        ),
        ("9 %|\r10 %|\nTraceback (most recent call last):\n  File x\n    y\nKeyError: 1\n\nhint\n", ["KeyError: 1"]),
        ("1 %\nthe loss is nan by step 1\n\n", ["the loss is nan by step 1"]),
    ],
)
def test_what_a_failed_job_says_is_wrong(text, sentences):
    assert sentences_of(text) == sentences
