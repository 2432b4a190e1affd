"""The doctor and the script for a GPU."""

import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from functools import partial
from pathlib import Path

import pytest
from helpers import ROOT

import configurator
from eval.bench import doctor


@pytest.mark.slow
def test_attention_is_measured():
    shape = "--head_dims=64 --tokens=128 --groups=3 --lengths=40 --documents=0,12 --repeats=1".split()
    command = [sys.executable, "docs/results/speed/attention.py", *shape, "--only=reference,flash,cudnn"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    line = r"^T 40, D 64, group 3, \w+, documents (0|12), \w+   reference \S+ \(1.00\)(.*)$"
    rows = re.findall(line, text, re.M)
    assert [("flash" in rest) for _, rest in rows] == [documents == "0" for documents, _ in rows] and len(rows) == 8
    assert "left out: cudnn" in text and re.search(r"matrix product [0-9.e-]+ TFLOP/s", text)


def test_doctor_says_what_fails(capsys, monkeypatch):
    """How it finds what the kernels compute is in test_runtime.py."""
    monkeypatch.setattr(doctor, "fused_attention_fails", lambda *args: "")
    doctor.kernels([32], None, None)
    monkeypatch.setattr(doctor, "fused_attention_fails", lambda *args: "it raises RuntimeError")
    with pytest.raises(SystemExit):
        doctor.kernels([32], None, None)
    assert "agree" in (text := capsys.readouterr().out) and "head dim 32: FAILED: it raises RuntimeError" in text


@pytest.mark.slow
def test_the_gpu_script_survives_its_caller(tmp_path):
    """It is killed with all that it started in its session, called again for a moment, then until the end. A part that
    had ended does not run again. The settings of the others are right."""
    stub, log, out = (tmp_path / name for name in ("python3", "asked", "out"))
    stub.write_text(Path(__file__).with_name("python.txt").read_text().format(python=sys.executable, log=log))
    stub.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command, options = ["sh", "eval/bench/gpu.sh", out], dict(env=environment, cwd=ROOT, text=True)
    out.mkdir()
    (out / "step_1b.done").touch()
    ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)  # as a shell does in the background
    process = subprocess.Popen(command, **options, start_new_session=True, preexec_fn=ignore)
    deadline = time.monotonic() + 60
    while not log.exists() or len(log.read_text().splitlines()) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    text = subprocess.run([*command, "1"], **options, capture_output=True).stdout
    assert "not done yet" in text and "facts: exit 0" in text and "kernels: exit 1" in text
    done = subprocess.run([*command, "60"], **options, capture_output=True)
    assert "not done yet" not in done.stdout and not done.stderr and done.returncode == 0
    asked = log.read_text().splitlines()
    assert len(asked) == len(set(asked)) == 15 and len([*out.glob("*.done")]) == 17
    with tarfile.open(out / "results.tar.gz") as pack:
        assert {*pack.getnames()} >= {"summary", *(f"./{n}.txt" for n in ("parts", "facts", "step--attention=sdpa"))}
    scripts = {"eval.bench.doctor": "eval/bench/doctor.py", "tests/test_gpu.py": ""}
    for command in asked:
        script, *args = command.removeprefix("-m pytest ").removeprefix("-m ").split()
        if script := scripts.get(script, script):
            configurator.load(ROOT / script, args)
