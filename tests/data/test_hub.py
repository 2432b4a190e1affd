"""Model folders of the hub: in and out against transformers, and what is refused."""

import json
import math
import os
import re
import shutil
import sys
from copy import deepcopy
from functools import partial
from unittest.mock import MagicMock, call

import pytest
import torch

import checkpoint
import model as model_py
from data.objective import CLM, MLM
from data.prepare import prepare
from errors import DataError
from eval.sample import continue_text
from eval.tasks.model import TaskModel, predict
from eval.tasks.readers import Question, Sentence, Text
from eval.tasks.registry import Task
from eval.tasks.result import build, save_model
from eval.tasks.splits import Dataset
from helpers import ROOT, TINY
from encoder_helpers import export, random_state, random_weights
from model import ModelConfig, PretrainingLoss, Transformer
from study_helpers import state_of
from task_helpers import docs_block, score, settings

safetensors = pytest.importorskip("safetensors.torch", reason="model folders need the safetensors package")
pytest.importorskip("tokenizers", reason="the tokenizer of a model folder needs the tokenizers package")
transformers = pytest.importorskip("transformers", reason="model folders are compared with the library's models")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SIZES = dict(n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=48, seq_len=64)  # of our model
QWEN3 = dict(SIZES, head_dim=16, qk_norm=True)
# SHAPE: the same, of the library's config. CLASSES: Llama 3.2, Qwens and EuroBERTs, some with rows that no token has.
# CONFIGS: class, what its config has of its own, how config.json is changed (GONE: without it), what the error says, if
# anything.
SHAPE, CLASSES, CONFIGS = json.loads((ROOT / "tests/data/hub_configs.json").read_text()).values()
TEXTS = ["Return the list of the object.", "An error is raised", "naïve  text\n\tof two lines 🙂"]
TOKENS = torch.randint(0, 4000, (3, 40), generator=torch.Generator().manual_seed(1))
STATE = random_state(SIZES)
assert_close = partial(torch.testing.assert_close, atol=1e-4, rtol=0)
assert_equal = partial(torch.testing.assert_close, atol=0, rtol=0)
LABELS = ["O", "B-PER", "B-LOC"]
WORDS_TO_TAG = ["Germany", "'s", "U.N.", "naïve", "(", "日本", ")", "won", "3-1", "🙂", "Germany", "."]
CAUSAL = {"fine_tuned": dict(family="qa", settings=dict(causal=True))}
ODD, NAN = "ckpt-650.pt: its records are not as", torch.full((4096, 32), math.nan)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """{kind: a folder with a model and its tokenizer, which transformers has not seen}."""
    tmp = tmp_path_factory.mktemp("hub")
    return {kind: export(STATE, tmp / kind, kind) for kind in ("llama", "eurobert")}


def configure(folder, changes):
    facts = json.loads((folder / "config.json").read_text()) | changes
    facts = {name: value for name, value in facts.items() if value != "GONE"}
    (folder / "config.json").write_text(json.dumps(facts))


def hub_folder(folder, exported, name, own):
    """Return a folder with a tiny model of a class of transformers, whose config has `own`, and a tokenizer."""
    cls = getattr(transformers, name)
    theirs = random_weights(cls(cls.config_class(**SHAPE | own)))
    theirs.to(torch.bfloat16).save_pretrained(folder)
    for file in "tokenizer.json", "tokenizer_config.json":
        shutil.copy(exported["eurobert"] / file, folder)
    return folder


@torch.no_grad()
def load_and_compare(folder):
    """Return the model of a folder, in fp32, after comparing what it computes with the class in its config.json."""
    state = checkpoint.load(folder)
    model = checkpoint.model_from(state)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    ours = model(TOKENS, causal=state["is_causal"] and "EuroBert" not in name)
    there = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
    assert_close(ours if name.endswith("Model") else model.logits(ours), there(TOKENS)[0])
    return model


# ----------------------------------------------------------------------------
# In


def stored(folder):
    return safetensors.load_file(folder / "model.safetensors")


def store(folder, weights, to="model.safetensors"):
    """Write {name: tensor, None for nothing} into a folder."""
    weights = {name: x.clone() for name, x in weights.items() if x is not None}
    safetensors.save_file(weights, folder / to, {"format": "pt"})


def prefix_gone(weights):
    return {name.removeprefix("model."): x for name, x in weights.items()}


def shard(folder):
    """Replace the file with the weights by several and an index, beside one of an older set."""
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="150KB")
    shutil.copy(min(folder.glob("model-*")), folder / "model-00001-of-00009.safetensors")
    (folder / "model.safetensors").unlink()


EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
DOWN, BIAS = "model.layers.0.mlp.down_proj.weight", "model.layers.0.self_attn.o_proj.bias"
TIED = dict(tie_word_embeddings=True)
FILES = [  # what the config of a Llama has of its own, what is done to folder and weights, what the error says
    (TIED, lambda f, w: store(f, w | {HEAD: w[EMBEDDING], EMBEDDING: None}), ""),
    (TIED, lambda f, w: store(f, w | {HEAD: w[EMBEDDING].half(), EMBEDDING: w[EMBEDDING].half().float()}), ""),
    (TIED, lambda f, w: store(f, prefix_gone(w)), ""),
    ({}, lambda f, w: store(f, w | {BIAS: torch.zeros(32)}), ""),
    ({}, lambda f, w: store(f, w | {NORM: w[NORM] + 1}, "model.fp16.safetensors"), ""),
    ({}, lambda f, w: shard(f), ""),
    ({}, lambda f, w: (shard(f), store(f, w | {NORM: w[NORM] + 1})), ""),
    (TIED, lambda f, w: store(f, w | {HEAD: w[EMBEDDING] + 1}), "lm_head.weight is another weight: set it to"),
    ({}, lambda f, w: store(f, w | {NORM: None, DOWN: torch.zeros(3), "score": w[HEAD]}),
     r": .*.0.mlp.down_proj.weight: \(3,\), expected \(32, 48\); model.norm.weight: nothing, expected \(32,\); "
     r"score: \(4096, 32\), expected nothing$"),
    ({}, lambda f, w: (f / "model.safetensors").rename(f / "model.fp16.safetensors"), "missing or .* rename a file of"),
    ({}, lambda f, w: (f / "adapter_config.json").write_text("{}"), "has an adapter, .*: merge it"),
]  # fmt: skip


@pytest.mark.parametrize("name, own, change, message", [*CONFIGS, *(("Llama", *row) for row in FILES)])
def test_a_folder_computes_what_it_does_in_transformers_or_is_refused(exported, tmp_path, name, own, change, message):
    folder = hub_folder(tmp_path / "in", exported, f"{name}For{'MaskedLM' if name == 'EuroBert' else 'CausalLM'}", own)
    if isinstance(change, dict):
        configure(folder, change)
    else:
        change(folder, stored(folder))
    if not message:
        load_and_compare(folder)
        return
    with pytest.raises((DataError, ValueError), match=message):  # the latter: a text longer than seq_len
        checkpoint.load_model(folder)(TOKENS, True)


@pytest.mark.parametrize("name, own", CLASSES)  # class, what its config has of its own
def test_in_trained_and_out_again(exported, tmp_path, name, own):
    """A model comes in, is trained for a step, and goes out as a decoder and, but for a Qwen 3, as an encoder."""
    model = load_and_compare(hub_folder(tmp_path / "in", exported, name, own))
    if name == "EuroBertModel":  # without a head; it goes out without one, too
        bare = export(state_of(model, {}), tmp_path / "bare", "eurobert")
        assert not model.head.weight.any() and '"EuroBertModel"' in (bare / "config.json").read_text()
    before = deepcopy(model.state_dict())
    batch = dict(tokens=TOKENS, positions=torch.arange(120), targets=TOKENS.flatten())
    PretrainingLoss(model)(batch, causal=False)[0].backward()
    torch.optim.AdamW(model.parameters(), 1e-2).step()
    assert not any(torch.equal(before[name], x) for name, x in model.state_dict().items())
    for kind in ["qwen3"] if "Qwen3" in name else ["llama", "eurobert"]:
        back = load_and_compare(export(state_of(model, {}), tmp_path / kind, kind))
        assert back.config == model.config
        assert_equal(back.state_dict(), model.state_dict())


def test_the_models_of_the_study(exported, tmp_path):
    """They have no head, and a special token may have another name in the tokenizer."""
    folder, reports = shutil.copytree(exported["llama"], tmp_path / "theirs"), []
    own = dict(model_type="sl_model", is_causal=False, mask_token="<|mask|>", mask_token_id=4092, bos_token_id=4094)
    configure(folder, own)
    (folder / "tokenizer_config.json").unlink()
    store(folder, prefix_gone(stored(folder)) | {HEAD: None})
    state = checkpoint.load(folder, reports.append)
    assert state["tokenizer"]["mask_id"] == 4092 and state["tokenizer"]["bos_id"] == 4094
    assert len(reports) == 1 and "an encoder without a head" in reports[0]
    zeros = {"head.weight": torch.zeros(4096, 32)}
    assert_equal(state["model"], checkpoint.load(exported["llama"])["model"] | zeros)


def test_new_tokens_begin_as_the_mean(exported, tmp_path):
    """A vocabulary smaller than the tokenizer's grows; no old logit changes."""
    folder, reports = shutil.copytree(exported["llama"], tmp_path / "small"), []
    configure(folder, dict(vocab_size=4000))
    weights = stored(folder)
    store(folder, weights | {name: weights[name][:4000] for name in (EMBEDDING, HEAD)})
    grown = checkpoint.load(folder, reports.append)
    for name in "embedding.weight", "head.weight":
        rows = STATE["model"][name][:4000]
        assert_equal(grown["model"][name], torch.cat((rows, rows.mean(0).expand(96, -1))))
    assert "96 new tokens begin as the mean of the 4000 old ones" in reports[0]


def test_a_name_on_the_hub_is_downloaded(exported, monkeypatch):
    hub = MagicMock()
    hub.snapshot_download.side_effect = [exported["llama"], exported["llama"], OSError("no network")]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert checkpoint.load_model("hf:org/tiny").config.d_ff == 48 == checkpoint.shape("hf:org/tiny")["d_ff"]
    patterns = ("*.json", "model*.safetensors"), ("config.json",)
    assert hub.snapshot_download.call_args_list == [call("org/tiny", allow_patterns=its) for its in patterns]
    with pytest.raises(DataError, match="hf:org/other: it cannot be downloaded .*no network"):
        checkpoint.load("hf:org/other")


def test_train_from_a_folder(train, tmp_path):
    """With the preset that takes shape and weights of the folder: a Qwen 3."""
    folder = export(random_state(QWEN3, [CLM()]), tmp_path / "tiny", "qwen3")
    prepare(ROOT / "LESSON.md", tmp_path / "data", folder, val_fraction=0.1)
    args = [ROOT / "config/continue.py", *(arg for arg in TINY if not arg.startswith(("--n_", "--d_")))]
    args += "--compile=False --switch_step=0 --lr=1e-9 --max_steps=4 --warmup_steps=1 --decay_steps=1".split()
    train(1, *args, f"--data={tmp_path / 'data'}", f"--out_dir={tmp_path / 'out'}", f"--init_from={folder}")
    first = checkpoint.load(tmp_path / "out")
    assert first["config"] == vars(ModelConfig(**QWEN3)) | dict(seq_len=32)
    assert_close(first["model"], dict(checkpoint.load_model(folder).state_dict()), atol=1e-6)


# ----------------------------------------------------------------------------
# Out, with the code of the model card and of docs/hub.md


def run_card(folder, monkeypatch):
    """Run the code of a folder's model card beside the folder; return its variables, with the card as `card`."""
    monkeypatch.chdir(folder.parent)
    variables = {"card": (folder / "README.md").read_text()}
    assert "/some/folder" not in variables["card"] and str(folder.parent) not in variables["card"]
    for code in docs_block("def answer", "hub"), *re.findall(r"```python\n(.*?)```", variables["card"], re.S):
        exec(code, variables)
    return variables


@pytest.mark.parametrize("shape, objective, kind, name", [
    (SIZES, MLM(), "eurobert", "EuroBertForMaskedLM"),
    (SIZES, MLM(0.4, "before"), "eurobert", "EuroBertModel"),
    (QWEN3, MLM(), "qwen3", "Qwen3Model"),
    (QWEN3 | dict(tie_embeddings=True), MLM(0.4, "before"), "qwen3", "Qwen3Model"),
])  # fmt: skip
def test_encoders_of_texts(shape, objective, kind, name, tmp_path, monkeypatch):
    """A padded batch of texts in, the mean of the hidden states out, in sentence-transformers as in ours. An encoder
    that predicts from the position before has no head for masks. A Qwen 3 has none in transformers."""
    library = pytest.importorskip("sentence_transformers")
    state = random_state(shape, [CLM(), objective])
    folder = export(state, tmp_path / "out", kind)
    assert json.loads((folder / "config.json").read_text())["architectures"] == [name]
    model, tokenizer = load_and_compare(folder), checkpoint.tokenizer_of(state)
    ids = [[*tokenizer.encode(text), tokenizer.eos_id] for text in TEXTS]
    with torch.no_grad():
        expected = torch.stack([model(torch.tensor([one]), False)[0].mean(0) for one in ids])
    embedder = library.SentenceTransformer(str(folder), device="cpu")
    assert_close(torch.from_numpy(embedder.encode_query(TEXTS)), expected)  # a model without prompts
    found = run_card(folder, monkeypatch)
    assert ("no head that fills in masks" in found["card"]) == (name != "EuroBertForMaskedLM")
    if name == "EuroBertForMaskedLM":
        assert len(found["model"]("Return the [MASK] of the list.", top_k=3)) == 3
    checkpoint.export(folder, tmp_path / "again", kind)  # an encoder stays one
    for folder in "out", "again":
        config = json.loads((tmp_path / folder / "config.json").read_text())
        assert config.get("is_causal") == (False if kind == "qwen3" else None)


def test_a_decoder_continues_texts(exported, monkeypatch):
    """The likeliest tokens are those of eval.sample."""
    found = run_card(exported["llama"], monkeypatch)
    assert found["card"].count("CLM for 1 steps, then MLM (40 % masked) for 1 steps.") == 1, found["card"]
    model, tokenizer, generate = checkpoint.model_from(STATE), checkpoint.tokenizer_of(STATE), found["model"]
    for prompt in "Return the", "a", "":
        expected = continue_text(model, tokenizer, prompt, 12, temperature=0)
        assert len(expected) > len(prompt) + 9
        assert generate(prompt, max_new_tokens=12, do_sample=False)[0]["generated_text"] == expected
    assert generate.model.config.bos_token_id == 4095


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """tuned(family, labels, kind, ...) -> (folder, the family's task, a function from Items to outputs, run_card)."""

    def fine_tuned(family, labels=(), kind="eurobert", may_be_none=False, threshold=0.0, **facts):
        base = STATE if kind == "eurobert" else random_state(QWEN3, [])  # the latter is of the hub
        cfg = settings(max_len=40, train="/some/folder/train.csv", out_dir=str(tmp_path))
        dataset = Dataset("toy", family, [*labels], [], {}, {}, counts={}, main={}, task=Task(family, **facts))
        task, model = build(cfg, dataset, base)
        random_weights(model)
        task.may_be_none, task.threshold = may_be_none, threshold
        save_model(cfg, dataset, task, model, base)
        checkpoint.export(tmp_path / "model.pt", tmp_path / "toy", kind)
        found = run_card(tmp_path / "toy", monkeypatch)
        assert ("the model that it began with" in found["card"]) == (kind == "qwen3")
        return tmp_path / "toy", task, partial(predict, model), found

    return fine_tuned


@pytest.mark.parametrize("labels, form", [(LABELS, 'Premise: "{}"\nHypothesis: {}'), ([], "")])
def test_a_classifier_goes_out(tuned, labels, form):
    """One that gives each text a label, and one that gives it a number."""
    _, task, predict, found = tuned("sc", labels, form=form, columns=("a", "b"))
    assert found["form"] == (form or "{}\n{}")
    for text in found["form"].replace("{}", "A text."), "word " * 60:
        (logits,) = predict(task.items(Text(text, labels[0] if labels else 0.0), None))
        scores = torch.from_numpy(logits).softmax(-1).tolist() if labels else [float(logits[0])]
        there = {answer["label"]: answer["score"] for answer in found["model"](text, top_k=None, truncation=True)}
        assert there == pytest.approx(dict(zip(labels or ["number"], scores)), abs=1e-5)


@pytest.mark.parametrize("kind", ["eurobert", "qwen3"])
def test_a_tagger_goes_out(tuned, kind):
    """Words that were split before get the ids of the training, the first one too, and so does a plain sentence."""
    folder, task, predict, found = tuned("tc", LABELS, kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [WORDS_TO_TAG, WORDS_TO_TAG[2:], ["word"] * 60]
    items = [task.items(Sentence(words, ["O"] * len(words)), None)[0] for words in texts]
    for words, item in zip(texts, items):
        batch = tokenizer(words, is_split_into_words=True, truncation=True)
        assert batch.input_ids == item.ids and batch.word_ids() == [*item.extra, None]
        assert tokenizer(" ".join(words), truncation=True).input_ids == item.ids
    batch = tokenizer(texts, is_split_into_words=True, truncation=True, padding=True, return_tensors="pt")
    model, ours = transformers.AutoModelForTokenClassification.from_pretrained(folder), predict(items)
    for logits, there in zip(ours, model(**batch).logits, strict=True):  # rows are padded at their ends
        assert_close(there[: len(logits)], torch.from_numpy(logits), atol=1e-5)
    there = [token["entity"] for token in found["model"](" ".join(WORDS_TO_TAG), ignore_labels=[])]
    assert there == [LABELS[i] for i in ours[0][:-1].argmax(-1)]


@pytest.mark.parametrize("may_be_none, threshold", [(False, 0.0), (True, 0.5), (True, 20.0)])
def test_answers_by_the_code_of_the_docs(tuned, may_be_none, threshold):
    _, task, predict, found = tuned("qa", may_be_none=may_be_none, threshold=threshold)
    answer = partial(found["answer"], found["tokenizer"], found["model"])
    assert answer("What?", "", threshold, may_be_none) == ""
    lengths = []
    for text in [*TEXTS, "The Bengal tiger, of course, lives in Müllheim – 3,500 km 🙂 away."]:
        for question in "What?", "Where is it? " * 9:
            there = answer(question, text, threshold, may_be_none)  # mostly in several windows
            example = Question("1", question, text, [(there, text.index(there))] if there else [])
            assert score(task, predict, [example], "test")["exact_match"] == 100
            lengths.append(len(there))
    assert (max(lengths) == 0) == (threshold == 20.0) and (min(lengths) > 0 or may_be_none)


@pytest.mark.parametrize("kind", ["eurobert", "qwen3"])
def test_a_retriever_goes_out_with_its_prompts(tuned, kind):
    pytest.importorskip("sentence_transformers")
    _, task, predict, found = tuned("ir", (), kind)
    model = found["model"]
    assert model.max_seq_length == 40 and model.similarity_fn_name == "cosine" and found["documents"].shape == (2, 32)
    texts = [*TEXTS, "word " * 60]
    for encode, prompt in (model.encode_query, task.protocol.query), (model.encode_document, task.protocol.document):
        ours = torch.stack([*map(torch.from_numpy, predict([task.item(prompt, text) for text in texts]))])
        assert_close(torch.from_numpy(encode(texts, normalize_embeddings=True)), ours, atol=1e-5)
        assert not torch.allclose(torch.from_numpy(model.encode(texts, normalize_embeddings=True)), ours, atol=0.01)


def test_merging_by_the_code_of_the_docs(tmp_path, monkeypatch):
    other = random_state(SIZES, seed=1)
    monkeypatch.chdir(tmp_path)
    for name, one in ("encoder", STATE), ("decoder", other):
        os.makedirs(f"out/{name}")
        checkpoint.save(f"out/{name}/ckpt-650.pt", one)
    exec(docs_block("torch.lerp", "hub"), {})
    merged = checkpoint.load("out/merged.pt")["model"]
    for name, x in STATE["model"].items():
        torch.testing.assert_close(merged[name], 0.75 * x + 0.25 * other["model"][name])


@pytest.fixture
def demo(exported, tmp_path, monkeypatch):
    """An encoder in exported/demo, as in the docs."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(exported["eurobert"], "exported/demo")


def test_training_an_exported_encoder_by_the_code_of_the_docs(demo):
    """The queries come closer to their documents than to the hard negatives, also with half of the numbers."""
    library = pytest.importorskip("sentence_transformers")
    code = docs_block("MatryoshkaLoss", "hub").replace("[128, 64, 32]", "[32, 16]").replace("lr=2e-5", "lr=1e-3")
    batch = ["how to sort", "open it"], ["Return a list.", "The file is here."], ["Sort of.", "Closed."]
    exec(code, {"batches": [batch] * 20})
    model = library.SentenceTransformer("exported/demo-retriever", truncate_dim=16, device="cpu")
    queries, documents, negatives = map(model.encode, batch)
    lead = model.similarity_pairwise(queries, documents) - model.similarity_pairwise(queries, negatives)
    assert (lead > 0.2).all()


def test_onnx_by_the_code_of_the_docs(demo):
    pytest.importorskip("onnxscript")
    library = pytest.importorskip("onnxruntime")
    exec(docs_block("torch.onnx", "hub"), variables := {})
    session = library.InferenceSession("demo.onnx")
    batch = variables["tokenizer"]([*TEXTS, "word " * 40], padding=True, return_tensors="pt")
    (found,) = session.run(["hidden"], {name: batch[name].numpy() for name in variables["names"]})
    real = batch.attention_mask.bool()
    assert_close(torch.from_numpy(found)[real], variables["model"](**batch).last_hidden_state[real])


# ----------------------------------------------------------------------------
# What does not go out


def test_an_edited_model_does_not_go_out(tuned, monkeypatch, tmp_path):
    """Another pooling in a model that was fine-tuned; a capped head; a window that shows in long texts only."""
    logits, distance = Transformer.logits, torch.arange(1024) - torch.arange(1024)[:, None]

    def maximum(self, tokens, doc_start, doc_end, positions, lengths):
        hidden = self.encoder(tokens, self.causal, doc_start, doc_end).flatten(0, 1)[positions]
        return torch.stack([text.amax(0) for text in hidden.split(lengths.tolist())])

    def pretrained(seq_len=64):
        export(random_state(SIZES | dict(seq_len=seq_len), attention="reference"), tmp_path / "toy", "eurobert")

    for owner, name, edit, go_out in [
        (TaskModel, "forward", maximum, partial(tuned, "ir")),
        (Transformer, "logits", lambda self, x: 30 * (logits(self, x) / 30).tanh(), pretrained),
        (model_py, "attention_mask", lambda *args, **options: distance.abs() < 512, partial(pretrained, 1024)),
    ]:
        with monkeypatch.context() as patch, pytest.raises(DataError, match="computes something else than"):
            patch.setattr(owner, name, edit)
            go_out()
        assert {*os.listdir(tmp_path)} <= {"model.pt"}
    with pytest.raises(DataError, match="no place for positions"):  # a parameter of Transformer itself
        checkpoint.hub().hub_views({"positions": distance})


@pytest.mark.parametrize("shape, changes, kind, message", [  # changes: of the checkpoint's dict
    (SIZES, CAUSAL, "eurobert", "fine-tuned with causal=True"),
    (QWEN3, {}, "llama", "--as=llama cannot express it .*for decoder, .*True"),
    (SIZES, {"phases": [dict(phase="mlm", steps=1, objectives=None)]}, "eurobert", ODD),
    (SIZES, {"model": STATE["model"] | {"embedding.weight": NAN}}, "eurobert", "not finite"),
])  # fmt: skip
def test_what_cannot_go_out(tmp_path, shape, changes, kind, message):
    with pytest.raises(DataError, match=message):
        export(random_state(shape) | changes, tmp_path / "out", kind)
    assert os.listdir(tmp_path) == []


def test_an_export_is_whole_or_absent_and_deletes_nothing_of_others(tmp_path, monkeypatch):
    path, other = tmp_path / "run/ckpt-650.pt", f"other.{os.getpid()}.partial"
    for name in "run", other:
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    checkpoint.save(path, STATE)
    for name, error in ("run", DataError), ("link", DataError), ("other", FileExistsError):
        with pytest.raises(error, match="exists, and is not replaced|File exists"):
            checkpoint.export(path, tmp_path / name, "eurobert")
    for fault in KeyboardInterrupt, OSError("no space"):
        monkeypatch.setattr(safetensors, "save_file", MagicMock(side_effect=fault))
        with pytest.raises((KeyboardInterrupt, OSError)):
            checkpoint.export(path, tmp_path / "another", "eurobert")
        assert sorted(os.listdir(tmp_path)) == ["link", other, "run"]


@pytest.mark.slow
def test_mteb_by_the_script_of_the_docs(demo, monkeypatch, capsys):
    """With a made-up task in place of those of the hub."""
    mteb = pytest.importorskip("mteb")
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.sts import AbsTaskSTS

    texts = [f"sort the list {i}" for i in range(30)]
    rows = Dataset.from_dict(dict(sentence1=texts, sentence2=texts[::-1], score=[*range(30)]))

    class StandIn(AbsTaskSTS):
        metadata = mteb.get_task("STSBenchmark").metadata.model_copy(update={"name": "StandIn"})

        def load_data(self, **options):
            self.dataset, self.data_loaded = DatasetDict({"test": rows}), True

    monkeypatch.setattr(mteb, "get_tasks", lambda tasks: [StandIn()])
    exec(docs_block("import mteb", "hub"), {})
    assert re.search(r"^StandIn: -?\d+\.\d$", capsys.readouterr().out, re.M)
