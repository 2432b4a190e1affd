"""Whether this machine works, how fast it is, and what to set: the first thing to run on a new one.

A part that fails says so, and the next one goes on. What could crash or hang runs in a process of its own, with a time
limit. With a GPU all parts take 10 to 20 minutes, without one less than two.
"""

import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import configurator
import model
import runtime
from eval.bench.predict import PAPER, WINDOWS, largest_micro_batch
from eval.bench.timing import wall_seconds

only = "all"  # all, or one part: facts, kernels, all_reduce, speed
folder = "."  # where to test the disk

BENCH = [sys.executable, "-u", "-m", "eval.bench"]
TORCHRUN = [*BENCH[:3], "torch.distributed.run", "--standalone", "--nproc_per_node=2", *BENCH[2:]]


def check(cfg):
    """Yield what is wrong with the settings."""
    yield from configurator.outside_limits(cfg, choices={"only": ["all", *PARTS]})


# ----------------------------------------------------------------------------
# Facts about the machine. Each function returns a line, or raises.


def software(cfg):
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.check_output(query, text=True).split()[0] if shutil.which(query[0]) else "unknown"
    return f"Triton {getattr(model.triton, '__version__', 'missing')}, CUDA {torch.version.cuda}, driver {driver}"


def compiler(cfg):
    found = [path for name in (os.environ.get("CC", ""), "gcc", "clang") if (path := shutil.which(name))]
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not found or not headers.exists():
        raise OSError(f"Triton needs gcc or clang, and {headers}. Install, for example, gcc and python3-dev")
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
# The parts. `main` starts `kernels` and `all_reduce` in processes of their own.


def facts(cfg):
    """Print the facts."""
    for fact in (software, compiler, device, disk):
        try:
            line = fact(cfg)
        except Exception as error:
            line = f"FAILED: {error}"
        print(f"{fact.__name__}: {line}", flush=True)


def kernels(cfg):
    """Compare the fused attention kernels with PyTorch's attention, for every head dim and mask."""
    dtype = getattr(torch, runtime.resolve_auto({"device": "cuda", "dtype": "auto"})["dtype"])
    failed = 0
    for D, causal, documents in itertools.product((64, 96, 128, 32), (True, False), (True, False)):
        print(f"head dim {D}, {'causal' if causal else 'full'}{', documents' * documents}", end=": ", flush=True)
        config = model.ModelConfig(n_head=6, n_kv_head=2, d_model=6 * D)
        decision = runtime.choose_attention(torch.device("cuda"), dtype, config, [causal], documents)
        if decision != "fused kernels":
            print(f"FAILED: {decision}", flush=True)
            failed += 1
    if failed:
        sys.exit(f"{failed} of 16 failed. A run that needs one of these uses PyTorch's attention, which is slower")


def all_reduce(cfg):
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


def start(title, command, limit):
    """Run a command for at most `limit` seconds, and return whether it succeeded."""
    print(f"\n{title}:", flush=True)
    process = subprocess.Popen(command)
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        process.terminate()
        print(f"stopped after {limit} s", flush=True)
    if code := process.wait():
        print(f"FAILED: {title}, exit {code}", flush=True)
    return code == 0


def time_steps(name, variant, limit, *options):
    command = [*BENCH, "step", f"--model={name}", f"--only={variant}", "--steps=1", "--repeats=5", "--profiler_rows=0"]
    return start(" ".join([name, *options]), [*command, *options], limit)


def speed(cfg):
    """Time training steps of the presets. For the paper's, find the largest micro_batch that fits."""
    time_steps("demo", "ours", 80)
    if not torch.cuda.is_available():
        return print("\nwhat to set: nothing. Train the demo (python train.py); larger models need a GPU")
    advice = []
    for name, config in PAPER.items():
        most = largest_micro_batch(config, torch.cuda.mem_get_info()[0])
        sizes = [n for n in range(most, 0, -1) if WINDOWS % n == 0][:3]  # if the first does not fit after all
        found = next((n for n in sizes if time_steps(name, "compiled", 150, f"--micro_batch={n}")), 0)
        advice.append(f"config/{name}.py --micro_batch={found}" if found else f"{name}: try --recompute=True")
    print("\nwhat to set, beside what the search for block sizes finds:", *advice, sep="\n  ")


PARTS = {part.__name__: part for part in (facts, kernels, all_reduce, speed)}


def main(cfg):
    if cfg.only != "all":
        return PARTS[cfg.only](cfg)
    facts(cfg)
    if torch.cuda.is_available():
        start("kernels", [*BENCH, "doctor", "--only=kernels"], 240)
    if torch.cuda.device_count() > 1:
        start("all_reduce", [*TORCHRUN, "doctor", "--only=all_reduce"], 60)
    speed(cfg)
    if torch.cuda.is_available():
        start("better block sizes for the kernels", [*BENCH, "blocks"], 300)
