"""How the benchmarks measure: functions take turns, and the median counts."""

import platform
import statistics
import time

import torch


def hardware():
    """Describe the machine and the software in one line."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    return f"{device}, {torch.get_num_threads()} threads, Python {platform.python_version()}, torch {torch.__version__}"


def wall_seconds(function):
    """Time one call, on a GPU until its work is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
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
    seconds = {name: [] for name in functions}
    for repeat in range(repeats + 1):
        for name, function in functions.items():
            duration = seconds_of(function)
            if repeat:
                seconds[name].append(duration)
    return {name: statistics.median(s) for name, s in seconds.items()}
