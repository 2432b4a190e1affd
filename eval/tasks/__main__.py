"""List the data sets for fine-tuning, or use a fine-tuned model.

python -m eval.tasks                               # list them, and whether their files are there
python -m eval.tasks predict out/model.pt new.csv  # predict for new text; predict --help says more
"""

import signal
import sys
from pathlib import Path

import configurator
from eval.tasks import predict
from eval.tasks.registry import TASKS, find_task, missing, needed_files

folder = "data/tasks"  # where the files of the data sets are


def list_tasks(folder):
    """Print the tasks and whether their files are there."""
    row = "{:12}  {:6}  {:16}  {:30}  {}".format
    print(row("task", "family", "main metrics", f"folder in {folder}", "there"))
    for name, task in TASKS.items():
        files = [Path(path) for path in needed_files(task)]
        folders = dict.fromkeys("/".join(file.parts[: 1 + (file.parts[0] == "glue")]) for file in files)
        place = "none: comes with the project" if name.startswith("embedded-") else ", ".join(folders)
        there = "no" if missing(find_task(name, folder)) else "yes"
        print(row(name, task.family, ",".join(task.metrics), place, there))


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the command without an error
    if sys.argv[1:2] == ["predict"]:
        return predict.main(sys.argv[2:])
    list_tasks(configurator.load(__file__, sys.argv[1:], command="python -m eval.tasks").folder)


if __name__ == "__main__":
    main()
