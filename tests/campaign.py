"""Fault campaign: disturb runs in every way we know, and look whether anything is lost.

    python tests/campaign.py --minutes=30
    python tests/campaign.py --case="two writers 17"      # one case again, with all that its processes print

A case works on a tiny pretraining run, preparation or fine-tuning, in a folder of its own. It survives if the same
command, started again, ends with what an undisturbed process gives, bit for bit: weights, optimizer state, metrics,
prepared data, scores. A process that a fault stops must say so without a traceback, and with an exit code other than 0.
Case N of a class is always the same, but for the timing of signals.
"""

import argparse
import errno
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import checkpoint  # noqa: E402
from helpers import TINY, WORDS, flip_bit, metrics, on_changes, run_script, server  # noqa: E402

STEPS = 12
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT]
NEVER = 10**9
TRAIN = f"--max_steps={STEPS} --switch_step=5 --eval_interval=6 --checkpoint_interval=3 --d_model=16 --resume=True"
TUNE = "--max_steps=3 --batch_size=8 --eval_interval=2 --save_model=True --baseline=False --dtype=float32 --family=sc"
TABLES = "--train={}/table.csv --validation={}/table.csv --test={}/table.csv"
# Commands, with {} for a case's folder, and the folder or file of what they leave. set_up adds `fresh`, the folder with
# which a command begins, and `begun`, one in which it has been interrupted (a fine-tuning has none).
WORK = [
    SimpleNamespace(script=command.split()[0], command=command)
    for command in (
        f"train.py {' '.join(TINY)} {TRAIN} --data={{}}/data --out_dir={{}}/out",
        "data.prepare --val_fraction=0.2 --shard_bytes=9000 --source={}/texts --out={}/out",
        f"finetune.py {TUNE} {TABLES} --init_from={{}}/ckpt-{STEPS}.pt --out_dir={{}}/out",
    )
]


class Lost(Exception):
    """Something was lost, or a process did not say what stopped it."""


def child(script, args, output, folder, at, size, fault):
    """Run a script with a fault: "kill", or an errno with which all changes of the disk then fail.

    at: the number of the change from which on that happens. size: a write beyond so many bytes of a file fails, too.
    """
    counter = os.open(f"{output}.changes", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def change(number, path):
        os.pwrite(counter, str(number).encode(), 0)
        if number >= at and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if number >= at:
            raise OSError(fault, os.strerror(fault), path)

    on_changes(folder, change)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if fault == "kill" else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    run_script(script, args, {}, output, ROOT)


def result_of(work, out):
    """Return what a command leaves that an undisturbed one gives, too: {name: content}."""
    if work.script == "data.prepare":
        return {path.name: path.read_bytes() for path in out.iterdir()}
    if work.script == "finetune.py":
        scores = json.loads((out / "result.json").read_text())["metrics"]
        weights = torch.load(out / "model.pt", weights_only=True)["model"]
        return {"result.json": scores, "metrics.jsonl": metrics(out), "model.pt": weights}
    state = torch.load(checkpoint.path_of(out, STEPS), weights_only=True)
    return {"metrics.jsonl": metrics(out), "weights": state["model"], "optimizer": state["optimizer"]}


def same(a, b):
    """Whether two results are equal, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b if not isinstance(a, (list, tuple)) else len(a) == len(b) and all(map(same, a, b))


class Case:
    """A folder in which processes of `work` are disturbed. It begins as a copy of the folder `template`."""

    def __init__(self, work, template, verbose=False):
        self.work, self.template, self.verbose = work, template, verbose
        self.folder = template.parent / "case" / "files"
        shutil.rmtree(self.folder.parent, ignore_errors=True)
        shutil.copytree(template, self.folder)

    def start(self, at=NEVER, size=-1, fault="kill"):
        """Start the command of the work with a fault: see `child`. Returns the process."""
        output = Path(tempfile.mkstemp(dir=self.folder.parent)[1])
        script, *args = self.work.command.replace("{}", str(self.folder)).split()
        process = server.Process(target=child, args=(script, args, output, self.folder, at, size, fault))
        process.start()
        process.output = output
        return process

    def wait(self, process, names="."):
        """Check how a process ends, and return what it printed. names: a pattern for what it must name if it stops."""
        process.join(120)
        code, text = process.exitcode, process.output.read_text(errors="replace")
        if self.verbose:
            print(f"--- exit code {code}\n{text}")
        if code is None:
            process.kill()
        if code is None or code < 0 or "Traceback" in text or (code and not re.search(names, text)):
            raise Lost(f"exit code {code}: {' '.join(text.split())[-300:]}")
        return text

    def finish(self):
        """Run the command without a fault, and compare what it leaves."""
        self.wait(self.start())
        self.compare()

    def compare(self, may_differ=""):
        """Raise Lost unless the result is that of an undisturbed process. may_differ: a file's name."""
        try:
            result = result_of(self.work, self.folder / "out")
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise Lost(f"no result ({error!r})") from None
        for name in (self.work.expected.keys() | result.keys()) - {may_differ}:
            if not same(result.get(name), self.work.expected.get(name)):
                raise Lost(f"{name} is not that of an undisturbed process")


# --- The classes. Each takes a case, its number and a random.Random, and raises Lost ---


def signals(case, number, rng):
    """Up to three starts, each with one or two signals at random times."""
    for _ in range(rng.randint(1, 3)):
        process = case.start()
        for _ in range(rng.randint(1, 2)):
            process.join(rng.uniform(0, case.work.seconds))
            if process.is_alive():
                os.kill(process.pid, rng.choice(SIGNALS))
        process.join(120)
    case.finish()


def kills(case, number, rng):
    """A kill at each change of the disk in turn, or inside a write; half of the time another one in the next start."""
    inside = dict(size=int(case.work.largest ** rng.random()))
    case.start(**inside if number % 2 else dict(at=number // 2 % case.work.changes + 1)).join(120)
    if rng.random() < 0.5:
        case.start(at=rng.randint(1, case.work.changes)).join(120)
    case.finish()


def failing_disk(case, number, rng):
    """From some change on the disk is read-only or fails, or it has no place for a larger file."""
    fault = rng.choice([errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO])
    size, at = rng.randint(4000, case.work.largest), rng.choice([1, rng.randint(1, case.work.changes)])
    case.wait(case.start(fault=fault, **dict(size=size) if fault == errno.EFBIG else dict(at=at)))
    case.finish()


def two_writers(case, number, rng):
    """Two processes at nearly the same time, one perhaps killed."""
    first = case.start()
    time.sleep(rng.choice([0, rng.uniform(0, case.work.seconds)]))
    second = case.start()
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0, case.work.seconds))
        first.kill()
        first.join(120)
    else:
        case.wait(first)
    case.wait(second)
    case.finish()


ODD = [
    b"", b"{", b"[]\n", b"null\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n",
    b'{"step": 1e999, "x": ' + b"9" * 5000 + b"}\n", b'{"model_type": "llama"}\n',
    b'{"step": 1, "phase": [], "loss": "x", "val_clm_loss": null, "val_mlm_loss": {}}\n',
    b'{"settings": 3, "model": [], "metrics": {"test": "x"}, "task": {}, "steps": -1, "lr": "high"}\n',
    os.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: None,
]  # fmt: skip


def damaged_files(case, number, rng):
    """A bit that flips without the file's time of change, or something else in its place.

    The command must notice that, or the damage must be harmless.
    """
    files = sorted(path for path in case.folder.rglob("*") if path.is_file() and path.suffix not in (".txt", ".csv"))
    files = list({re.sub(r"\d+", "", str(path)): path for path in files}.values())  # one of each kind
    path = files[number // 2 % len(files)]
    if number % 2 and path.stat().st_size:
        flip_bit(path, rng.randrange(path.stat().st_size), rng.randrange(8))
    else:
        content = path.read_bytes()
        odd = rng.choice([*ODD, rng.randbytes(999), content[: len(content) // 2]])
        path.unlink()
        odd(path) if callable(odd) else path.write_bytes(odd)
    process = case.start()
    text = case.wait(process, names=f"{path.name}|{path.parent}\\b")
    if process.exitcode == 0:
        return case.compare(may_differ=path.name if path.name in text else "")
    # Nothing was lost: with the file as it was, and without the checkpoints that were made of it, the run goes on.
    for made in [path, *case.folder.rglob("ckpt-*.pt")]:
        if made == path or not (case.template / made.relative_to(case.folder)).exists():
            shutil.rmtree(made) if made.is_dir() and not made.is_symlink() else made.unlink(missing_ok=True)
    shutil.copy2(case.template / path.relative_to(case.folder), path)
    case.finish()


KINDS = signals, kills, failing_disk, two_writers, damaged_files
CLASSES = {kind.__name__.replace("_", " "): kind for kind in KINDS}


# --- The campaign ---


def undisturbed(work):
    """Run a work without faults, and return its folder. Sets what a case needs to know about it."""
    case, started = Case(work, work.fresh), time.monotonic()
    process = case.start()
    case.wait(process)
    work.seconds, work.expected = time.monotonic() - started, result_of(work, case.folder / "out")
    work.changes = int(Path(f"{process.output}.changes").read_text())
    work.largest = max(path.stat().st_size for path in case.folder.rglob("*") if path.is_file())
    return case.folder


def set_up(world):
    """Make the input of each work, and run each without faults."""
    rng, (train, prepare, tune) = random.Random(0), WORK
    for work in WORK:
        work.fresh = work.begun = world / work.script
        work.fresh.mkdir()
    (prepare.fresh / "texts").mkdir()
    for n in range(6):
        documents = [" ".join(rng.choices(WORDS, k=rng.randint(5, 60))) for _ in range(50)]
        (prepare.fresh / "texts" / f"{n}.txt").write_text("\n\n\n".join(documents))
    rows = [f"{' '.join(rng.choices(WORDS, k=9))},{rng.choice('ab')}\n" for _ in range(40)]
    (tune.fresh / "table.csv").write_text("text,label\n" + "".join(rows))
    shutil.copytree(undisturbed(prepare) / "out", train.fresh / "data")
    case = Case(prepare, prepare.fresh)
    case.start(at=int(0.6 * prepare.changes)).join()
    prepare.begun = case.folder.rename(world / "prepare-begun")
    train.begun = undisturbed(train).rename(world / "train-begun")
    shutil.copy(checkpoint.path_of(train.begun / "out", STEPS), tune.fresh)
    for step in (9, 12):
        checkpoint.path_of(train.begun / "out", step).unlink()
    undisturbed(tune)


def try_case(name, number, verbose=False):
    """Run a case. Return what was lost, or an empty string."""
    disturb = CLASSES[name]
    work = WORK[number % len(WORK)]
    try:
        case = Case(work, work.begun if disturb == damaged_files else work.fresh, verbose)
        disturb(case, number // len(WORK), random.Random(f"{name} {number}"))
    except Lost as lost:
        return f"{work.script}: {lost}"
    return ""


def main():
    parser = argparse.ArgumentParser(description="Disturb runs in every way, and look whether anything is lost.")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--case", help="one case, with all that its processes print")
    args = parser.parse_args()
    name, _, number = (args.case or "signals 0").rpartition(" ")
    if name not in CLASSES or not number.isdecimal():
        parser.error(f"--case={args.case}: give a name and a number. Names: {'; '.join(CLASSES)}")
    os.chdir(ROOT)  # the server of tests/helpers.py imports from here
    tried, losses = dict.fromkeys(CLASSES, 0), dict.fromkeys(CLASSES, 0)
    with tempfile.TemporaryDirectory() as world:
        set_up(Path(world))
        if args.case:
            sys.exit(try_case(name, int(number), verbose=True) or 0)
        end, cases = time.monotonic() + 60 * args.minutes, ((n, name) for n in itertools.count() for name in CLASSES)
        while time.monotonic() < end:
            number, name = next(cases)
            if lost := try_case(name, number):
                print(f'LOST {lost}\n     python tests/campaign.py --case="{name} {number}"', flush=True)
            tried[name] += 1
            losses[name] += bool(lost)
    print("| faults | tried | survived | lost |\n|---|---|---|---|")
    for name in CLASSES:
        print(f"| {name} | {tried[name]:,} | {tried[name] - losses[name]:,} | {losses[name]} |")
    print(f"changes: {', '.join(f'{work.script} {work.changes}' for work in WORK)}; {time.strftime('%Y-%m-%d')}")
    sys.exit(any(losses.values()))


if __name__ == "__main__":
    main()
