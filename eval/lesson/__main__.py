"""The lesson's tools. LESSON.md says what to look for in their output.

    python -m eval.lesson batch --run=out/demo                 # the same tokens as CLM and as MLM trains on them
    python -m eval.lesson explain --ckpt=out/demo              # what is predicted of each token of a sentence
    python -m eval.lesson per_token --runs=out/clm,out/mlm     # losses by tokens seen and by tokens predicted
    python -m eval.lesson switch --run=out/demo                # what changes at the switch from CLM to MLM
    python -m eval.lesson budgets                              # the scores of other studies by budget
    python -m eval.lesson gallery                              # masks, guesses, attention and all figures on one page

All take settings as --key=value and list them with --help.
"""

import sys

from errors import Damaged, DataError
from eval.lesson import batch, budgets, explain, gallery, per_token, switch

TOOLS = {module.__name__.split(".")[-1]: module for module in (batch, explain, per_token, switch, budgets, gallery)}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TOOLS:
        sys.exit(__doc__)
    try:
        TOOLS[sys.argv[1]].main(sys.argv[2:])
    except (Damaged, DataError) as error:
        sys.exit(str(error))
