"""Write 500 documents of SciFact in the BEIR layout: the documents that a test query has a judgment for, and others.

python scifact500.py SCIFACT OUT
"""

import json
import pathlib
import random
import sys

source, out = map(pathlib.Path, sys.argv[1:])
judgments = (source / "qrels/test.tsv").read_text()
judged = {line.split("\t")[1] for line in judgments.splitlines()[1:]}
lines = (source / "corpus.jsonl").read_text().splitlines()
by_id = {json.loads(line)["_id"]: line for line in lines}
others = sorted(set(by_id) - judged)
random.Random(0).shuffle(others)
chosen = sorted(judged) + others[: 500 - len(judged)]
(out / "qrels").mkdir(parents=True)
(out / "qrels/test.tsv").write_text(judgments)
(out / "corpus.jsonl").write_text("\n".join(by_id[i] for i in chosen) + "\n")
(out / "queries.jsonl").write_bytes((source / "queries.jsonl").read_bytes())
print(len(judged), len(chosen))
