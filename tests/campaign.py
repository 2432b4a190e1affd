"""Fault campaign: disturb runs in every way we know, and look whether anything is lost.

    python tests/campaign.py --minutes=30
    python tests/campaign.py --case=17      # one case again

A case works on a tiny pretraining run, preparation or fine-tuning, in a folder of its own. It survives if the same
command, started again, ends with what an undisturbed process gives, bit for bit: weights, optimizer state, metrics,
prepared data, scores. A process that a fault stops must say so without a traceback, and with an exit code other than 0.
Case N is always the same, but for the timing of signals.
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
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import checkpoint  # noqa: E402
from helpers import TINY, WORDS, flip_bit, metrics, on_changes, run_script, server  # noqa: E402

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT]
# The commands, with {} for a case's folder.
TRAIN = (
    f"train.py {' '.join(TINY)} --max_steps=12 --switch_step=5 --eval_interval=6 --checkpoint_interval=3 --d_model=16 "
    "--resume=True --data={}/data --out_dir={}/out"
)
PREPARE = "data.prepare --val_fraction=0.2 --shard_bytes=9000 --source={}/texts --out={}/out"
TUNE = (
    "finetune.py --max_steps=3 --batch_size=8 --eval_interval=2 --save_model=True --dtype=float32 "
    "--family=sc --train={}/table.csv --validation={}/table.csv --test={}/table.csv --init_from={}/ckpt-12.pt "
    "--out_dir={}/out"
)


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


class Work:
    """A command whose processes are disturbed. What it begins with is in the folder `fresh`.

    begun: another such folder, in which the command has been interrupted (a fine-tuning has none).
    """

    def __init__(self, command, fresh):
        """Run the command without faults, and note what the cases need to know about it."""
        self.command, self.name, self.fresh, self.begun = command, command.split()[0], fresh, fresh
        self.begin(fresh)
        started, process = time.monotonic(), self.start()
        self.wait(process)
        self.seconds, self.expected = time.monotonic() - started, self.result()
        self.changes = int(Path(f"{process.output}.changes").read_text())
        self.largest = max(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def begin(self, template):
        """Begin a case in a copy of a folder."""
        self.folder = self.fresh.parent / "case" / "files"
        shutil.rmtree(self.folder.parent, ignore_errors=True)
        shutil.copytree(template, self.folder)

    def start(self, at=10**9, size=-1, fault="kill"):
        """Start the command with a fault: see `child`. Returns the process."""
        output = Path(tempfile.mkstemp(dir=self.folder.parent)[1])
        script, *args = self.command.replace("{}", str(self.folder)).split()
        process = server.Process(target=child, args=(script, args, output, self.folder, at, size, fault))
        process.start()
        process.output = output
        return process

    def wait(self, process, names="."):
        """Check how a process ends, and return what it printed. names: a pattern for what it must name if it stops."""
        process.join(120)
        code, text = process.exitcode, process.output.read_text(errors="replace")
        if code is None:
            process.kill()
        if code is None or code < 0 or "Traceback" in text or (code and not re.search(names, text)):
            raise Lost(f"exit code {code}\n{text}")
        return text

    def result(self):
        """Return what the command leaves that an undisturbed process gives, too: {name: content}."""
        out = self.folder / "out"
        if self.command == PREPARE:
            return {path.name: path.read_bytes() for path in out.iterdir()}
        state = checkpoint.read(out / ("model.pt" if self.command == TUNE else "ckpt-12.pt"))
        weights, optimizer = (checkpoint.checksum(state.get(name)) for name in ("model", "optimizer"))
        scores = json.loads((out / "result.json").read_text())["metrics"] if self.command == TUNE else {}
        return {"metrics.jsonl": metrics(out), "weights": weights, "optimizer": optimizer, "scores": scores}

    def finish(self):
        """Run the command without a fault, and compare what it leaves."""
        self.wait(self.start())
        self.compare()

    def compare(self, may_differ=""):
        """Raise Lost unless the result is that of an undisturbed process. may_differ: a file's name."""
        try:
            result = self.result()
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise Lost(f"no result ({error!r})") from None
        for name in (self.expected.keys() | result.keys()) - {may_differ}:
            if result.get(name) != self.expected.get(name):
                raise Lost(f"{name} is not that of an undisturbed process")


# --- The kinds of faults. Each takes a work, the number of a case and a random.Random, and raises Lost ---


def signals(work, number, rng):
    """Up to three starts, each with one or two signals at random times."""
    for _ in range(rng.randint(1, 3)):
        process = work.start()
        for _ in range(rng.randint(1, 2)):
            process.join(rng.uniform(0, work.seconds))
            if process.is_alive():
                os.kill(process.pid, rng.choice(SIGNALS))
        process.join(120)
    work.finish()


def kills(work, number, rng):
    """A kill at each change of the disk in turn, or inside a write; half of the time another one in the next start."""
    inside = dict(size=int(work.largest ** rng.random()))
    work.start(**inside if number % 2 else dict(at=number // 2 % work.changes + 1)).join(120)
    if rng.random() < 0.5:
        work.start(at=rng.randint(1, work.changes)).join(120)
    work.finish()


def failing_disk(work, number, rng):
    """From some change on the disk is read-only or fails, or it has no place for a larger file."""
    fault = rng.choice([errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO])
    size, at = rng.randint(4000, work.largest), rng.choice([1, rng.randint(1, work.changes)])
    work.wait(work.start(fault=fault, **dict(size=size) if fault == errno.EFBIG else dict(at=at)))
    work.finish()


def two_writers(work, number, rng):
    """Two processes at nearly the same time, one perhaps killed."""
    first = work.start()
    time.sleep(rng.choice([0, rng.uniform(0, work.seconds)]))
    second = work.start()
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0, work.seconds))
        first.kill()
        first.join(120)
    else:
        work.wait(first)
    work.wait(second)
    work.finish()


ODD = [
    b"", b"{", b"[]\n", b"null\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n",
    b'{"step": 1e999, "x": ' + b"9" * 5000 + b"}\n", b'{"model_type": "llama"}\n',
    b'{"step": 1, "phase": [], "loss": "x", "val_clm_loss": null, "val_mlm_loss": {}}\n',
    b'{"settings": 3, "model": [], "metrics": {"test": "x"}, "task": {}, "steps": -1, "lr": "high"}\n',
    os.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: None,
]  # fmt: skip


def damaged_files(work, number, rng):
    """A bit that flips without the file's time of change, or something else in its place. The command must notice that,
    or the damage must be harmless."""
    work.begin(work.begun)
    files = sorted(path for path in work.folder.rglob("*") if path.is_file() and path.suffix not in (".txt", ".csv"))
    files = list({re.sub(r"\d+", "", str(path)): path for path in files}.values())  # one of each kind
    path = files[number // 2 % len(files)]
    if number % 2 and path.stat().st_size:
        flip_bit(path, rng.randrange(path.stat().st_size), rng.randrange(8))
    else:
        content = path.read_bytes()
        odd = rng.choice([*ODD, rng.randbytes(999), content[: len(content) // 2]])
        path.unlink()
        odd(path) if callable(odd) else path.write_bytes(odd)
    process = work.start()
    text = work.wait(process, names=f"{path.name}|{path.parent}\\b")
    if process.exitcode == 0:
        return work.compare(may_differ=path.name if path.name in text else "")
    # Nothing was lost: with the file as it was, and without the checkpoints that were made of it, the run goes on.
    for made in [path, *work.folder.rglob("ckpt-*.pt")]:
        if made == path or not (work.begun / made.relative_to(work.folder)).exists():
            shutil.rmtree(made) if made.is_dir() and not made.is_symlink() else made.unlink(missing_ok=True)
    shutil.copy2(work.begun / path.relative_to(work.folder), path)
    work.finish()


KINDS = {kind.__name__.replace("_", " "): kind for kind in (signals, kills, failing_disk, two_writers, damaged_files)}


def set_up(world):
    """Return the three works. Each needs what the one before it made."""
    rng, prepared, trained, tuned = random.Random(0), world / "prepare", world / "train", world / "tune"
    (prepared / "texts").mkdir(parents=True)
    for n in range(6):
        documents = [" ".join(rng.choices(WORDS, k=rng.randint(5, 60))) for _ in range(50)]
        (prepared / "texts" / f"{n}.txt").write_text("\n\n\n".join(documents))
    prepare = Work(PREPARE, prepared)
    shutil.copytree(prepare.folder / "out", trained / "data")
    prepare.begin(prepared)
    prepare.start(at=int(0.6 * prepare.changes)).join()
    prepare.begun = prepare.folder.rename(world / "prepare-begun")
    train = Work(TRAIN, trained)
    train.begun = train.folder.rename(world / "train-begun")
    tuned.mkdir()
    rows = [f"{' '.join(rng.choices(WORDS, k=9))},{rng.choice('ab')}\n" for _ in range(40)]
    (tuned / "table.csv").write_text("text,label\n" + "".join(rows))
    (train.begun / "out/ckpt-12.pt").rename(tuned / "ckpt-12.pt")
    (train.begun / "out/ckpt-9.pt").unlink()
    return train, prepare, Work(TUNE, tuned)


def main():
    parser = argparse.ArgumentParser(description="Disturb runs in every way, and look whether anything is lost.")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--case", type=int, help="the number of one case, to repeat it")
    args = parser.parse_args()
    os.chdir(ROOT)  # the server of tests/helpers.py imports from here
    tried, losses = Counter(), Counter()
    with tempfile.TemporaryDirectory() as world:
        works, end = set_up(Path(world)), time.monotonic() + 60 * args.minutes
        for case in itertools.count() if args.case is None else [args.case]:
            if time.monotonic() > end:
                break
            number, name = case // len(KINDS), [*KINDS][case % len(KINDS)]
            work = works[number % len(works)]
            work.begin(work.fresh)
            tried[name] += 1
            try:
                KINDS[name](work, number // len(works), random.Random(case))
            except Lost as lost:
                losses[name] += 1
                print(f"LOST {work.name}: {lost}\n    repeat it: --case={case}", flush=True)
    print("| faults | tried | survived | lost |\n|---|---|---|---|")
    for name in tried:
        print(f"| {name} | {tried[name]:,} | {tried[name] - losses[name]:,} | {losses[name]} |")
    print(f"changes: {', '.join(f'{work.name} {work.changes}' for work in works)}; {time.strftime('%F')}")
    sys.exit(bool(losses))


if __name__ == "__main__":
    main()
