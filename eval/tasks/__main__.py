"""List the data sets for fine-tuning, show what is in some of them, or use a fine-tuned model.

    python -m eval.tasks                               # list them, and whether their files are there
    python -m eval.tasks sst2 topics.py                # show counts and first examples; topics.py is a task file
    python -m eval.tasks predict out/model.pt new.csv  # predict for new text; predict --help says more

--folder=data/tasks says where the files of the data sets are.
"""

import signal
import sys
from pathlib import Path

import configurator
from errors import DataError
from eval.tasks import predict
from eval.tasks.examples import SPLITS, Pair, text_of
from eval.tasks.metrics import in_set
from eval.tasks.registry import TASKS, find_task, missing, needed_files
from eval.tasks.splits import read

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


def show(dataset):
    """Print what is in a Dataset: its counts and the first two examples of each split."""
    print(dataset.summary())
    for split in SPLITS:
        examples = getattr(dataset, split)
        if isinstance(examples, list):
            print(f"\n{split}: {len(examples):,} examples", *map(text_of, examples[:2]), sep="\n")
            continue
        for name, (queries, corpus, qrels) in examples.items():
            best = {query: max(qrels[query], key=qrels[query].get) for query in list(queries)[:2]}
            pairs = [Pair(queries[query], corpus[document]) for query, document in best.items()]
            print(f"\n{in_set(name, split, ': ')}: {len(queries):,} queries, {len(corpus):,} documents")
            print(*map(text_of, pairs), sep="\n")


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the command without an error
    if sys.argv[1:2] == ["predict"]:
        return predict.main(sys.argv[2:])
    if {"--help", "-h"} & {*sys.argv}:
        print(__doc__.strip())
        sys.exit(0)
    names = [arg for arg in sys.argv[1:] if not arg.startswith("-")]
    cfg = configurator.load(__file__, [a for a in sys.argv[1:] if a.startswith("-")], command="python -m eval.tasks")
    try:
        tasks = [find_task(name, cfg.folder) for name in names]
    except DataError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    try:
        for task in tasks:
            show(read(task, full_corpus=False))
    except DataError as error:
        sys.exit(str(error))
    if not names:
        list_tasks(cfg.folder)


if __name__ == "__main__":
    main()
