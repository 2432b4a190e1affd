"""How benchmarks measure: functions take turns, and the median counts."""

import platform
import statistics
import time

import torch

import model


def print_hardware():
    """Print the machine and the software in one line."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    triton = getattr(model.triton, "__version__", "missing")
    software = f"Python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    print(f"{device}, threads: {torch.get_num_threads()}, {software}, Triton {triton}")


def seconds_of(function):
    """Time one call: on a CPU by the clock, on a GPU its own time, beginning with a cold L2 cache."""
    if not torch.cuda.is_available():
        started = time.perf_counter()
        function()
        return time.perf_counter() - started
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.empty(2**28, dtype=torch.uint8, device="cuda").zero_()  # 256 MiB, larger than any L2
    torch.cuda._sleep(2_000_000)  # one millisecond, in which Python launches the work: no launch delays it
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def alternating(functions, repeats):
    """Call {name: function} in turns and return {name: median seconds}. The first round does not count.

    Whatever else the machine does slows all of them, so ratios are more reliable than times.
    """
    seconds = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            seconds[name].append(seconds_of(function))
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}
