"""List the data sets, or show what is in some of them.

python -m eval.tasks                       # list them: what each is, where its files go, whether they are there
python -m eval.tasks sst2                  # show its counts and its first examples
"""

import sys
import textwrap

import configurator
from errors import DataError
from eval.tasks.examples import Pair, Sentence
from eval.tasks.readers import find_files
from eval.tasks.registry import EMBEDDED, MAIN, SPLITS, TASKS, in_folder, load, needed_files, prefixed

folder = "data/tasks"  # where the files are: each task has a folder of its own in it


def main():
    names = [arg for arg in sys.argv[1:] if not arg.startswith("-")]
    cfg = configurator.load(__file__, [arg for arg in sys.argv[1:] if arg.startswith("-")])
    if not names:
        print(table(cfg.folder))
    for name in names:
        try:
            print(description(load(name, folder=cfg.folder, full_corpus=False)))
        except DataError as error:
            sys.exit(str(error))


def table(folder):
    """Return the list of tasks as aligned text."""
    rows = [("task", "family", "main metric", f"folder in {folder}", "there")]
    for name, task in TASKS.items():
        paths = [path for _, path in needed_files(in_folder(task, folder))]
        found = sum(bool(find_files(path)) for path in paths)
        metrics = ", ".join(task.main or MAIN[task.family][:1])
        folders = task.folder or ", ".join(path for path, *_ in task.sets.values())
        rows.append(
            (name, task.family, metrics, folders, "yes" if found == len(paths) else f"{found} of {len(paths)} files")
        )
    for name in EMBEDDED:
        rows.append((name, name[-2:], MAIN[name[-2:]][0], "none: made from Python itself", "yes"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def description(dataset):
    """Return what is in a Dataset as text: its counts and the first two examples of each split."""
    lines = [f"{dataset.name} ({dataset.family})"]
    if dataset.labels:
        lines.append(f"labels: {', '.join(dataset.labels)}")
    lines += [f"{count:,} {rule}" for rule, count in dataset.counts.items()]
    for split in SPLITS:
        examples = getattr(dataset, split)
        if isinstance(examples, list):
            lines += [f"\n{split}: {len(examples):,} examples", *map(fields, examples[:2])]
            continue
        for name, (queries, corpus, qrels) in examples.items():
            lines.append(f"\n{prefixed(name, split)}: {len(queries):,} queries, {len(corpus):,} documents")
            best = {query: max(qrels[query], key=qrels[query].get) for query in list(queries)[:2]}
            lines += [fields(Pair(queries[query], corpus[document])) for query, document in best.items()]
    return "\n".join(lines)


def fields(example):
    """Return an example as text, a line for each field, shortened where it is long."""
    values = example._asdict()
    if isinstance(example, Sentence):
        values = {"words": " ".join(word if tag == "O" else f"{word}/{tag}" for word, tag in zip(*example))}
    return "\n".join(f"  {name:10}{textwrap.shorten(str(value), 160)}" for name, value in values.items())


if __name__ == "__main__":
    main()
