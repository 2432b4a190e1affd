"""python -m eval.study sweep: every job once, whatever interrupts it; a failed one stops nothing."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from helpers import Run

import configurator
from data.files import is_locked, lock_folder
from eval.study import sweep


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


def contents(folder):
    return {job: path.read_text().replace(str(folder), "") for job, path in results(folder).items()}


@pytest.mark.slow
def test_a_sweep_killed_in_the_middle_and_resumed_gives_the_same_results(args, tmp_path, run):
    code, output = run(["sweep", *args, f"--out_dir={tmp_path}/whole"], "eval.study")
    assert code == 0, output
    assert len(results(tmp_path / "whole")) == 16 and not list(tmp_path.rglob("error.txt"))
    parts = tmp_path / "parts"
    for kill in (signal.SIGKILL, signal.SIGTERM):
        sweeping = Run(["sweep", *args, f"--out_dir={parts}"], tmp_path / f"output-{kill}", "eval.study")
        before = len(results(parts))
        while len(results(parts)) < before + 3:
            time.sleep(0.05)
            assert sweeping.process.is_alive(), sweeping.output.read_text()
        os.kill(sweeping.process.pid, kill)
        assert sweeping.wait()[0] == (143 if kill == signal.SIGTERM else -9)
    for _ in range(100):  # SIGTERM ended its jobs, which hold the locks
        if not any(map(is_locked, parts.glob("*/*/*"))):
            break
        time.sleep(0.05)
    else:
        pytest.fail("a job outlived its sweep")
    stamps = {path: path.stat().st_mtime_ns for path in results(parts).values()}
    assert 6 <= len(stamps) < 16 and not list(parts.rglob("error.txt"))  # a job that was ended has not failed
    code, output = run(["sweep", *args, f"--out_dir={parts}"], "eval.study")
    assert code == 0, output
    assert contents(parts) == contents(tmp_path / "whole")
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps  # what was done was not repeated
    assert not [*parts.rglob("error.txt")]


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


def test_parts_are_the_grid_and_its_baselines_are_computed_once(args):
    jobs = list(sweep.plan_jobs(settings(*args)))
    assert len({job.folder for job in jobs}) == len(jobs) == 16
    with_baselines = [job for job in jobs if "--baseline=True" in job.command]
    assert sorted(job.folder.parent.name for job in with_baselines) == ["sst2", "wnut17"]
    assert all("--seed=1" in job.command for job in jobs[:8])  # a whole table of one seed comes first
    for part in range(2):  # and no part has all of a slow task
        assert len({job.folder.parent.name for job in jobs[part::2]}) == 2


def test_fifteen_thousand_jobs_are_planned_in_seconds(tmp_path):
    for i in range(50):
        (tmp_path / f"m{i}").mkdir()
        (tmp_path / f"m{i}/ckpt-1.pt").touch()
    began = time.process_time()
    cfg = settings(
        f"--checkpoints={','.join(str(tmp_path / f'm{i}') for i in range(50))}",
        f"--out_dir={tmp_path}/r",
        "--tasks=sst2,qqp,mnli,conll2003,ontonotes,uner,squad,squad_v2,record,msmarco",
    )
    assert sum(not job.result.exists() for job in sweep.plan_jobs(cfg)) == 15_000
    assert time.process_time() - began < 4


def test_wrong_settings_are_told_together(args, encoder, tmp_path, capsys):
    shutil.copytree(encoder.parent, tmp_path / "tiny")
    wrong = ["--lrs=", "--seeds=1,2,1", f"--checkpoints=nowhere,{encoder},{tmp_path}/tiny", "--tasks=sst3", "--jobs=-1"]
    with pytest.raises(SystemExit):
        settings(*args, *wrong, "--part=0/4")
    told = capsys.readouterr().err
    sentences = """lrs: give at least one
        seeds: 1 is given twice
        nowhere is neither a checkpoint nor a folder
        would both be called tiny-650
        no data set is called sst3
        part=0/4: must be I/N
        jobs=-1: must be at least 0"""
    assert all(sentence.strip() in told for sentence in sentences.splitlines()), told
    with pytest.raises(SystemExit):
        settings(*args, "--part=x")
