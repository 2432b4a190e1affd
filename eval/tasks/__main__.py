"""List the data sets for fine-tuning, or export a fine-tuned model.

python -m eval.tasks                             # list them, and whether their files are there
python -m eval.tasks export out/model.pt FOLDER  # write a fine-tuned model of transformers as a model folder
"""

import sys

from errors import exit_with_message
from eval.tasks.export import export
from eval.tasks.registry import TASKS, find_task, missing


@exit_with_message()
def main():
    command, *args = sys.argv[1:] or [""]
    if command == "export" and len(args) == 2:
        return export(*args)
    if command:
        print(__doc__.strip())
        sys.exit(0 if {"--help", "-h"} & {*sys.argv} else 2)
    row = "{:12}  {:6}  {:16}  {}".format
    print(row("task", "family", "main metrics", "in data/tasks"))
    for name in TASKS:
        task = find_task(name)
        print(row(name, task.family, ",".join(task.metrics), "no" if missing(task) else "yes"))


if __name__ == "__main__":
    main()
