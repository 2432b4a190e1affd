"""How the benchmarks measure: functions in turn, medians, and nothing of one counted as another's."""

import platform
import statistics
import time

import torch


def hardware():
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    return f"{device}, {torch.get_num_threads()} threads, Python {platform.python_version()}, torch {torch.__version__}"


def wall_seconds(function):
    """Of one call, on a GPU until its work is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def device_seconds(function):
    """Of the work that one call gives a GPU, which finds nothing in its L2 cache; without one, as wall_seconds."""
    if not torch.cuda.is_available():
        return wall_seconds(function)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.empty(2**28, dtype=torch.uint8, device="cuda").zero_()  # 256 MiB, larger than any L2
    torch.cuda._sleep(2_000_000)  # a millisecond, in which Python launches what is timed: no launch is waited for
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def alternating(functions, repeats, seconds_of=wall_seconds):
    """{name: median seconds} of functions called in turn, after one call each that does not count.

    Whatever else the machine does meets all of them, and their ratios hold better than their times.
    """
    seconds = {name: [] for name in functions}
    for repeat in range(repeats + 1):
        for name, function in functions.items():
            took = seconds_of(function)
            if repeat:
                seconds[name].append(took)
    return {name: statistics.median(s) for name, s in seconds.items()}
