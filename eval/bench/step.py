"""The speed of train.py, for CLM and for MLM, with MFU and memory on a GPU.

    python -m eval.bench step                                            # the demo
    python -m eval.bench step --model=610m --micro_batch=8 --only=compiled,compiled_sdpa

Each run is train.py itself for a few steps of CLM and as many of MLM, on the text that comes with the project. Its log
says how fast each step was. The first step of a phase, which compiles, does not count, and neither do evaluations and
checkpoints. The variants take turns. A run is stopped when its last step is in the log.

The variants: ours is train.py without torch.compile, compiled with it, compiled_sdpa with PyTorch's attention too,
compiled_muon with Muon instead of AdamW.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import configurator
from data.objective import CLM, Objective
from data.prepare import EMBEDDED_FOLDER
from model import PRESETS
from run import last_logged, model_config, read_metrics
from runtime import resolve_auto, utilization

model = "demo"  # demo (train.py's default), or 210m, 610m or 1b: a preset in config/
only = ("ours", "compiled", "compiled_sdpa", "compiled_muon")  # the variants
micro_batch = 0  # windows of a micro-batch; 0 = the preset's
micro_steps = 1  # micro-batches of a step
steps = 20  # steps of each phase
repeats = 3  # runs of each variant; the median of all their steps counts

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = {
    "ours": ["--compile=False"],
    "compiled": ["--compile=True"],
    "compiled_sdpa": ["--compile=True", "--attention=sdpa"],
    "compiled_muon": ["--compile=True", "--optimizer=muon"],
}


def check(cfg):
    """Yield what is wrong with the settings."""
    choices = {"model": [*PRESETS]}
    yield from configurator.outside_limits(cfg, ["micro_steps", "repeats"], ["micro_batch"], choices=choices)
    if cfg.steps < 2:
        yield f"steps={cfg.steps}: must be at least 2, because the first one does not count"
    for name in cfg.only:
        if name not in VARIANTS:
            yield f"only={name}: must be some of {', '.join(VARIANTS)}"


def arguments(cfg):
    """Return the arguments of train.py that all variants share, and its settings with them."""
    args = [] if cfg.model == "demo" else [str(ROOT / f"config/{cfg.model}.py"), "--vocab_size=128256"]
    args.append(f"--data={EMBEDDED_FOLDER}")
    if cfg.micro_batch:
        args.append(f"--micro_batch={cfg.micro_batch}")
    settings = configurator.load(ROOT / "train.py", args)
    seq_len = model_config(settings, 4096).seq_len
    args += [
        f"--global_batch_tokens={cfg.micro_steps * settings.micro_batch * seq_len}",
        f"--max_steps={2 * cfg.steps}",
        f"--switch_step={cfg.steps}",
        *("--warmup_steps=0", "--decay_steps=0", "--keep_steps=()"),
        *("--log_interval=1", "--eval_interval=1000000", "--checkpoint_interval=1000000"),
        *("--eval_windows=1", "--verify_data=False"),
    ]
    return args, resolve_auto(configurator.load(ROOT / "train.py", args))


def train(args, n_steps):
    """Run train.py until n_steps are in its log. Return the log, and the GPU's memory in use then, in GB.

    Raises RuntimeError with its last line if it ends before.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output.txt")
        command = [sys.executable, str(ROOT / "train.py"), *args, f"--out_dir={folder}/run"]
        with output.open("w") as file:
            process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        try:
            while last_logged(f"{folder}/run") < n_steps:
                if process.poll() is not None and last_logged(f"{folder}/run") < n_steps:
                    raise RuntimeError(output.read_text().strip().splitlines()[-1])
                time.sleep(0.1)
            memory = 0
            if torch.cuda.is_available():
                free, total = torch.cuda.mem_get_info()
                memory = (total - free) / 1e9
            return read_metrics(f"{folder}/run"), memory
        finally:
            process.kill()
            process.wait()


def speeds_of(log, n_steps):
    """Return {phase: tokens/s of its steps, without the first}."""
    speeds = {"CLM": [], "MLM": []}
    for line in log:
        if line.get("tokens_per_s"):
            speeds["CLM" if line["step"] <= n_steps else "MLM"].append(line["tokens_per_s"])
    return speeds


def mfu(settings, phase, tokens_per_s):
    """Return the MFU of a phase at this speed in words, "" on a CPU."""
    config = model_config(settings, settings.vocab_size)
    objective = CLM if phase == "CLM" else Objective(mask_ratio=max(settings.mask_ratio))
    windows = range(settings.global_batch_tokens // config.seq_len)
    seconds = settings.global_batch_tokens / tokens_per_s
    device = torch.device(settings.device)
    return utilization(settings, config, [(objective, windows)], seconds, device).get("mfu", "")


def main(cfg):
    args, settings = arguments(cfg)
    found = {}  # by phase and variant: tokens/s of each step
    memory = {}
    for _ in range(cfg.repeats):
        for name in cfg.only:
            try:
                log, memory[name] = train([*args, *VARIANTS[name]], 2 * cfg.steps)
            except RuntimeError as error:  # out of memory, for example: measure the rest
                print(f"left out: {name}: {str(error)[:300]}", flush=True)
                continue
            for phase, speeds in speeds_of(log, cfg.steps).items():
                found.setdefault((phase, name), []).extend(speeds)
                print(f"{phase} {name}: a run with {statistics.median(speeds):,.0f} tokens/s", flush=True)
    if not found:
        sys.exit("none of the variants ran")

    windows = f"{cfg.micro_steps} x {settings.micro_batch} windows, window_split={settings.window_split}"
    print(f"\n{cfg.model}: {windows}, {settings.dtype}; medians of {cfg.repeats} x {cfg.steps - 1} steps")
    for phase in ("CLM", "MLM"):
        medians = {name: statistics.median(speeds) for (of, name), speeds in found.items() if of == phase}
        first = next(iter(medians.values()))
        for name, speed in medians.items():
            line = f"{phase} {name:<14}{speed:>10,.0f} tokens/s {speed / first:>6.2f}x"
            if settings.device == "cuda":
                line += f"{mfu(settings, phase, speed):>8} MFU{memory[name]:>8.1f} GB in use"
            print(line, flush=True)
