"""List the data sets, or show what is in one.

    python -m eval.tasks                       # the list: what each is, where its files go, whether they are there
    python -m eval.tasks sst2                  # its counts and its first examples
"""

import sys

import configurator
from errors import DataError
from eval.tasks.registry import description, load, table

folder = "data/tasks"  # where the files are: each task has a folder of its own in it


def main():
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    cfg = configurator.load(__file__, [word for word in sys.argv[1:] if word.startswith("-")])
    if not names:
        print(table(cfg.folder))
    for name in names:
        try:
            print(description(load(name, folder=cfg.folder, full_corpus=False)))
        except DataError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
