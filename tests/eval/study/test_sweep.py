"""eval/sweep.py: every job once, whatever interrupts it; a failed one stops nothing."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import ROOT
from test_finetune import write_ir, write_qa, write_sc, write_tc

import configurator
from eval.study import sweep


def settings(*words):
    return configurator.load(sweep.__file__, list(words), sweep.check)


def command(*words):
    return [sys.executable, str(ROOT / "eval/sweep.py"), *words]


@pytest.fixture(scope="module")
def words(encoder, tmp_path_factory):
    """The words of a sweep over two checkpoints and four miniature data sets, but for out_dir."""
    folder, rng = tmp_path_factory.mktemp("sweep"), random.Random(0)
    for name, files, write in (
        ("sst2", ("train.tsv", "dev.tsv"), write_sc),
        ("wnut17", ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"), write_tc),
        ("squad_v1.1", ("train-v1.1.json", "dev-v1.1.json"), write_qa),
    ):
        (folder / name).mkdir()
        for file in files:
            write(folder / name, rng, 64, file)
    for file in (folder / "sst2").iterdir():
        rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
        file.write_text("sentence\tlabel\n" + "".join(f"{text}\t{int(y == 'True')}\n" for text, y in rows))
    for file in (folder / "wnut17").iterdir():
        file.write_text(file.read_text().replace(" ", "\t"))
    write_ir(folder, rng, 100, "scifact_beir")
    shutil.copytree(encoder.parent, folder / "other")
    return [f"--checkpoints={encoder},{folder}/other", "--tasks=sst2,wnut17,squad,scifact", "--lrs=1e-3,3e-3", "--seeds=1,2",
            f"--finetune=--tasks_dir={folder} --max_steps=2 --batch_size=8 --dtype=float32"]  # fmt: skip


def results(folder):
    return {p.relative_to(folder).parent: p.read_bytes() for p in Path(folder).rglob("result.json")}


def test_a_sweep_killed_in_the_middle_and_resumed_gives_the_same_report(words, tmp_path):
    whole = subprocess.run(command(*words, f"--out_dir={tmp_path}/a/r"), capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    assert len(results(tmp_path / "a/r")) == 32 and not list(tmp_path.rglob("error.txt"))

    for kill in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen(command(*words, f"--out_dir={tmp_path}/b/r"), stderr=subprocess.DEVNULL)
        before = len(results(tmp_path / "b/r"))
        while len(results(tmp_path / "b/r")) < before + 5:
            time.sleep(0.05)
            assert process.poll() is None
        process.send_signal(kill)
        process.wait()
    done = results(tmp_path / "b/r")
    assert 10 <= len(done) < 32 and not list(tmp_path.rglob("error.txt"))  # a job that was ended has not failed
    stamps = {job: (tmp_path / "b/r" / job / "result.json").stat().st_mtime_ns for job in done}
    rest = subprocess.run(command(*words, f"--out_dir={tmp_path}/b/r"), capture_output=True, text=True)
    assert rest.returncode == 0, rest.stderr
    assert results(tmp_path / "b/r") == results(tmp_path / "a/r")
    assert not list(tmp_path.rglob("output.txt"))
    for job, stamp in stamps.items():
        assert (tmp_path / "b/r" / job / "result.json").stat().st_mtime_ns == stamp  # what was done was not repeated
    assert not list(tmp_path.rglob("error.txt"))

    pages = []
    for side in "ab":  # the report's text does not name the folder when it runs inside
        done = subprocess.run([sys.executable, str(ROOT / "eval/report.py"), "r"], cwd=tmp_path / side, capture_output=True)
        assert done.returncode == 0, done.stderr
        pages.append((tmp_path / side / "r/report.md").read_bytes())
    assert pages[0] == pages[1]


def test_a_failing_job_is_reported_and_does_not_stop_the_others(words, tmp_path, encoder):
    broken = tmp_path / "broken/ckpt-7.pt"
    broken.parent.mkdir()
    data = bytearray(encoder.read_bytes())
    data[len(data) // 2] ^= 1
    broken.write_bytes(data)
    args = [*words, f"--checkpoints={broken},{encoder}", "--tasks=sst2", "--lrs=1e-3", f"--out_dir={tmp_path}/r"]
    done = subprocess.run(command(*args), capture_output=True, text=True)
    assert done.returncode == 1 and "2 of 4 jobs failed" in done.stderr
    folder = tmp_path / "r/broken-7/sst2/lr-0.001_seed-1"
    assert "damaged" in (folder / "error.txt").read_text() and "damaged" in done.stdout + done.stderr
    assert len(results(tmp_path / "r")) == 2 and not (folder / "result.json").exists()

    shutil.copy(encoder, broken)  # mended: only what failed is tried again
    done = subprocess.run(command(*args), capture_output=True, text=True)
    assert done.returncode == 0 and "4 jobs, 2 of them done before" in done.stdout, done.stderr
    assert len(results(tmp_path / "r")) == 4 and not (folder / "error.txt").exists()


def test_a_job_that_another_sweep_runs_is_left_to_it(words, tmp_path, encoder):
    import fcntl

    args = [*words, f"--checkpoints={encoder}", "--tasks=sst2", "--lrs=1e-3", f"--out_dir={tmp_path}/r"]
    folder = tmp_path / "r/tiny-650/sst2/lr-0.001_seed-1"
    folder.mkdir(parents=True)
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    done = subprocess.run(command(*args), capture_output=True, text=True)
    os.close(held)
    assert done.returncode == 0 and "1 jobs were being run by another sweep" in done.stdout
    assert len(results(tmp_path / "r")) == 1 and not (folder / "result.json").exists()


def test_parts_are_the_grid_and_its_baselines_are_computed_once(words):
    jobs = list(sweep.grid(settings(*words)))
    assert len({job.folder for job in jobs}) == len(jobs) == 32
    with_baselines = [job for job in jobs if "--baseline=True" in job.words]
    assert sorted(job.folder.parent.name for job in with_baselines) == ["scifact", "squad", "sst2", "wnut17"]
    assert {job.words[-3] for job in jobs[:16]} == {"--seed=1"}  # a whole table of one seed comes first
    for part in range(4):  # and no part has all of a slow task
        assert len({job.folder.parent.name for job in jobs[part::4]}) >= 3


def test_fifteen_thousand_jobs_are_planned_in_seconds(tmp_path):
    for i in range(50):
        (tmp_path / f"m{i}").mkdir()
        (tmp_path / f"m{i}/ckpt-1.pt").touch()
    began = time.perf_counter()
    s = settings(f"--checkpoints={','.join(str(tmp_path / f'm{i}') for i in range(50))}", f"--out_dir={tmp_path}/r",
                 "--tasks=sst2,qqp,mnli,conll2003,ontonotes,uner,squad,squad_v2,record,msmarco")  # fmt: skip
    jobs = list(sweep.grid(s))
    assert sum(not (job.folder / "result.json").exists() for job in jobs) == 15_000
    assert time.perf_counter() - began < 4
    assert max(len({job.folder.parts[i] for job in jobs}) for i in range(len(jobs[0].folder.parts))) <= 50


WRONG = {
    "--lrs=": "lrs: give at least one",
    "--seeds=1,2,1": "seeds: 1 is given twice",
    "--checkpoints=nowhere": "nowhere is neither a checkpoint nor a folder with one",
    "--tasks=sst3": "sst3",
    "--part=0/4": "part=0/4: must be I/N",
    "--part=x": "part=x: must be I/N",
    "--jobs=-1": "jobs=-1: must be at least 0",
}


@pytest.mark.parametrize("word", WRONG)
def test_wrong_settings_start_nothing(words, word, capsys):
    with pytest.raises(SystemExit):
        settings(*words, word)
    assert WRONG[word] in capsys.readouterr().err


def test_checkpoints_of_one_name_are_refused(encoder, tmp_path, capsys):
    shutil.copytree(encoder.parent, tmp_path / "tiny")
    with pytest.raises(SystemExit):
        settings(f"--checkpoints={encoder},{tmp_path}/tiny")
    assert "would both be called tiny-650" in capsys.readouterr().err
