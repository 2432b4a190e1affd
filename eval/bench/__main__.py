"""A check of a new machine: python -m eval.bench doctor [--key=value ...]

It says whether this machine works, and what to set. `sh eval/bench/gpu.sh FOLDER` measures speeds on a GPU.
"""

import configurator
from eval.bench import doctor

if __name__ == "__main__":
    configurator.run_tool("python -m eval.bench", __doc__, {"doctor": doctor})
