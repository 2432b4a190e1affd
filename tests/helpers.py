"""What the tests share: a tiny model's settings, and a fast way to start the project's commands.

A process of its own would spend seconds on importing torch. So commands are forked off a server process that has
imported the libraries already. Each is a real process, which can be killed with SIGKILL.
"""

import gc
import itertools
import multiprocessing
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import checkpoint
import model_checks
from data.objective import add_step
from eval import sample
from run import read_metrics

ROOT = Path(__file__).resolve().parents[1]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models here are too small for two threads
os.fsync = lambda descriptor: None  # it takes milliseconds, and no test cuts the power
server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(
    "pytest torch._dynamo torch.distributed matplotlib.pyplot run eval.sample eval.plot data.prepare eval.tasks.result "
    "eval.study.run eval.study.report eval.study.figures tests.helpers".split()
)
if not torch.cuda.device_count():  # what each run would find again; on a GPU, no backward pass may precede a fork
    model_checks.loss_is_edited(True), model_checks.loss_is_edited(False), model_checks.attention_is_edited(32)
gc.freeze()  # or each child would look through all that is imported, and copy it

# A model and a schedule that take a second.
TINY = (
    "--n_layer=2 --n_head=4 --n_kv_head=2 --d_model=32 --d_ff=48 --seq_len=32 --dtype=float32 "
    "--global_batch_tokens=512 --micro_batch=8 --max_steps=20 --switch_step=8 --warmup_steps=3 --decay_steps=5 "
    "--eval_interval=10 --eval_windows=9 --checkpoint_interval=5 --log_interval=1 --keep_last=10"
).split()

WORDS = "the a of list string file object value method returns is are may must if when not an empty new called".split()
BROKEN = "closed", "a pipe without a reader", "a full disk"
UNUSED = shutil.ignore_patterns("out", "prepared", "tests", "docs", "__pycache__", ".*")  # in a copy of the code


def rows_of(head):
    """Return the rows of the part of tests/cases.txt that begins like this, each a list of cells."""
    _, part = (ROOT / "tests/cases.txt").read_text().split(f"== {head}")
    return [line.split("; ") for line in part.split("\n== ")[0].splitlines()[1:] if line]


def flip_bit(path, byte, bit=0):
    """Flip a bit of a file, whose time of change stays as it was."""
    content, times = bytearray(path.read_bytes()), path.stat()
    content[byte] ^= 1 << bit
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def on_changes(folder, react):
    """Call react(number, path) before each change of the disk below a folder: mkdir, rename, opening to write, ..."""
    numbers = itertools.count(1)

    def audit(name, args):
        changes = name in ("os.rename", "os.mkdir", "os.truncate", "os.remove", "os.rmdir")
        changes |= name == "open" and bool(args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if changes and str(args[0]).startswith(str(folder)):
            react(next(numbers), str(args[0]))

    sys.addaudithook(audit)


def break_output(how):
    """Close standard error, or make standard output and standard error fail. how: one of BROKEN."""
    if how == "closed":  # before Python starts: then there is no such stream
        os.close(2)
        sys.stderr = None
        return
    reader, writer = os.pipe()
    os.close(reader)
    writer = os.open("/dev/full", os.O_WRONLY) if how == "a full disk" else writer
    for descriptor in 1, 2:
        os.dup2(writer, descriptor)


def run_script(script, args, environment, output, folder):
    """In the child: run "train.py", or a module such as "eval.study", in a folder, with its output in a file.

    The path of a script beside another model.py runs with the code there, which takes the place of what is imported.
    FILE_SIZE_LIMIT in the environment, in bytes, makes larger files fail as on a full disk. BROKEN_OUTPUT is one
    of BROKEN. Without SHOW, a run of train.py has no figure and no samples, which take a third of its time.
    """
    if script.endswith("train.py") and "SHOW" not in environment:
        sys.modules["matplotlib.figure"] = None
        sample.FILL = sample.CONTINUE = ()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in what they start in the background
    if limit := environment.pop("FILE_SIZE_LIMIT", None):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit),) * 2)
    os.environ.update(environment)
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in 1, 2:
        os.dup2(file, descriptor)
    if how := environment.get("BROKEN_OUTPUT"):
        break_output(how)
    if encoding := environment.get("PYTHONIOENCODING"):  # which Python reads at its start
        for stream in sys.stdout, sys.stderr:
            stream.reconfigure(encoding=encoding, errors="strict")
    sys.argv = [script, *args]
    code = (ROOT / script).parent
    if (code / "model.py").exists() and code != ROOT:
        own = {path.stem for path in ROOT.iterdir()}
        for name in [name for name in sys.modules if name.partition(".")[0] in own]:
            del sys.modules[name]
        sys.path = [str(code), *(path for path in sys.path if path not in ("", str(ROOT)))]
    if script.endswith(".py"):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    else:
        runpy.run_module(script, run_name="__main__", alter_sys=True)


class Run:
    """One process that runs a script; under torchrun's variables if there is a `RANK`."""

    def __init__(self, args, output, script="train.py", folder=ROOT, **environment):
        self.output = Path(output)
        given = str(script), list(map(str, args)), environment, str(output), str(folder)
        self.process = server.Process(target=run_script, args=given)
        self.process.start()

    def until(self, condition):
        """Wait until a function of no arguments returns something true."""
        while not condition():
            assert self.process.is_alive(), self.output.read_text()
            time.sleep(0.001)

    def wait(self, timeout=240):  # on a GPU the kernels are compiled first
        """(exit code, output); the exit code is negative for a signal."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"still running after {timeout} s: {self.output.read_text()[-2000:]}"
        return self.process.exitcode, self.output.read_text()


def succeed(results):
    """The output of processes, [(exit code, output), ...], that must end with 0."""
    for code, text in results:
        assert code == 0, text
    return "".join(text for _, text in results)


def record(*steps):
    """The record of the phases of steps, each {objective: its windows}."""
    phases = []
    for groups in steps:
        add_step(phases, groups)
    return phases


def metrics(out_dir):
    """The log of a run without its times."""
    return [{**line, "tokens_per_s": None, "seconds": None} for line in read_metrics(out_dir)]


def assert_same_end(a, b, step=20):
    """Bit-identical weights, optimizer state and metrics."""
    x, y = (checkpoint.load(checkpoint.path_of(out, step)) for out in (a, b))
    torch.testing.assert_close(x["model"], y["model"], rtol=0, atol=0)
    assert x["optimizer"].keys() == y["optimizer"].keys()
    for name, ours in x["optimizer"].items():
        theirs = y["optimizer"][name]
        torch.testing.assert_close(ours["state"], theirs["state"], rtol=0, atol=0)
        assert ours["param_groups"] == theirs["param_groups"]
    assert x["phases"] == y["phases"] and metrics(a) == metrics(b)


def assert_same_losses(a, b, rel=1e-5, also=("grad_norm",)):
    """The same metrics to rounding: 1e-5 relative in fp32."""
    for line, same in zip(metrics(a), metrics(b), strict=True):
        assert line.keys() == same.keys() and line["step"] == same["step"]
        for key in line.keys() & {"loss", "val_clm_loss", "val_mlm_loss", "val_mntp_loss", *also}:
            assert line[key] == pytest.approx(same[key], rel=rel), (line["step"], key)


def copy_up_to(step, reference, out):
    """A copy of a run whose checkpoints after a step are gone."""
    shutil.copytree(reference, out)
    for later in checkpoint.steps(out):
        if later > step:
            checkpoint.path_of(out, later).unlink()
    return out


def edited(diff, folder):
    """Copy the code into a new folder, and apply a diff there."""
    copy = shutil.copytree(ROOT, folder, ignore=UNUSED)
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=copy, check=True)
    return copy
