"""Make the small studies' version of SciFact: 160 of its 809 training queries become validation queries.

    python docs/results/scifact_split.py SCIFACT data/tasks/scifact_beir

SCIFACT is the downloaded data set (eval/tasks/datasets.ini has the address). The ids of the training queries are sorted
as text and shuffled by random.Random(0). The first 160 are for validation. The new folder has the same files, but
qrels/train.tsv is split into qrels/train.tsv and qrels/dev.tsv.
"""

import hashlib
import random
import shutil
import sys
from pathlib import Path

VALIDATION = 160
SHA256 = "18566e902a039d0a10cc6799feb6a5033ed1b4e56e8246b05c667a730bbcd9aa"  # of qrels/dev.tsv


def divide(lines):
    """Split the lines of qrels/train.tsv, without the header, into those for validation and for training."""
    queries = sorted({line.split("\t")[0] for line in lines})
    random.Random(0).shuffle(queries)
    chosen = set(queries[:VALIDATION])
    validation = [line for line in lines if line.split("\t")[0] in chosen]
    return validation, [line for line in lines if line.split("\t")[0] not in chosen]


def main(source, out):
    if out.exists():
        sys.exit(f"{out} exists and is not replaced: choose another folder")
    header, *lines = (source / "qrels/train.tsv").read_text().splitlines(keepends=True)
    validation, training = divide(lines)
    (out / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        shutil.copyfile(source / name, out / name)
    (out / "qrels/train.tsv").write_text(header + "".join(training))
    (out / "qrels/dev.tsv").write_text(header + "".join(validation))
    found = hashlib.sha256((out / "qrels/dev.tsv").read_bytes()).hexdigest()
    print(f"{len(validation)} judgments of {VALIDATION} queries for validation, {len(training)} for training")
    print(f"qrels/dev.tsv is the same as in the studies: {found == SHA256}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python docs/results/scifact_split.py SCIFACT OUT")
    main(*map(Path, sys.argv[1:]))
