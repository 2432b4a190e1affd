"""List the data sets for fine-tuning, or use a fine-tuned model.

    python -m eval.tasks                               # list them, and whether their files are there
    python -m eval.tasks predict out/model.pt new.csv  # predict for new text; predict --help says more

--folder=data/tasks says where the files of the data sets are.
"""

import signal
import sys

import configurator
from eval.tasks import predict
from eval.tasks.registry import TASKS, find_task, missing

folder = "data/tasks"  # where the files of the data sets are


def list_tasks(folder):
    """Print the tasks and whether their files are there."""
    row = "{:12}  {:6}  {:16}  {}".format
    print(row("task", "family", "main metrics", f"in {folder}"))
    for name, task in TASKS.items():
        there = "no" if missing(find_task(name, folder)) else "yes"
        print(row(name, task.family, ",".join(task.metrics), there))


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the command without an error
    if sys.argv[1:2] == ["predict"]:
        return predict.main(sys.argv[2:])
    if {"--help", "-h"} & {*sys.argv}:
        return print(__doc__.strip())
    list_tasks(configurator.load(__file__, sys.argv[1:], command="python -m eval.tasks").folder)


if __name__ == "__main__":
    main()
