"""The script of docs/hub.md that runs MTEB on an exported model, with a made-up task in place of those of the hub."""

import random
import re

import pytest
import torch

import checkpoint
from helpers import ROOT, WORDS

mteb = pytest.importorskip("mteb")
stats = pytest.importorskip("scipy.stats")


@pytest.mark.slow
def test_the_score_is_that_of_our_own_embeddings(encoder, tmp_path, monkeypatch, capsys):
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
    script = re.search(r"```python\n(from pathlib.*?mteb.*?)```", (ROOT / "docs/hub.md").read_text(), re.S)[1]
    exec(script, {})
    state = checkpoint.load(encoder)
    model, tokenizer = checkpoint.model_from(state), checkpoint.tokenizer_of(state)

    def embed(text):
        """The mean of the hidden states."""
        ids = torch.tensor([tokenizer.encode(text) + [tokenizer.eos_id]])
        return model(ids, causal=False)[0].mean(0).detach()

    a, b = (torch.stack([embed(text) for text in texts]) for texts in (first, second))
    expected = stats.spearmanr(torch.cosine_similarity(a, b), scores).statistic
    assert f"StandIn: {100 * expected:.1f}\n" in capsys.readouterr().out
