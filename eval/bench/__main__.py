"""Benchmarks: python -m eval.bench NAME [--key=value ...]

  doctor     whether this machine works, and what to set: run it first
  step       the speed of train.py, its MFU and memory
  attention  attention alone, next to PyTorch's implementations

What they compare takes turns, and medians count. NAME --help lists the settings.
`sh eval/bench/gpu.sh FOLDER` measures what is worth knowing on a GPU.
"""

import sys

import configurator
from eval.bench import attention, doctor, step
from eval.bench.timing import hardware

TOOLS = {"doctor": doctor, "step": step, "attention": attention}

if __name__ == "__main__":
    name, *args = sys.argv[1:] or [""]
    if name not in TOOLS:
        print(__doc__.strip())
        sys.exit(0 if name in ("-h", "--help") else 2)
    tool = TOOLS[name]
    cfg = configurator.load(tool.__file__, args, getattr(tool, "check", None), f"python -m eval.bench {name}")
    print(hardware(), flush=True)
    tool.main(cfg)
