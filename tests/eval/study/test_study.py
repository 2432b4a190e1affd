"""python -m eval.study does what its plan says: killed at any moment it goes on, and a failed job stops nothing."""

import json
import os
import random
import runpy
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import ROOT, TINY, WORDS, Run, flip_bit, metrics, server, succeed

from data.files import is_locked, lock_folder
from eval.study import jobs

ROWS = (("clm", "", "--switch_step=12"), ("split", "clm@6", "--switch_step=6"))


@pytest.fixture
def tasks_dir(tmp_path_factory):
    """A folder with a miniature data set under the name sst2."""
    folder, rng = tmp_path_factory.mktemp("tasks"), random.Random(0)
    (folder / "sst2").mkdir()
    for file in ("train.tsv", "dev.tsv"):
        rows = "".join(f"{' '.join(rng.choices(WORDS, k=8))}\t{rng.randint(0, 1)}\n" for _ in range(64))
        (folder / "sst2" / file).write_text(f"sentence\tlabel\n{rows}")
    return folder


def start(args, folder):
    folder.mkdir(exist_ok=True)
    return Run(args, folder / f"output-{time.time()}", "eval.study", folder)


def finish(args, folder):
    return succeed([start(args, folder).wait(600)])


def results(folder):
    paths = folder.glob("study/results/*/*/*/result.json")
    return {path.parent.relative_to(folder): path.read_text() for path in paths}


def losses(folder):
    return {path.parent.name: metrics(path.parent) for path in folder.glob("study/runs/*/metrics.jsonl")}


@pytest.mark.slow
def test_a_study_killed_at_any_moment_gives_the_same_results(data_dir, tasks_dir, tmp_path, encoder):
    """Of two rows and a checkpoint that was given beside them. Rows may not change."""
    shared = " ".join(arg for arg in TINY if not arg.startswith(("--max_steps", "--switch_step", "--keep_last")))
    args = [f"--train={shared} --data={data_dir} --max_steps=12 --decay_steps=4", f"--runs={ROWS}", "--out_dir=study"]
    args += ["--tasks=sst2 --max_steps=2", "--rates=1e-3", "--finetune_seeds=1", "--jobs=1", f"--checkpoints={encoder}"]
    args.append(f"--finetune=--tasks_dir={tasks_dir} --batch_size=8 --dtype=float32")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finish(args, whole)
    kill, end = signal.SIGKILL, signal.SIGTERM
    kills = [(end, "runs/*/ckpt-*.pt", 1), (kill, "runs/*/ckpt-*.pt", 3), (kill, "results/*/*/*/result.json", 1)]
    for number, pattern, n in kills:
        study = start(args, parts)
        study.until(lambda: len([*parts.glob(f"study/{pattern}")]) >= n)
        os.kill(study.process.pid, number)
        assert study.wait()[0] == (143 if number == end else -9)
        if number == end:  # its runs have ended too; those of a study that was killed go on
            assert not any(is_locked(lock.parent) for lock in parts.rglob("lock"))
    assert not (parts / "study/report").exists()
    output = finish([*args, "--primary=(('clm','tiny-650'),)"], parts)
    assert "clm or tiny-650" in output or "better than" in output, output
    for job, text in results(whole).items():
        assert json.loads(results(parts)[job]) == json.loads(text), job
    assert len(results(parts)) == 3 and losses(parts) == losses(whole) and len(losses(parts)) == 2
    facts = {job.parts[2]: json.loads(text)["checkpoint"] for job, text in results(parts).items()}
    assert [(its["phase"], its["steps"]) for its in facts["split-seed-1"]["phases"]] == [("clm", 6), ("mlm", 6)]
    assert losses(parts)["split-seed-1"][0]["step"] == 6
    # What a lost result takes is made again, and nothing else.
    before = {path: path.stat().st_mtime_ns for path in parts.glob("study/results/*/*/*/result.json")}
    for path in parts.glob("study/runs/*/ckpt-*.pt"):
        path.unlink()
    shutil.rmtree(parts / "study/results/split-seed-1")
    finish(args, parts)
    assert results(parts) == results(whole)
    assert {path.parts[-4] for path, at in before.items() if path.stat().st_mtime_ns != at} == {"split-seed-1"}
    assert {path.parent.name for path in parts.glob("study/runs/*/ckpt-*.pt")} == {"clm-seed-1", "split-seed-1"}
    code, output = start([f"{args[0]} --lr=1e-4", *args[1:]], parts).wait(60)
    assert code == 1 and "lr=0.0001, but train.py was given lr=0.003" in output


def test_a_job_runs_no_code_that_has_changed_since_the_study_began(tmp_path):
    job = jobs.Job("", tmp_path, command=[], result=None)
    process = server.Process(target=jobs.run_job, args=(job, {}, {}))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert (tmp_path / "output.txt").read_text() == "the code has changed since this study began: start it again\n"


def test_a_failing_job_and_one_that_runs_elsewhere_stop_nothing(tmp_path, encoder, tasks_dir, monkeypatch, capsys):
    monkeypatch.setattr(jobs, "start_server", lambda environment: server)  # it has the libraries already
    study, broken = runpy.run_path(str(ROOT / "eval/study/__main__.py"))["study"], tmp_path / "broken/ckpt-7.pt"
    broken.parent.mkdir()
    shutil.copy(encoder, broken)
    flip_bit(broken, byte=encoder.stat().st_size // 2)
    for name in ("films", "other"):  # task files live side by side
        text = 'family = "sc"\ntrain = "sst2/train.tsv"\ntest = "sst2/dev.tsv"\ncolumns = "sentence"\n'
        (tasks_dir / f"{name}.py").write_text(text + 'form = "Film: {}"\n' * (name == "films"))
    args = [f"--checkpoints={broken},{encoder}", f"--out_dir={tmp_path}/r", "--finetune_seeds=1", "--rates=1e-3"]
    args += [f"--tasks={tasks_dir}/films.py,{tasks_dir}/other.py", "--finetune=--max_steps=2 --batch_size=8"]
    elsewhere, failed = (tmp_path / f"r/results/{name}/films/lr-0.001_seed-1" for name in ("tiny-650", "broken-7"))
    deadline = time.monotonic() + 240
    with ThreadPoolExecutor() as pool, lock_folder(elsewhere):  # a process that ends without a result
        sweep = pool.submit(study, args)
        while not ((failed / "error.txt").exists() and [*tmp_path.rglob("result.json")]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not (elsewhere / "result.json").exists()
    assert "2 failed or could not begin" in str(sweep.exception()) and "(accuracy)" in capsys.readouterr().out
    assert "damaged" in jobs.error_of(failed / "error.txt") and "damaged" in str(sweep.exception())
    assert len([*tmp_path.rglob("result.json")]) == 2

    shutil.copy(encoder, broken)  # mended: what has no result yet is tried again
    study(args)
    assert len([*tmp_path.rglob("result.json")]) == 4 and not (failed / "error.txt").exists()
    (tmp_path / "job").symlink_to("nowhere")  # like another user's folder, it cannot be written
    pytest.raises(FileExistsError, jobs.run_all, [jobs.Job("", tmp_path / "job", [], tmp_path / "none")], [{}], "wave")
