"""The speed of train.py, for CLM and for MLM, with MFU and memory on a GPU.

    python -m eval.bench step                                            # the demo
    python -m eval.bench step --model=610m --micro_batch=8 --only=compiled,compiled_sdpa

Each run is train.py itself for a few steps of CLM and as many of MLM, on the text that comes with the project. Its log
says how fast each step was. The first step of a phase, which compiles, does not count, and neither do evaluations and
checkpoints. The variants take turns. As soon as a phase is done, the median of all steps so far prints, and how it
compares with that of the first variant.

The variants: ours is train.py without torch.compile, compiled with it, compiled_sdpa with PyTorch's attention too,
compiled_muon with Muon instead of AdamW.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import configurator
from data.prepare import EMBEDDED_FOLDER
from eval.bench.timing import print_hardware
from model import PRESETS
from run import ROOT, last_logged, model_config, read_metrics
from runtime import peak_flops, resolve_auto

model = "demo"  # demo (train.py's default), or 210m, 610m or 1b: a preset in config/
only = ("ours", "compiled", "compiled_sdpa", "compiled_muon")  # the variants
micro_batch = 0  # windows of a micro-batch; 0 = the preset's
micro_steps = 1  # micro-batches of a step
steps = 20  # steps of each phase; the first one does not count
repeats = 3  # runs of each variant; the median of all their steps counts

VARIANTS = {
    "ours": ["--compile=False"],
    "compiled": ["--compile=True"],
    "compiled_sdpa": ["--compile=True", "--attention=sdpa"],
    "compiled_muon": ["--compile=True", "--optimizer=muon"],
}
SHORT = """--warmup_steps=0 --decay_steps=0 --keep_steps=() --log_interval=1 --eval_interval=1000000 --eval_windows=1
--checkpoint_interval=1000000 --verify_data=False"""


def check(cfg):
    """Yield what is wrong with the settings."""
    limits = [("at least", 2, "steps"), ("at least", 1, "micro_steps repeats"), ("at least", 0, "micro_batch")]
    yield from configurator.value_problems(cfg, limits, {"model": PRESETS, "only": VARIANTS})


def arguments(cfg):
    """Return the arguments of train.py that all variants share, and its settings with them."""
    args = [] if cfg.model == "demo" else [str(ROOT / f"config/{cfg.model}.py"), "--vocab_size=128256"]
    args.append(f"--data={EMBEDDED_FOLDER}")
    if cfg.micro_batch:
        args.append(f"--micro_batch={cfg.micro_batch}")
    settings = configurator.load(ROOT / "train.py", args)
    settings["global_batch_tokens"] = cfg.micro_steps * settings.micro_batch * model_config(settings, 4096).seq_len
    args += [f"--global_batch_tokens={settings.global_batch_tokens}", *SHORT.split()]
    args += [f"--max_steps={2 * cfg.steps}", f"--switch_step={cfg.steps}"]
    return args, resolve_auto(settings)


def train(args, n_steps):
    """Run train.py for so many steps of CLM, then of MLM. Yield (phase, its lines of the log) as soon as each is done.

    Raises RuntimeError with the run's last line if it ends before.
    """
    with tempfile.TemporaryDirectory() as folder:
        out_dir = Path(folder, "run")
        output = Path(folder, "output.txt")
        command = [sys.executable, str(ROOT / "train.py"), *args, f"--out_dir={out_dir}"]
        with output.open("w") as file:
            process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        try:
            for phase, last in (("CLM", n_steps), ("MLM", 2 * n_steps)):
                while last_logged(out_dir) < last:
                    if process.poll() is not None and last_logged(out_dir) < last:
                        raise RuntimeError(output.read_text().strip().rpartition("\n")[2])
                    time.sleep(0.1)
                yield phase, [line for line in read_metrics(out_dir) if last - n_steps < line["step"] <= last]
        finally:
            process.kill()
            process.wait()


def main(cfg):
    print_hardware()
    args, settings = arguments(cfg)
    windows = f"{cfg.micro_steps} x {settings.micro_batch} windows, window_split={settings.window_split}"
    print(f"{cfg.model}: {windows}, {settings.dtype}; medians of all steps so far")
    peak = peak_flops(torch.device(settings.device), settings.dtype)
    speeds = {}  # by phase and variant: tokens/s of the steps so far
    for name in cfg.only * cfg.repeats:
        try:
            for phase, lines in train([*args, *VARIANTS[name]], cfg.steps):
                steps = speeds.setdefault((phase, name), [])
                steps += [line["tokens_per_s"] for line in lines if line["tokens_per_s"]]  # not a phase's first
                speed = median(steps)
                first = median(speeds.get((phase, cfg.only[0]), steps))
                text = f"{phase} {name:<14}{speed:>10,.0f} tokens/s {speed / first:>6.2f}x"
                if peak:
                    flops = (lines[1]["flops"] - lines[0]["flops"]) / settings.global_batch_tokens
                    text += f"{flops * speed / peak:>8.1%} MFU"
                if settings.device == "cuda":
                    free, total = torch.cuda.mem_get_info()
                    text += f"{(total - free) / 1e9:>8.1f} GB in use"
                print(text)
        except RuntimeError as error:  # out of memory, for example: measure the rest
            print(f"left out: {name}: {str(error)[:300]}")
    if not speeds:
        sys.exit("none of the variants ran")
