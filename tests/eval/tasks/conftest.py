"""Fixtures that write data files and save fine-tuned models."""

import gzip
import json
from itertools import islice

import pytest

import checkpoint
from eval.tasks import hub_encoder
from eval.tasks.registry import Task
from eval.tasks.result import build, save_model
from eval.tasks.splits import Dataset
from task_helpers import settings


class Files:
    def __init__(self, folder):
        self.folder = folder

    def put(self, name, content):
        """Write a file and return its path as a string. A list becomes JSON lines, a dict JSON; .gz is compressed."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(record) + "\n" for record in content)
        elif isinstance(content, dict):
            content = json.dumps(content, indent=1)
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    def squad(self, name, *contexts):
        """Write a file in SQuAD's layout, of (context, [(id, question, [(answer, start), ...]), ...])."""

        def qa(id, question, answers):
            answers = [{"text": text, "answer_start": start} for text, start in answers]
            return {"id": id, "question": question, "is_impossible": not answers, "answers": answers}

        paragraphs = [{"context": context, "qas": [qa(*question) for question in qas]} for context, qas in contexts]
        return self.put(name, {"version": "2.0", "data": [{"title": "T", "paragraphs": paragraphs}]})

    def beir(self, folder, train=0, dev=0, test=2, gz=""):
        """Write a BEIR folder in which document d<n> answers query q<n>. The splits take consecutive queries."""
        n = train + dev + test
        documents = [{"_id": f"d{i}", "title": f"Title {i}", "text": f"text {i}"} for i in range(n + 5)]
        self.put(f"{folder}/corpus.jsonl{gz}", documents)
        self.put(f"{folder}/queries.jsonl{gz}", [{"_id": f"q{i}", "text": f"query {i}"} for i in range(n)])
        numbers = iter(range(n))
        for split, size in (("train", train), ("dev", dev), ("test", test)):
            if judgments := [(f"q{i}", f"d{i}", 1) for i in islice(numbers, size)]:
                self.qrels(f"{folder}/qrels/{split}.tsv{gz}", *judgments)
        return str(self.folder / folder)

    def qrels(self, name, *judgments):
        lines = [f"{query}\t{document}\t{grade}\n" for query, document, grade in judgments]
        return self.put(name, "query-id\tcorpus-id\tscore\n" + "".join(lines))


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def saved(encoder, tmp_path):
    """saved(family) -> (the Family, its TaskModel) of a fine-tuned model, which is in tmp_path/model.pt."""

    def one(family, state=None):
        cfg, state = settings(family=family, max_len=40, out_dir=str(tmp_path)), state or checkpoint.load(encoder)
        spec = Task("sc", columns=("title", "body", "end"), form="T: {} B: {} {}") if family == "sc" else Task(family)
        labels = {"sc": ["no", "yes"], "tc": ["O", "B-X"]}.get(family, [])
        dataset = Dataset("toy", family, labels, [], {}, {}, {}, {}, spec)
        task, model = build(cfg, dataset, state)
        task.threshold, task.may_be_none = -0.5, True
        save_model(cfg, dataset, task, model, {}, state | dict(optimizer={}, muon={}))
        assert not {"optimizer", "muon"} & hub_encoder.load(tmp_path / "model.pt").keys()
        return task, model

    return one
