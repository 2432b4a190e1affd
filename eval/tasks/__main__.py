"""List the data sets for fine-tuning, and whether their files are there: python -m eval.tasks"""

from argparse import ArgumentParser

from errors import exit_with_message
from eval.tasks.registry import TASKS, find_task, missing


@exit_with_message()
def main():
    ArgumentParser(description=__doc__).parse_args()
    row = "{:12}  {:6}  {:16}  {}".format
    print(row("task", "family", "main metrics", "in data/tasks"))
    for name in TASKS:
        task = find_task(name)
        print(row(name, task.family, ",".join(task.metrics), "no" if missing(task) else "yes"))


if __name__ == "__main__":
    main()
