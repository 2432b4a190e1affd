"""The lesson's tools. LESSON.md says what to look for in their output.

    python -m eval.lesson explain --ckpt=out/lesson            # what both objectives ask, and what is answered
    python -m eval.lesson per_token --runs=out/clm,out/mlm     # losses by tokens seen and by tokens predicted
    python -m eval.lesson switch --run=out/lesson              # what changes at the switch from CLM to MLM
    python -m eval.lesson gallery                              # masks, guesses, attention and all figures on one page

All take settings as --key=value and list them with --help.
"""

import sys

import configurator
from errors import Damaged, DataError
from eval.lesson import explain, gallery, per_token, switch

TOOLS = {"explain": explain, "per_token": per_token, "switch": switch, "gallery": gallery}

if __name__ == "__main__":
    name, *args = sys.argv[1:] or [""]
    if name not in TOOLS:
        print(__doc__.strip())
        sys.exit(0 if name in ("-h", "--help") else 2)
    try:
        tool = TOOLS[name]
        tool.main(configurator.load(tool.__file__, args, getattr(tool, "check", None), f"python -m eval.lesson {name}"))
    except (Damaged, DataError) as error:
        sys.exit(str(error))
