"""The script of docs/hub.md that runs MTEB on an exported model, with a made-up task in place of those of the hub."""

import random
import re

import pytest

import checkpoint
from helpers import WORDS
from task_helpers import docs_block

mteb = pytest.importorskip("mteb")


@pytest.mark.slow
def test_the_script_of_the_docs(encoder, tmp_path, monkeypatch, capsys):
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.sts import AbsTaskSTS

    rng = random.Random(0)
    first, second = ([" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(30)] for _ in range(2))
    scores = [rng.random() for _ in first]

    class StandIn(AbsTaskSTS):
        metadata = mteb.get_task("STSBenchmark").metadata.model_copy(update={"name": "StandIn"})

        def load_data(self, **options):
            rows = Dataset.from_dict({"sentence1": first, "sentence2": second, "score": scores})
            self.dataset, self.data_loaded = DatasetDict({"test": rows}), True

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mteb, "get_tasks", lambda tasks: [StandIn()])
    checkpoint.export(encoder, "exported/demo", "eurobert")
    exec(docs_block("import mteb", "hub"), {})
    assert re.search(r"^StandIn: -?\d+\.\d$", capsys.readouterr().out, re.M)
