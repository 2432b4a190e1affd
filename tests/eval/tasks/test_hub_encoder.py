"""Encoders of the transformers library as encoders of a task, against the library itself and against our own model; and
retrievers of the hub, scored as they are and in their own way, against sentence-transformers."""

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from encoder_helpers import MODELS, TEXTS, write_encoder
from task_helpers import Files, cases, docs_block, family, load, settings

import checkpoint
from errors import DataError
from eval.study.results import read as read_results
from eval.tasks import hub_encoder, result
from eval.tasks.model import pack_texts, predict
from eval.tasks.readers import Text
from eval.tasks.result import build, evaluate, origin
from eval.tasks.retriever import STUDY, choose

transformers = pytest.importorskip("transformers")
RETRIEVERS = cases("retrievers")  # a kind of model, the files of sentence-transformers, why it is refused


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """{kind: a folder with a tiny model and its tokenizer}."""
    tmp = tmp_path_factory.mktemp("encoders")
    for name in MODELS:
        write_encoder(tmp / name, name)
    return {name: tmp / name for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_texts_have_the_hidden_states_of_the_library_for_each_alone(folders, name):
    theirs = transformers.AutoModel.from_pretrained(folders[name]).eval()
    tokens, state = transformers.AutoTokenizer.from_pretrained(folders[name]), hub_encoder.open_newest(folders[name])[1]
    encoder, tokenizer = hub_encoder.encoder_of(state).eval(), checkpoint.tokenizer_of(state)
    assert (seq_len := encoder.config.seq_len) == 39  # and [CLS]: the positions are 40
    texts = [tokenizer.encode(text)[: seq_len - 1] + [tokenizer.eos_id] for text in TEXTS * 3]
    batch = pack_texts(texts, 0)
    with torch.no_grad():
        hidden = encoder(batch["tokens"], False, batch["doc_start"], batch["doc_end"])
        parts = hidden.flatten(0, 1)[batch["positions"]].split(batch["lengths"].tolist())
        for text, ids, part in zip(TEXTS * 3, texts, parts):
            alone = tokens(text, truncation=True, max_length=seq_len + 1, return_tensors="pt")
            assert alone["input_ids"][0, 1:].tolist() == ids
            torch.testing.assert_close(part, theirs(**alone).last_hidden_state[0, 1:], atol=1e-5, rtol=1e-4)
        encoder.compute_dtype = torch.bfloat16
        half = encoder(batch["tokens"], False, batch["doc_start"], batch["doc_end"])
        assert 0 < (half - hidden).abs().max() < 0.1
    assert len(texts[3]) == seq_len
    random_weights = hub_encoder.encoder_of(state, random_weights=True).state_dict()
    assert random_weights.keys() == state["model"].keys()
    assert not any(torch.equal(x, state["model"][k]) for k, x in random_weights.items() if x.dim() == 2)


def test_equal_losses_and_gradients_through_the_library_and_through_our_own_model(encoder, tmp_path):
    checkpoint.export(encoder, tmp_path / "eurobert", "eurobert")
    dataset, found = load("embedded-sc"), []
    for state in hub_encoder.open_newest(tmp_path / "eurobert")[1], hub_encoder.read_folder(tmp_path / "eurobert"):
        task, model = build(settings(), dataset, state)
        items = [item for example in dataset.train[:24] for item in task.items(example, "train")]
        loss = task.loss(model(**pack_texts([item.ids for item in items], model.capacity)), items)
        loss.backward()
        found.append([loss.item(), torch.nn.utils.clip_grad_norm_(model.encoder.parameters(), 1.0).item()])
    assert found[0] == pytest.approx(found[1], rel=1e-4) and min(found[0]) > 0


def test_a_saved_model_predicts_and_is_not_pretrained(folders, saved, tmp_path):
    state = hub_encoder.open_newest(folders["bert"])[1]
    examples = [Text(text, "no") for text in TEXTS]
    *_, answers = evaluate(*saved("sc", state), examples)
    assert evaluate(*result.load(tmp_path / "model.pt")[1:], examples)[2] == answers
    with pytest.raises(DataError, match="model.pt: its encoder is a transformers model, which"):
        checkpoint.export(tmp_path / "model.pt", tmp_path / "exported", "eurobert")
    theirs = transformers.AutoModel.from_pretrained(folders["bert"], add_pooling_layer=False)
    assert origin(state, folders["bert"], "bert", False)["parameters"] == theirs.num_parameters()


@pytest.mark.parametrize("case", cases("no_encoders"))
def test_what_is_no_encoder_is_refused_by_its_config(folders, tmp_path, case):
    config = json.loads((folders["bert"] / "config.json").read_text()) | case["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert re.search(case["message"], hub_encoder.problem(tmp_path, causal=True))


@pytest.mark.parametrize("case", cases("encoders"))
def test_a_texts_output_does_not_depend_on_its_batch(tmp_path, case):
    write_encoder(tmp_path, case["kind"], case["config"])
    with pytest.raises(DataError, match=case["message"]) if case["message"] else nullcontext():
        assert "hub" in hub_encoder.open_newest(tmp_path)[1]


def test_a_folder_needs_all_weights_but_not_all_json(folders, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    folder = shutil.copytree(folders["bert"], tmp_path / "bert")
    (folder / "vocab.json").write_bytes(b'{"\xff": 1}')
    Files(folder).put("1_Pooling/config.json", "{}")
    kept = {"config.json", "tokenizer_config.json", "1_Pooling/config.json"}
    assert {*hub_encoder.open_newest(folder)[1]["files"]} == kept
    weights = safetensors.load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.bias"]
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="tensors are missing: encoder.layer.1.output.dense.bias"):
        hub_encoder.open_newest(folder)


def write_retriever(folder, case=RETRIEVERS[0]):
    """Write a tiny model with the files of sentence-transformers."""
    write_encoder(folder, case["model"])
    for name, content in case["files"].items():
        Files(folder).put(name, json.dumps(content))
    return folder


def opened(folder):
    return pytest.importorskip("sentence_transformers").SentenceTransformer(str(folder), device="cpu")


def embeddings(folder, texts, **changed):
    """Return the vectors of texts as queries and as documents, (n, d) each, as finetune.py makes them."""
    cfg = settings(init_from=str(folder), max_steps=0, **changed)
    task, model = build(cfg, family("ir").dataset, hub_encoder.open_newest(folder)[1])
    return [np.stack(predict(model, [task.item(prompt, text) for text in texts])) for prompt in task.protocol[1:3]]


@pytest.mark.parametrize("case", RETRIEVERS)
def test_vectors_are_those_of_sentence_transformers_or_refused(tmp_path, case):
    folder = write_retriever(tmp_path / "model", case)
    if "refused" in case:
        with pytest.raises(DataError, match="own protocol .*give --protocol=study|give a text different ids"):
            choose(settings(max_steps=0), hub_encoder.open_newest(folder)[1])
        return
    theirs = opened(folder)
    study = embeddings(folder, TEXTS, protocol="study")
    by_cosine = "similarity_fn_name" not in case["files"]["config_sentence_transformers.json"]
    for found, other, encode in zip(embeddings(folder, TEXTS), study, (theirs.encode_query, theirs.encode_document)):
        expected = encode(TEXTS, normalize_embeddings=by_cosine)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert np.abs(other - expected).max() > 0.01


def test_a_folder_of_our_own_architecture_has_its_own_way_too(encoder, tmp_path):
    checkpoint.export(encoder, tmp_path / "model", "eurobert")
    theirs = opened(tmp_path / "model")
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
    assert (result["zero_shot"], result["settings"]["protocol"], result["steps"]) == (True, "its own", 0)
    assert result["examples"] == {"train": 0, "validation": 0, "test": 6} and result["metrics"]["validation"] == {}
    (row,), _ = read_results(tmp_path, [tmp_path / "out"], "field", {})
    assert row.task == "ir (zero-shot)" and row.pretraining == "pretrained elsewhere"


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
    ours = np.stack(predict(model, [task.item("", text) for text in TEXTS]))
    np.testing.assert_allclose(opened("exported/search").encode_document(TEXTS), ours, atol=1e-5)
