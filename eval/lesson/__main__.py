"""The lesson's tools. LESSON.md says what to look for in their output.

    python -m eval.lesson explain --ckpt=out/demo              # one sentence under both objectives
    python -m eval.lesson per_token --runs=out/clm,out/mlm     # losses by tokens seen and by tokens predicted
    python -m eval.lesson switch --run=out/demo                # what changes at the switch from CLM to MLM
    python -m eval.lesson apply 1                              # make the edit of exercise 1; --undo takes it back

All but `apply` take settings as --key=value and list them with --help.
"""

import sys

from errors import Damaged, DataError
from eval.lesson import exercises, explain, per_token, switch

COMMANDS = {"explain": explain.main, "per_token": per_token.main, "switch": switch.main, "apply": exercises.main}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    try:
        COMMANDS[sys.argv[1]](sys.argv[2:])
    except (Damaged, DataError) as error:
        sys.exit(str(error))
