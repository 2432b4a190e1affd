"""What the tests of the task families share."""

import gzip
import json
import re

import numpy as np

import configurator
from data.tokenizer_files import read_tokenizer
from eval.tasks import metrics
from eval.tasks.families import FAMILIES
from eval.tasks.registry import find_task
from eval.tasks.retriever import STUDY
from eval.tasks.splits import Dataset, read
from helpers import ROOT

TOKENIZER = read_tokenizer("embedded")


def cases(name):
    """Return the cases in a part of tests/eval/tasks/cases.txt, an object a line."""
    return [json.loads(line) for line in parts_of("cases.txt")[name].split("\n") if line]


def parts_of(name):
    """Return {head: content} of a text in tests/eval/tasks, where a line `===== HEAD` begins each part."""
    parts = (ROOT / "tests/eval/tasks" / name).read_text().split("\n===== ")[1:]
    return {head: content for head, _, content in (part.partition("\n") for part in parts)}


def unpack(name, folder):
    """Write the files that a text in tests/eval/tasks holds into a folder, and return the folder."""
    for head, content in parts_of(name).items():
        file, _, encoding = head.partition(" ")
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(content.replace("␍", "\r"), encoding or "utf-8")
    return folder


def settings(**changed):
    """The settings of finetune.py, on a CPU in fp32."""
    defaults, _ = configurator.read_script(ROOT / "finetune.py")
    return configurator.Settings(defaults | dict(device="cpu", dtype="float32") | changed)


def load(task="", folder="data/tasks", full_corpus=True, zero_shot=False, **fields):
    """Return the Dataset of a task."""
    return read(find_task(task, folder, zero_shot, **fields), full_corpus)


def family(name, max_len=64, **parts):
    parts = dict(labels=[], train=[], validation=[], test=[], main={"field": ["ndcg@10"]}) | parts
    return FAMILIES[name](Dataset("toy", name, counts={}, **parts), TOKENIZER, max_len, 0.05, STUDY)


def score(task, forward, examples, split):
    """Return {metric: percent}."""
    found = task.metrics(task.predict(forward, examples, split), examples)
    return {name: metrics.score(instances) for name, instances in found.items()}


def logits(odds):
    """The outputs (tokens, 2) of a model with these log-odds."""
    return np.stack([np.zeros(len(odds)), odds], -1)


def docs_block(word, page="finetuning"):
    """Return the Python block of a page of docs that holds a word."""
    text = (ROOT / f"docs/{page}.md").read_text()
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if word in block]
    return block


class Files:
    """Writes data files into a folder."""

    def __init__(self, folder):
        self.folder = folder

    def put(self, name, content):
        """Write a file and return its path as a string. A list becomes JSON lines; .gz is compressed."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(record) + "\n" for record in content)
        path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
        return str(path)

    def beir(self, folder, train=0, dev=0, test=2, gz="", documents=(), queries=()):
        """Write a BEIR folder in which document d<n> answers query q<n>. The splits take consecutive queries."""
        n, rows = train + dev + test, [{"_id": f"d{i}", "text": text} for i, text in enumerate(documents)]
        rows = rows or [{"_id": f"d{i}", "title": f"Title {i}", "text": f"text {i}"} for i in range(n + 5)]
        self.put(f"{folder}/corpus.jsonl{gz}", rows)
        queries = queries or [f"query {i}" for i in range(n)]
        self.put(f"{folder}/queries.jsonl{gz}", [{"_id": f"q{i}", "text": text} for i, text in enumerate(queries)])
        judgments = [(f"q{i}", f"d{i}", 1) for i in range(n)]
        parts = {"train": judgments[:train], "dev": judgments[train : train + dev], "test": judgments[train + dev :]}
        for split, part in parts.items():
            if part:
                self.qrels(f"{folder}/qrels/{split}.tsv{gz}", *part)
        return str(self.folder / folder)

    def qrels(self, name, *judgments):
        lines = [f"{query}\t{document}\t{grade}\n" for query, document, grade in judgments]
        return self.put(name, "query-id\tcorpus-id\tscore\n" + "".join(lines))
