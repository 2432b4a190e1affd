"""Whether this machine works, how fast it is, and what to set: the first thing to run on a new one.

A check that fails says so, and the next one goes on. What could crash or hang runs in a process of its own, with a time
limit. With a GPU all checks take 10 to 20 minutes, without one less than two.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist

import configurator
import model
import runtime
from eval.bench.memory import largest_micro_batch
from eval.bench.timing import wall_seconds

only = "all"  # all, or one that `all` starts in processes of its own: kernels, all_reduce
folder = "."  # where to test the disk

PYTHON = [sys.executable, "-u", "-m"]
TORCHRUN = [*PYTHON, "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
TOLERANCE = 0.01  # relative, in bf16; as in runtime.py


def check(cfg):
    """Yield what is wrong with the settings."""
    yield from configurator.outside_limits(cfg, choices={"only": ["all", "kernels", "all_reduce"]})
    if not Path(cfg.folder).is_dir():
        yield f"folder={cfg.folder}: no such folder"


# ----------------------------------------------------------------------------
# Facts about the machine. Each function returns a line, or raises.


def software(cfg):
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.check_output(query, text=True).split()[0] if shutil.which(query[0]) else "unknown"
    return f"Triton {getattr(model.triton, '__version__', 'missing')}, CUDA {torch.version.cuda}, driver {driver}"


def compiler(cfg):
    found = [path for name in (os.environ.get("CC", ""), "gcc", "clang") if (path := shutil.which(name))]
    headers = Path(sysconfig.get_path("include"), "Python.h")
    missing = ["gcc or clang"] * (not found) + [str(headers)] * (not headers.exists())
    if missing:
        raise OSError(f"Triton needs {' and '.join(missing)}. Install, for example, gcc and python3-dev")
    return f"{found[0]}, {headers}"


def device(cfg):
    settings = runtime.resolve_auto({"device": "auto", "dtype": "auto"})
    line = f"device={settings['device']}, dtype={settings['dtype']}"
    if settings["device"] == "cpu":
        return f"{line}, {os.cpu_count()} cores; PyTorch finds no GPU"
    free, total = torch.cuda.mem_get_info()
    return f"{line}, {torch.cuda.device_count()} GPUs, {free / 1e9:.1f} of {total / 1e9:.1f} GB free"


def disk(cfg):
    data = os.urandom(2**28)
    with tempfile.TemporaryFile(dir=cfg.folder) as file:
        seconds = wall_seconds(lambda: (file.write(data), file.flush(), os.fsync(file.fileno())))
    free = shutil.disk_usage(cfg.folder).free
    return f"writes {len(data) / seconds / 1e9:.2f} GB/s, {free / 1e9:,.0f} GB free; a checkpoint of 610m has 9.1 GB"


# ----------------------------------------------------------------------------
# Checks that run in a process of their own


def kernels():
    """Compare the fused attention kernels with PyTorch's attention, for every head dim and mask."""
    failed = 0
    for D, causal, documents in itertools.product((64, 96, 128, 32), (True, False), (True, False)):
        try:
            difference = runtime.check_attention(torch.device("cuda"), torch.bfloat16, D, causal, documents, 6, 2)
            good, verdict = difference < TOLERANCE, f"largest relative difference {difference:.1e}"
        except Exception as error:  # of a compiler, the driver or the GPU
            good, verdict = False, f"{type(error).__name__}: {str(error).strip()[:300]}"
        mask = ("causal" if causal else "full") + ", documents" * documents
        print(f"head dim {D:>3}, {mask:<17} {'' if good else 'FAILED: '}{verdict}", flush=True)
        failed += not good
    if failed:
        sys.exit(f"{failed} of 16. A run that needs one of these uses PyTorch's attention, which is slower")


def all_reduce():
    """Sum a tensor over the processes that torchrun started."""
    device, rank, n = runtime.set_up("cuda" if torch.cuda.is_available() else "cpu", deterministic=False)
    x = torch.ones(2**25, device=device)
    dist.all_reduce(x)
    if not (x == n).all():
        sys.exit(f"wrong sum over {n} processes")
    seconds = min(wall_seconds(lambda: dist.all_reduce(x)) for _ in range(3))
    if rank == 0:
        print(f"{x.nbytes / seconds / 1e9:.1f} GB/s over {n} processes with {dist.get_backend()}", flush=True)
    dist.destroy_process_group()


def start(title, command, limit, pattern=""):
    """Run a command for at most `limit` seconds, and print the lines that match as they come. Returns them."""
    print(f"{title}:", flush=True)
    lines = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        timer = threading.Timer(limit, process.terminate)
        timer.start()
        for line in process.stdout:
            if re.search(pattern, line) and " threads, Python " not in line:  # that one is the hardware again
                print(f"  {line.rstrip()}", flush=True)
                lines.append(line.strip())
        if process.wait():
            errors.seek(0)
            last = [line.strip() for line in errors if line.strip()][-1:]
            late = "" if timer.is_alive() else f"stopped after {limit} s. "
            print(f"  FAILED: {late}{''.join(last)[:300]}", flush=True)
        timer.cancel()
    return lines


def speed(name, memory):
    """Time training steps of a preset, with the micro_batch that fits into `memory` bytes of a GPU. Return advice."""
    sizes, variant = [0], "ours"  # 0 is the preset's
    if name != "demo":
        config, variant = model.ModelConfig(vocab_size=128_256, **model.PRESETS[name]), "compiled"
        most = largest_micro_batch(config, memory)
        sizes = [n for n in range(most, 0, -1) if 144 % n == 0][:3]  # the paper's batch is 144 windows for each of 8
    for n in sizes:
        options = ["--steps=1", "--repeats=5", "--profiler_rows=0", f"--model={name}", f"--micro_batch={n}"]
        command = [*PYTHON, "eval.bench", "step", f"--only={variant}", *options]
        lines = start(
            f"{name}, micro_batch {n or 'of the preset'}", command, 150 if n else 80, "tokens/s|left out|^MFU"
        )
        if any("tokens/s" in line for line in lines):
            return f"--micro_batch={n} with config/{name}.py" if n else ""
    return f"{name} does not fit, or does not run (see above). Try --recompute=True --micro_batch=1"


def main(cfg):
    if cfg.only != "all":
        return {"kernels": kernels, "all_reduce": all_reduce}[cfg.only]()
    for fact in (software, compiler, device, disk):
        try:
            line = fact(cfg)
        except Exception as error:
            line = f"FAILED: {error}"
        print(f"{fact.__name__}: {line}", flush=True)
    if not torch.cuda.is_available():
        speed("demo", 0)
        return print("\nwhat to set: nothing. Train the demo (python train.py); larger models need a GPU")
    start("kernels", [*PYTHON, "eval.bench", "doctor", "--only=kernels"], 240)
    if torch.cuda.device_count() > 1:
        start("all_reduce", [*TORCHRUN, "eval.bench", "doctor", "--only=all_reduce"], 60)
    free = torch.cuda.mem_get_info()[0]
    advice = [speed(name, free) for name in ("demo", "210m", "610m", "1b")]
    rows = start("blocks", [*PYTHON, "eval.bench", "blocks"], 300)
    advice += [line for line in rows if "should be" in line]
    print("\nwhat to set:", *filter(None, advice), sep="\n  ")
