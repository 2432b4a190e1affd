"""Retrievers of the hub, scored as they are and in their own way: against sentence-transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from encoder_helpers import TEXTS, write_encoder
from task_helpers import Files, cases, docs_block, family, settings

import checkpoint
from errors import DataError
from eval.study.results import read
from eval.tasks import hub_encoder
from eval.tasks.model import predict
from eval.tasks.result import build
from eval.tasks.retriever import STUDY, choose

sentence_transformers = pytest.importorskip("sentence_transformers")

RETRIEVERS = cases("retrievers.jsonl")  # a kind of model, the files of sentence-transformers, why it is refused


def write_retriever(folder, case=RETRIEVERS[0]):
    """Write a tiny model with the files of sentence-transformers."""
    write_encoder(folder, case["model"])
    for name, content in case["files"].items():
        Files(folder).put(name, json.dumps(content))
    return folder


def embeddings(folder, texts, **changed):
    """Return the vectors of texts as queries and as documents, (n, d) each, as finetune.py makes them."""
    cfg = settings(init_from=str(folder), max_steps=0, **changed)
    task, model = build(cfg, family("ir").dataset, hub_encoder.open_newest(folder)[1])
    return [np.stack(predict(model, [task.item(prompt, text) for text in texts])) for prompt in task.protocol[1:3]]


@pytest.mark.parametrize("case", RETRIEVERS)
def test_vectors_are_those_of_sentence_transformers_or_refused(tmp_path, case):
    folder = write_retriever(tmp_path / "model", case)
    if "refused" in case:
        with pytest.raises(DataError, match="own protocol can be followed .*give --protocol=study"):
            choose(settings(max_steps=0), hub_encoder.open_newest(folder)[1])
        return
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    study = embeddings(folder, TEXTS, protocol="study")
    by_cosine = "similarity_fn_name" not in case["files"]["config_sentence_transformers.json"]
    for found, other, encode in zip(embeddings(folder, TEXTS), study, (theirs.encode_query, theirs.encode_document)):
        expected = encode(TEXTS, normalize_embeddings=by_cosine)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert np.abs(other - expected).max() > 0.01


def test_a_folder_of_our_own_architecture_has_its_own_way_too(encoder, tmp_path):
    checkpoint.export(encoder, tmp_path / "model", "eurobert")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    for found in embeddings(tmp_path / "model", TEXTS):
        np.testing.assert_allclose(found, theirs.encode(TEXTS, normalize_embeddings=True), atol=1e-5)
    with pytest.raises(DataError, match="save_model: .*give --protocol=study"):
        embeddings(tmp_path / "model", TEXTS, save_model=True)


def test_its_own_way_is_the_default_only_for_zero_shot_scores(tmp_path):
    folder = write_retriever(tmp_path / "model")
    state = hub_encoder.open_newest(folder)[1]
    assert choose(settings(max_steps=0), state).name == "its own"
    assert choose(settings(), state) is choose(settings(max_steps=0, protocol="study"), state) is STUDY
    write_encoder(tmp_path / "plain", "bert")  # as sentence-transformers opens a folder without its files
    plain = hub_encoder.open_newest(tmp_path / "plain")[1]
    assert choose(settings(max_steps=0), plain) is STUDY and choose(settings(protocol="own"), plain).pooling == "mean"


def test_a_zero_shot_run_says_what_it_is(encoder, run, tmp_path):
    checkpoint.export(encoder, tmp_path / "model", "eurobert")
    corpus = Files(tmp_path).beir("beir", test=6)
    args = [f"--init_from={tmp_path}/model", f"--out_dir={tmp_path}/out", "--max_steps=0", "--dtype=float32"]
    code, text = run([*args, "--family=ir", f"--corpus={corpus}"], "finetune.py")
    assert code == 0 and "zero-shot" in text and "its own" in text, text
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert (result["zero_shot"], result["protocol"], result["steps"]) == (True, "its own", 0)
    assert result["examples"] == {"train": 0, "validation": 0, "test": 6} and result["metrics"]["validation"] == {}
    (row,), _ = read(tmp_path, [tmp_path / "out"], "field", {})
    assert row.task == "ir (zero-shot)" and row.pretraining == "pretrained elsewhere, retrieval by its own protocol"


def test_the_lines_of_the_docs_make_a_retriever_that_opens_in_sentence_transformers(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_retriever(Path("bert-base-uncased"))
    state = hub_encoder.open_newest(folder)[1]
    for x in state["model"].values():  # as if it had been trained
        x += 0.1 * torch.randn_like(x)
    task, model = saved("ir", state, protocol="own")
    Path("out").mkdir()
    Path("out/search").symlink_to(tmp_path)
    exec(docs_block("exported/search", "hub"), {})
    opened = sentence_transformers.SentenceTransformer("exported/search", device="cpu")
    ours = np.stack(predict(model, [task.item("", text) for text in TEXTS]))
    np.testing.assert_allclose(opened.encode_document(TEXTS), ours, atol=1e-5)
