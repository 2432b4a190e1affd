"""The lesson's tools. LESSON.md says what to look for in their output.

    python -m eval.lesson explain --ckpt=out/lesson            # what both objectives ask, and what is answered
    python -m eval.lesson gallery                              # masks, guesses and attention on one page

Both take settings as --key=value and list them with --help.
"""

import configurator
from eval.lesson import explain, gallery

TOOLS = {"explain": explain, "gallery": gallery}

if __name__ == "__main__":
    configurator.run_tool("python -m eval.lesson", __doc__, TOOLS)
