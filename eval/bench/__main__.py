"""Benchmarks: python -m eval.bench NAME [--key=value ...]

  doctor     whether this machine works, and what to set: run it first
  step       the speed of train.py, its MFU and memory
  attention  attention alone, next to PyTorch's implementations

What they compare takes turns, and medians count. NAME --help lists the settings.
`sh eval/bench/gpu.sh FOLDER` measures what is worth knowing on a GPU.
"""

import configurator
from eval.bench import attention, doctor, step

TOOLS = {"doctor": doctor, "step": step, "attention": attention}

if __name__ == "__main__":
    configurator.run_tool("python -m eval.bench", __doc__, TOOLS)
