"""Benchmarks: python -m eval.bench NAME [--key=value ...]

  doctor     whether this machine works, and what to set: run it first
  step       the speed of train.py, its MFU and memory
  attention  attention alone, next to PyTorch's implementations

What they compare takes turns, and medians count. NAME --help lists the settings.
`sh eval/bench/gpu.sh FOLDER` measures what is worth knowing on a GPU.
"""

import sys
from importlib import import_module

import configurator
from eval.bench.timing import hardware

if __name__ == "__main__":
    name, *args = sys.argv[1:] or [""]
    if name in ("doctor", "step", "attention"):
        bench = import_module(f"eval.bench.{name}")
        cfg = configurator.load(bench.__file__, args, getattr(bench, "check", None), f"python -m eval.bench {name}")
        print(hardware(), flush=True)
        bench.main(cfg)
    elif name in ("-h", "--help"):
        print(__doc__.strip())
    else:
        sys.exit(__doc__.strip())
