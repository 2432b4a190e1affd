"""Benchmarks: python -m eval.bench NAME [--key=value ...]

  doctor     whether this machine works, and what to set: run it first
  step       training steps per second, their MFU and memory, and where the time goes
  attention  attention alone, next to PyTorch's implementations
  blocks     a search for better block sizes of the attention kernels, on a GPU

Each prints medians of repeats that take turns, measured in one run. NAME --help lists the settings.
`sh eval/bench/gpu.sh FOLDER` measures what is worth knowing on a GPU.
"""

import sys
from importlib import import_module

import configurator
from eval.bench.timing import hardware

if __name__ == "__main__":
    name, *args = sys.argv[1:] or [""]
    if name in ("doctor", "step", "attention", "blocks"):
        bench = import_module(f"eval.bench.{name}")
        cfg = configurator.load(bench.__file__, args, getattr(bench, "check", None), f"python -m eval.bench {name}")
        print(hardware(), flush=True)
        bench.main(cfg)
    elif name in ("-h", "--help"):
        print(__doc__.strip())
    else:
        sys.exit(__doc__.strip())
