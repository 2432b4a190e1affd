"""How the benchmarks measure: functions take turns, and the median counts."""

import platform
import statistics
import time

import torch


def hardware():
    """Describe the machine and the software in one line."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    n = torch.get_num_threads()
    return f"{device}, {n} thread{'s' * (n != 1)}, Python {platform.python_version()}, torch {torch.__version__}"


def wall_seconds(function):
    """Time one call, on a GPU until its work is done."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    started = time.perf_counter()
    function()
    wait()
    return time.perf_counter() - started


def device_seconds(function):
    """Time the GPU work of one call, which starts with a cold L2 cache. Without a GPU, the same as wall_seconds."""
    if not torch.cuda.is_available():
        return wall_seconds(function)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.empty(2**28, dtype=torch.uint8, device="cuda").zero_()  # 256 MiB, larger than any L2
    torch.cuda._sleep(2_000_000)  # one millisecond, in which Python launches the work: no launch delays it
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def alternating(functions, repeats, seconds_of=wall_seconds):
    """Call {name: function} in turns and return {name: median seconds}. The first round does not count.

    Whatever else the machine does slows all of them, so ratios are more reliable than times.
    """
    rounds = [[seconds_of(function) for function in functions.values()] for _ in range(repeats + 1)]
    return {name: statistics.median(s) for name, s in zip(functions, zip(*rounds[1:], strict=True))}
