"""List the data sets for fine-tuning, and whether their files are there: python -m eval.tasks"""

import sys

from eval.tasks.registry import TASKS, find_task, missing

if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    row = "{:12}  {:6}  {:16}  {}".format
    print(row("task", "family", "main metrics", "in data/tasks"))
    for name in TASKS:
        task = find_task(name)
        print(row(name, task.family, ",".join(task.metrics), "no" if missing(task) else "yes"))
