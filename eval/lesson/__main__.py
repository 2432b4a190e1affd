"""The lesson's tools. LESSON.md says what to look for in their output.

    python -m eval.lesson explain --ckpt=out/lesson            # what both objectives ask, and what is answered
    python -m eval.lesson per_token --runs=out/clm,out/mlm     # losses by tokens seen and by tokens predicted
    python -m eval.lesson switch --run=out/lesson              # what changes at the switch from CLM to MLM
    python -m eval.lesson gallery                              # masks, guesses, attention and all figures on one page

All take settings as --key=value and list them with --help.
"""

import configurator
from eval.lesson import explain, gallery, per_token, switch

TOOLS = {"explain": explain, "per_token": per_token, "switch": switch, "gallery": gallery}

if __name__ == "__main__":
    configurator.run_tool("python -m eval.lesson", __doc__, TOOLS)
