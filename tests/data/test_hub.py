"""Model folders of the hub: in and out against transformers, and what is refused."""

import json
import math
import os
import random
import re
import shutil
import sys
from copy import deepcopy
from functools import reduce
from operator import getitem
from unittest.mock import MagicMock, call

import pytest
import torch

import checkpoint
import model
from data import hub, objective
from data.prepare import prepare
from data.tokenizer import Tokenizer
from errors import Damaged, DataError
from eval.sample import continue_text
from eval.tasks import metrics
from eval.tasks.model import TaskModel, predict
from eval.tasks.readers import Question, Sentence, Text
from eval.tasks.registry import Task
from eval.tasks.result import build, save_model
from eval.tasks.splits import Dataset
from helpers import ROOT, TINY, WORDS, assert_same_end, copy_up_to, record
from hub_helpers import LLAMA3, SHAPE, TOKENS, close, random_weights
from model import ModelConfig, PretrainingLoss, Transformer
from study_helpers import state_of
from task_helpers import docs_block, settings

safetensors = pytest.importorskip("safetensors.torch", reason="model folders need the safetensors package")
pytest.importorskip("tokenizers", reason="the tokenizer of a model folder needs the tokenizers package")

MODELS = {  # class in transformers, what its config has of its own
    "llama": ("LlamaForCausalLM", {}),
    "llama 3.2": ("LlamaForCausalLM", dict(tie_word_embeddings=True, rope_parameters=LLAMA3, head_dim=16)),
    "llama 3.2 of transformers 4": ("LlamaForCausalLM", dict(rope_parameters=LLAMA3)),
    "qwen2": ("Qwen2ForCausalLM", dict(rope_parameters=dict(rope_type="default", rope_theta=1e6), head_dim=16)),
    "qwen3": ("Qwen3ForCausalLM", dict(rope_parameters=dict(rope_type="default", rope_theta=1e6), head_dim=16)),
    "tied qwen3": ("Qwen3ForCausalLM", dict(tie_word_embeddings=True, head_dim=24)),
    "eurobert": ("EuroBertForMaskedLM", dict(mask_token_id=4092)),
    "bare eurobert": ("EuroBertModel", dict(mask_token_id=4092)),
}
SETTINGS = dict(max_steps=650, global_batch_tokens=4096, seed=0, lr=1e-3, data="/some/folder/prepared/books")
SETTINGS |= dict(branch_from="", init_from="/some/folder/out/mlm/ckpt-400.pt")
TEXTS = ["Return the list of the object.", "An error is raised", "naïve  text\n\tof two lines 🙂"]


@pytest.fixture(scope="module")
def transformers():
    module = pytest.importorskip("transformers")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


def random_state(shape, seed=0, settings=SETTINGS, **more):
    """A checkpoint's dict with random weights. shape: fields of a ModelConfig."""
    return state_of(random_weights(Transformer(ModelConfig(**shape)), seed), settings, **more)


def write(state, folder, kind, path="ckpt-650.pt"):
    hub.write_folder(state, checkpoint.model_from(state), path, folder, kind)


SIZES = dict(n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=48, seq_len=64)
QWEN3 = dict(SIZES, head_dim=16, qk_norm=True)
MLM, MNTP, CLM = record({objective.MLM(): [0]}, {objective.MLM(0.4, "before"): [0]}, {objective.CLM(): [0]})


@pytest.fixture(scope="module")
def state():
    return random_state(SIZES)


@pytest.fixture(scope="module")
def folder(state, tmp_path_factory):
    """A model folder with tokenizer, which transformers has not seen."""
    tmp = tmp_path_factory.mktemp("hub")
    write(state, tmp / "tiny", "llama")
    return tmp / "tiny"


@pytest.fixture
def copy(folder, tmp_path):
    """copy(config={...}, drop=(...), add={...}) -> a copy of the folder, with these changes."""

    def change(config=None, drop=(), add=None):
        new = shutil.copytree(folder, tmp_path / "changed")
        facts = json.loads((new / "config.json").read_text()) | (config or {})
        (new / "config.json").write_text(json.dumps(facts))
        weights = safetensors.load_file(folder / "model.safetensors")
        weights = {k: v for k, v in weights.items() if k not in drop} | (add or {})
        safetensors.save_file(weights, new / "model.safetensors")
        return new

    return change


@torch.no_grad()
def logits(model, causal):
    return model.logits(model(TOKENS, causal))


@pytest.mark.parametrize("name", MODELS)
def test_in_trained_and_out_again(transformers, name, tmp_path):
    """Equal logits when a model comes in, and, after a step of training here, when it goes out, under both masks.

    The folder is in bfloat16. Configs of transformers 4 have rope_theta and rope_scaling.
    """
    cls, own = MODELS[name]
    cls, causal = getattr(transformers, cls), "euro" not in name
    theirs = random_weights(cls(cls.config_class(**SHAPE, **own))).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "in", max_shard_size="50KB" if name == "llama" else "1GB")
    for file, content in hub.tokenizer_files(Tokenizer.load("embedded"), 64).items():
        (tmp_path / "in" / file).write_text(json.dumps(content))
    assert (tmp_path / "in/model.safetensors.index.json").exists() == (name == "llama")
    if "4" in name:
        config = json.loads((tmp_path / "in/config.json").read_text())
        rope = config.pop("rope_parameters")
        config |= dict(rope_theta=rope.pop("rope_theta"), rope_scaling=rope | {"type": rope.pop("rope_type")})
        (tmp_path / "in/config.json").write_text(json.dumps(config))
    theirs = cls.from_pretrained(tmp_path / "in", dtype=torch.float32).eval()
    model = checkpoint.load_model(tmp_path / "in")
    assert bool(model.config.rope_scaling) == ("llama 3.2" in name)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    with torch.no_grad():
        if name.startswith("bare"):
            torch.testing.assert_close(model(TOKENS, False), theirs(TOKENS)[0], **close)
            assert not model.head.weight.any()
        else:
            torch.testing.assert_close(logits(model, causal), theirs(TOKENS).logits, **close)
    kinds = [("llama", "AutoModelForCausalLM", True), ("eurobert", "AutoModelForMaskedLM", False)]
    if "qwen3" in name:
        kinds = [("qwen3", "AutoModelForCausalLM", True)]

    optimizer, before = torch.optim.AdamW(model.parameters(), 1e-2), logits(model, causal)
    batch = dict(tokens=TOKENS, positions=torch.arange(120), targets=TOKENS.flatten())
    PretrainingLoss(model)(batch, causal=False)[0].backward()
    optimizer.step()
    assert not torch.allclose(before, logits(model, causal), atol=0.1)
    assert (model.head.weight is model.embedding.weight) == model.config.tie_embeddings
    checkpoint.save(tmp_path / "ckpt-1.pt", state_of(model, {}))
    for kind, auto, causal in kinds:
        checkpoint.export(tmp_path / "ckpt-1.pt", tmp_path / kind, kind)
        there, info = getattr(transformers, auto).from_pretrained(tmp_path / kind, output_loading_info=True)
        assert not any(info.values()), info
        with torch.no_grad():
            torch.testing.assert_close(there(TOKENS).logits, logits(model, causal), **close)
        back = checkpoint.load_model(tmp_path / kind)
        assert back.config == model.config
        torch.testing.assert_close(back.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_the_models_of_the_study(folder, copy):
    """Their config.json names code of their own; a special token may have another name in the tokenizer."""
    own = dict(model_type="sl_model", architectures=["SLModel"], auto_map={"AutoModel": "modeling_sl_model.SLModel"})
    own |= dict(is_causal=False, mask_token="<|mask|>", mask_token_id=4092, bos_token="<s>", bos_token_id=4094)
    weights = safetensors.load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): x for name, x in weights.items() if name != hub.HEAD}
    theirs, reports = copy(own, weights, bare), []
    (theirs / "tokenizer_config.json").unlink()
    state, expected = hub.load(theirs, reports.append), hub.load(folder, print)["model"]
    assert state["tokenizer"]["mask_id"] == 4092 and state["tokenizer"]["bos_id"] == 4094
    assert len(reports) == 1 and "an encoder without a head" in reports[0]
    expected["head.weight"].zero_()
    torch.testing.assert_close(state["model"], expected, atol=0, rtol=0)


@pytest.mark.parametrize("shape, phase, kind, name", [
    (SIZES, MLM, "eurobert", "EuroBertForMaskedLM"),
    (SIZES, MNTP, "eurobert", "EuroBertModel"),
    (QWEN3, MLM, "qwen3", "Qwen3Model"),
    (QWEN3 | dict(tie_embeddings=True), MNTP, "qwen3", "Qwen3Model"),
])  # fmt: skip
def test_encoders_of_texts(transformers, shape, phase, kind, name, tmp_path, monkeypatch):
    """A padded batch of texts in, the mean of the hidden states out, in sentence-transformers as in ours.

    An encoder that predicts from the position before has no head for masks. A Qwen 3 has none in transformers.
    """
    library = pytest.importorskip("sentence_transformers")
    state = random_state(shape, phases=[CLM, phase])
    write(state, tmp_path / "out", kind)
    there, info = transformers.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert info["missing_keys"] == set() and there.config.architectures == [name]
    model, tokenizer = checkpoint.model_from(state), checkpoint.tokenizer_of(state)
    ids = [[*tokenizer.encode(text), tokenizer.eos_id] for text in TEXTS]
    with torch.no_grad():
        expected = torch.stack([model(torch.tensor([one]), False)[0].mean(0) for one in ids])
    embedder = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    for encode in embedder.encode, embedder.encode_query:  # a model without prompts
        torch.testing.assert_close(torch.from_numpy(encode(TEXTS)), expected, **close)
    card = card_of(tmp_path / "out")
    assert ("no head that fills in masks" in card) == (name != "EuroBertForMaskedLM")
    assert ("does not depend on the last token" in card) == (kind == "qwen3")
    checkpoint.export(tmp_path / "out", tmp_path / "again", kind)  # an encoder stays one
    again = json.loads((tmp_path / "again/config.json").read_text())
    assert again.get("is_causal") == there.config.to_dict().get("is_causal") == (False if kind == "qwen3" else None)
    run_card(tmp_path / "out", monkeypatch)


def test_an_edited_head_or_pooling_does_not_go_out(transformers, tuned, monkeypatch):
    """A model that was fine-tuned with another activation, or with the largest value instead of the mean."""
    forward = TaskModel.forward

    def relu(self, **batch):
        self.head[1] = torch.nn.ReLU()
        return forward(self, **batch)

    def maximum(self, tokens, doc_start, doc_end, positions, lengths):
        hidden = self.encoder(tokens, self.causal, doc_start, doc_end).flatten(0, 1)[positions]
        return torch.stack([text.amax(0) for text in hidden.split(lengths.tolist())])

    for family, edited in ("sc", relu), ("ir", maximum):
        with monkeypatch.context() as patch, pytest.raises(DataError, match="does not compute from it what"):
            patch.setattr(TaskModel, "forward", edited)
            tuned(family, LABELS)


def test_an_edited_architecture_does_not_go_out(transformers, monkeypatch, tmp_path):
    """Not with another rotation, a capped head, or a part that the format does not have."""
    state = random_state(SIZES, phases=[MLM])
    rotate, logits = model.rotate, Transformer.logits
    edits = [
        (model, "rotate", lambda x, cos, sin: rotate(x, cos, -sin) if x.shape[2] == 2 else rotate(x, cos, sin)),
        (Transformer, "logits", lambda self, x: 30 * (logits(self, x) / 30).tanh()),
    ]
    for owner, name, new in edits:
        with monkeypatch.context() as patch, pytest.raises(DataError, match="does not compute from it what"):
            patch.setattr(owner, name, new)
            write(state, tmp_path / "out", "eurobert")
    long = random_state(SIZES | dict(seq_len=1024), phases=[MLM])  # with a sliding window of 511 to both sides
    t = torch.arange(1024)
    with monkeypatch.context() as patch, pytest.raises(DataError, match="does not compute from it what"):
        patch.setattr(model, "attention_mask", lambda T, *args, **options: (t[:T] - t[:T, None]).abs() < 512)
        long["settings"] = SETTINGS | dict(attention="reference")
        write(long, tmp_path / "out", "eurobert")
    state["model"]["blocks.0.gate.weight"] = torch.zeros(2, 2)
    with pytest.raises(DataError, match="no place for blocks.0.gate.weight"):
        hub.write_folder(state, None, "ckpt-650.pt", tmp_path / "out", "eurobert")
    assert os.listdir(tmp_path) == []


def card_of(folder):
    return (folder / "README.md").read_text()


def run_card(folder, monkeypatch):
    """Run the code of a folder's model card beside the folder; return its variables."""
    monkeypatch.chdir(folder.parent)
    variables = {}
    for code in docs_block("def answer", "hub"), *re.findall(r"```python\n(.*?)```", card_of(folder), re.S):
        exec(code, variables)
    return variables


def test_the_card_of_an_encoder_and_of_a_decoder(transformers, state, tmp_path, monkeypatch):
    for kind in "eurobert", "llama":
        write(state, tmp_path / kind, kind, tmp_path / "ckpt-650.pt")
        card = card_of(tmp_path / kind)
        assert card.count("CLM for 200 steps, then MLM (40 % masked) for 450 steps.") == 1, card
        assert "/some/folder" not in card and str(tmp_path) not in card
    fill = run_card(tmp_path / "eurobert", monkeypatch)["model"]
    assert len(fill("Return the [MASK] of the list.", top_k=3)) == 3
    generate = run_card(tmp_path / "llama", monkeypatch)["model"]
    for prompt in "Return the", "a", "":  # the likeliest tokens are those of eval.sample
        model, tokenizer = checkpoint.model_from(state), checkpoint.tokenizer_of(state)
        expected = continue_text(model, tokenizer, prompt, 12, temperature=0)
        assert len(expected) > len(prompt) + 9
        assert generate(prompt, max_new_tokens=12, do_sample=False)[0]["generated_text"] == expected
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "llama")
    assert there("one", "two").input_ids == [4095, *there.encode("one")[1:], *there.encode("two")]
    assert there.bos_token_id == generate.model.config.bos_token_id == 4095


LABELS = ["O", "B-PER", "B-LOC"]
WORDS_TO_TAG = ["Germany", "'s", "U.N.", "naïve", "(", "日本", ")", "won", "3-1", "🙂", "Germany", "."]


@pytest.fixture
def tuned(state, tmp_path):
    """tuned(family, labels, kind, ...) -> (folder, the family's task, a function from Items to outputs)."""

    def export(family, labels=(), kind="eurobert", may_be_none=False, threshold=0.0, **facts):
        base = state if kind == "eurobert" else random_state(QWEN3, settings={})  # the latter is of the hub
        cfg = settings(max_len=40, train="/some/folder/train.csv", out_dir=str(tmp_path))
        dataset = Dataset("toy", family, [*labels], [], {}, {}, counts={}, main={}, task=Task(family, **facts))
        task, model = build(cfg, dataset, base)
        random_weights(model)
        task.may_be_none, task.threshold = may_be_none, threshold
        save_model(cfg, dataset, task, model, dict(steps=5, checkpoint=dict(name="demo-650")), base)
        checkpoint.export(tmp_path / "model.pt", tmp_path / "toy", kind)
        card = card_of(tmp_path / "toy")
        assert "/some/folder" not in card and ("the model that it began with" in card) == (kind == "qwen3")
        return tmp_path / "toy", task, lambda items: predict(model, items)

    return export


@pytest.mark.parametrize("labels, form", [(LABELS, 'Premise: "{}"\nHypothesis: {}'), ([], "")])
def test_a_classifier_goes_out(transformers, tuned, monkeypatch, labels, form):
    """One that gives each text a label, and one that gives it a number."""
    folder, task, predict = tuned("sc", labels, form=form, columns=("a", "b"))
    there = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert there.config.id2label == dict(enumerate(labels or ["number"]))
    found = run_card(folder, monkeypatch)
    classify = found["model"]
    for text in found["form"].replace("{}", "A text."), "word " * 60:
        (logits,) = predict(task.items(Text(text, labels[0] if labels else 0.0), None))
        scores = torch.from_numpy(logits).softmax(-1).tolist() if labels else [float(logits[0])]
        there = {answer["label"]: answer["score"] for answer in classify(text, top_k=None, truncation=True)}
        assert there == pytest.approx(dict(zip(labels or ["number"], scores)), abs=1e-4)
    assert found["form"] == (form or "{}\n{}")


@pytest.mark.parametrize("kind", ["eurobert", "qwen3"])
def test_a_tagger_goes_out(transformers, tuned, monkeypatch, kind):
    """Words that were split before get the ids of the training, the first one too, and so does a plain sentence."""
    folder, task, predict = tuned("tc", LABELS, kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.add_prefix_space
    for words in (WORDS_TO_TAG, WORDS_TO_TAG[2:], ["word"] * 60):
        (item,) = task.items(Sentence(words, ["O"] * len(words)), None)
        batch = tokenizer(words, is_split_into_words=True, truncation=True)
        assert batch.input_ids == item.ids and batch.word_ids() == [*item.extra, None]
        assert tokenizer(" ".join(words), truncation=True).input_ids == item.ids
    texts = [WORDS_TO_TAG, ["", "a"], WORDS_TO_TAG[:3]]
    batch = tokenizer(texts, is_split_into_words=True, truncation=True, padding=True, return_tensors="pt")
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    ours = predict([task.items(Sentence(words, ["O"] * len(words)), None)[0] for words in texts])
    for logits, there in zip(ours, model(**batch).logits, strict=True):  # rows are padded at their ends
        torch.testing.assert_close(there[: len(logits)], torch.from_numpy(logits), **close)

    pipeline = run_card(folder, monkeypatch)["model"]
    there = [token["entity"] for token in pipeline(" ".join(WORDS_TO_TAG), ignore_labels=[])]
    assert there == [LABELS[i] for i in ours[0][:-1].argmax(-1)]


@pytest.mark.parametrize("may_be_none, threshold", [(False, 0.0), (True, 0.5), (True, 20.0)])
def test_answers_by_the_code_of_the_docs(transformers, tuned, monkeypatch, may_be_none, threshold):
    folder, task, predict = tuned("qa", may_be_none=may_be_none, threshold=threshold)
    found, lengths = run_card(folder, monkeypatch), []

    def answer(question, context):
        return found["answer"](found["tokenizer"], found["model"], question, context, threshold, may_be_none)

    assert answer("What?", "") == ""
    for text in [*TEXTS, "The Bengal tiger, of course, lives in Müllheim – 3,500 km 🙂 away."]:
        for question in "What?", "Where is it? " * 9:
            there = answer(question, text)  # mostly in several windows
            question = Question("1", question, text, [(there, text.index(there))] if there else [])
            match = task.metrics(task.predict(predict, [question], "test"), [question])["exact_match"]
            assert metrics.score(match) == 100
            lengths.append(len(there))
    assert (max(lengths) == 0) == (threshold == 20.0) and (min(lengths) > 0 or may_be_none)


@pytest.mark.parametrize("kind", ["eurobert", "qwen3"])
def test_a_retriever_goes_out_with_its_prompts(tuned, monkeypatch, kind):
    pytest.importorskip("sentence_transformers")
    folder, task, predict = tuned("ir", (), kind)
    found = run_card(folder, monkeypatch)
    model = found["model"]
    assert model.max_seq_length == 40 and model.similarity_fn_name == "cosine" and found["documents"].shape == (2, 32)
    texts = [*TEXTS, "word " * 60]
    for encode, prompt in (model.encode_query, task.protocol.query), (model.encode_document, task.protocol.document):
        ours = torch.stack([*map(torch.from_numpy, predict([task.item(prompt, text) for text in texts]))])
        there = torch.from_numpy(encode(texts, normalize_embeddings=True))
        torch.testing.assert_close(there, ours, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(torch.from_numpy(model.encode(texts, normalize_embeddings=True)), ours, atol=0.01)


def test_merging_by_the_code_of_the_docs(state, tmp_path, monkeypatch):
    """A mean of the weights, which is exported as the encoder."""
    other = random_state(SIZES, seed=1)
    monkeypatch.chdir(tmp_path)
    for name, one in ("encoder", state), ("decoder", other):
        os.makedirs(f"out/{name}")
        checkpoint.save(f"out/{name}/ckpt-650.pt", one | {"optimizer": {}})
    exec(docs_block("torch.lerp", "hub"), {})
    merged = checkpoint.load("out/merged.pt")
    for name, x in state["model"].items():
        torch.testing.assert_close(merged["model"][name], 0.75 * x + 0.25 * other["model"][name])
    assert merged["settings"] == SETTINGS and "optimizer" not in merged
    checkpoint.export("out/merged.pt", "exported", "eurobert")


def test_training_an_exported_encoder_by_the_code_of_the_docs(state, tmp_path, monkeypatch):
    """The queries come closer to their documents than to the hard negatives, also with half of the numbers."""
    library = pytest.importorskip("sentence_transformers")
    monkeypatch.chdir(tmp_path)
    write(state, tmp_path / "exported/demo", "eurobert")
    code = docs_block("MatryoshkaLoss", "hub").replace("[256, 128, 64]", "[32, 16]").replace("lr=2e-5", "lr=1e-3")
    batch = ["how to sort", "open it"], ["Return a list.", "The file is here."], ["Sort of.", "Closed."]
    exec(code, {"batches": [batch] * 20})
    model = library.SentenceTransformer("exported/demo-retriever", truncate_dim=16, device="cpu")
    queries, *others = (model.encode(texts) for texts in batch)
    closer = [model.similarity_pairwise(queries, texts) for texts in others]
    assert (closer[0] - closer[1] > 0.2).all()


def test_onnx_by_the_code_of_the_docs(transformers, state, tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    library = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    write(state, tmp_path / "exported/demo", "eurobert")
    exec(docs_block("torch.onnx", "hub"), variables := {})
    session = library.InferenceSession("demo.onnx")
    for texts in TEXTS[:1], [*TEXTS, "word " * 40]:
        batch = variables["tokenizer"](texts, padding=True, return_tensors="pt")
        (found,) = session.run(["hidden"], {name: batch[name].numpy() for name in variables["names"]})
        expected = variables["model"](**batch).last_hidden_state
        real = batch.attention_mask.bool()
        torch.testing.assert_close(torch.from_numpy(found)[real], expected[real], **close)


@pytest.mark.slow
def test_mteb_by_the_script_of_the_docs(encoder, tmp_path, monkeypatch, capsys):
    """With a made-up task in place of those of the hub."""
    mteb = pytest.importorskip("mteb")
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


@pytest.mark.parametrize("kind", ["llama", "qwen3", "eurobert"])
def test_rows_that_no_token_has(transformers, tmp_path, kind):
    """A model whose embedding has 3 rows more than its tokenizer has ids, or is padded: in, trained, and out."""
    name = {"llama": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "eurobert": "EuroBertForMaskedLM"}[kind]
    cls, causal = getattr(transformers, name), kind != "eurobert"
    for rows in 4096 + 3, 4096 + 64:
        folder = tmp_path / f"in-{rows}"
        random_weights(cls(cls.config_class(**SHAPE | dict(vocab_size=rows)))).save_pretrained(folder)
        for file, content in hub.tokenizer_files(Tokenizer.load("embedded"), 64).items():
            (folder / file).write_text(json.dumps(content))
        model = checkpoint.load_model(folder)
        batch = dict(tokens=TOKENS, positions=torch.arange(120), targets=TOKENS.flatten())
        PretrainingLoss(model)(batch, causal)[0].backward()
        torch.optim.SGD(model.parameters(), 1e-3).step()
        checkpoint.save(tmp_path / "ckpt-1.pt", state_of(model, {}))  # its tokenizer has 4,096 ids
        checkpoint.export(tmp_path / "ckpt-1.pt", tmp_path / f"out-{rows}", kind)
        there = cls.from_pretrained(tmp_path / f"out-{rows}") if kind != "llama" else None
        there = there or transformers.LlamaForCausalLM.from_pretrained(tmp_path / f"out-{rows}")
        with torch.no_grad():
            torch.testing.assert_close(there(TOKENS).logits, logits(model, causal), **close)
        assert checkpoint.shape(tmp_path / f"out-{rows}")["vocab_size"] == rows


def test_train_from_a_folder(run, tmp_path):
    """The preset with the origin's shape, weights and budget: a Qwen 3, trained, resumed and exported."""
    folder = tmp_path / "tiny"
    write(random_state(QWEN3, phases=[CLM]), folder, "qwen3")
    (tmp_path / "text.txt").write_text("\n\n\n".join(f"{i} {' '.join(WORDS[i % 9 :])}." for i in range(400)))
    prepare(tmp_path / "text.txt", tmp_path / "data", folder, val_fraction=0.1)
    args = [str(ROOT / "config/continue.py"), *(arg for arg in TINY if not arg.startswith(("--n_", "--d_")))]
    args += ["--compile=False", "--switch_step=0", "--lr=1e-9", "--max_steps=4", "--warmup_steps=1", "--decay_steps=1"]
    args += ["--checkpoint_interval=2", f"--data={tmp_path / 'data'}"]
    args += [f"--out_dir={tmp_path / 'out'}", f"--init_from={folder}"]
    code, text = run(args)
    assert code == 0, text
    first = checkpoint.load(tmp_path / "out")
    assert first["config"] == vars(ModelConfig(**QWEN3)) | dict(seq_len=32)
    assert checkpoint.tokenizer_of(first).content == (folder / "tokenizer.json").read_bytes()
    for name, p in checkpoint.load_model(folder).state_dict().items():
        torch.testing.assert_close(first["model"][name], p, atol=1e-6, rtol=1e-6)
    again = copy_up_to(2, tmp_path / "out", tmp_path / "again")
    assert run([*args, f"--out_dir={again}", "--resume=True"])[0] == 0
    assert_same_end(tmp_path / "out", again, 4)
    checkpoint.export(tmp_path / "out", tmp_path / "exported", "qwen3")
    head = {"head.weight": first["model"]["head.weight"]}  # the folder has none
    torch.testing.assert_close(checkpoint.load(tmp_path / "exported")["model"] | head, first["model"], atol=0, rtol=0)


def test_a_name_on_the_hub_is_downloaded(folder, monkeypatch, tmp_path):
    hub = MagicMock()
    hub.snapshot_download.side_effect = [str(folder), str(folder), OSError("no network")]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.chdir(tmp_path)
    assert checkpoint.load_model("hf:org/tiny").config.d_ff == 48 == checkpoint.shape("hf:org/tiny")["d_ff"]
    patterns = ("*.json", "model*.safetensors"), ("config.json",)
    assert hub.snapshot_download.call_args_list == [call("org/tiny", allow_patterns=its) for its in patterns]
    with pytest.raises(DataError, match="hf:org/other: it cannot be downloaded .*no network"):
        checkpoint.load("hf:org/other")
    (tmp_path / "out").mkdir()  # a folder that is here: a slip, not a name
    with pytest.raises(DataError, match="out/demo is neither a checkpoint nor a folder with one: no such file"):
        checkpoint.load("out/demo")
    for package, path in ("tokenizers", folder), ("huggingface_hub", "hf:org/tiny"), ("safetensors.torch", folder):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(DataError, match=f"pip install {package.split('.')[0]}"):
            checkpoint.load(path)


def test_new_tokens_begin_as_the_mean(folder, copy):
    """A vocabulary smaller than the tokenizer's grows; no old logit changes. A sliding window limits seq_len."""
    old, reports = hub.load(folder, print)["model"], []
    names = {"model.embed_tokens.weight": "embedding.weight", hub.HEAD: "head.weight"}
    weights = {theirs: old[ours][:4000].clone() for theirs, ours in names.items()}
    config = dict(vocab_size=4000, model_type="mistral", sliding_window=40)
    grown = hub.load(copy(config, add=weights), reports.append)
    new = grown["model"]
    assert grown["config"]["seq_len"] == 40
    for name in names.values():
        assert torch.equal(new[name][:4000], old[name][:4000]) and new[name].shape == old[name].shape
        torch.testing.assert_close(new[name][4000:], old[name][:4000].mean(0).expand(96, -1))
    assert "96 new tokens begin as the mean of the 4000 old ones" in reports[0]


PROJECTIONS = {"q": 32, "k": 16, "v": 16, "o": 32}
BIAS = {f"model.layers.{i}.self_attn.{x}_proj.bias": torch.ones(n) for i in (0, 1) for x, n in PROJECTIONS.items()}
OTHER = {"model.layers.0.mlp.down_proj.weight": torch.zeros(3), "score.weight": torch.zeros(2, 2)}
OTHER |= {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
REFUSED = [  # changes of config.json, what the error says
    (dict(model_type="phi3"), "model_type='phi3': must be one of llama, .* sl_model$"),
    (dict(hidden_size=None), "d_model=None: must be of type int"),
    (dict(model_type="mistral", sliding_window="wide"), "config.json: damaged, or not of a model: TypeError"),
    (dict(num_key_value_heads=3), "n_kv_head=3: n_head must be a multiple"),
    (dict(num_hidden_layers=10_000_000), "n_layer is 10,000,000: must be at most 1,000"),
    (dict(rms_norm_eps=float("nan"), vocab_size=2**70), "vocab_size=.*: must be above 0 .*; norm_eps=nan: must be"),
    (dict(hidden_act="gelu", mlp_bias=True), "hidden_act='gelu': must be silu; mlp_bias=True: must be False$"),
    (dict(rope_scaling=dict(rope_type="yarn", factor=4.0)), "rope_type='yarn': must be default"),
    (dict(partial_rotary_factor=0.5), "partial_rotary_factor=0.5: must be 1.0"),
    (dict(quantization_config=dict(bits=4)), "quantization_config={'bits': 4}: must be None"),
    (dict(head_dim=16), r"q_proj.weight: \(32, 32\), expected \(64, 32\)"),
    (dict(model_type="qwen3"), r"layers.0.self_attn.q_norm.weight: nothing, expected \(8,\); .*1.self_attn.k_norm"),
]


@pytest.mark.parametrize("config, message", REFUSED)
def test_configs_that_do_not_fit(copy, config, message):
    with pytest.raises(DataError, match=message):
        checkpoint.load_model(copy(config))


def test_tensors_that_do_not_fit_and_damaged_files(copy):
    """All tensors are in one error; a bias that our model has no place for must be 0. A file is cut, or a pickle."""
    new = copy(dict(attention_bias=True), drop=["model.norm.weight"], add=OTHER | BIAS)
    with pytest.raises(DataError) as error:
        checkpoint.load_model(new)
    parts = ["model.norm.weight: nothing, expected (32,)", "score.weight: (2, 2), expected nothing"]
    parts += ["down_proj.weight: (3,), expected", "layers.0.self_attn.o_proj.bias: (32,), expected nothing"]
    assert all(part in str(error.value) for part in parts) and "inv_freq" not in str(error.value)
    file = new / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(Damaged, match="model.safetensors is damaged"):
        checkpoint.load_model(new)
    file.rename(new / "pytorch_model.bin")
    with pytest.raises(DataError, match="model.safetensors is missing or empty: .*if its path is given"):
        checkpoint.load_model(new)
    file.write_bytes(content)
    (new / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="tokenizer.json is missing or empty: .*save_pretrained"):
        checkpoint.load(new)


def test_an_export_is_whole_or_absent_and_deletes_nothing_of_others(state, folder, tmp_path, monkeypatch, capsys):
    """Without transformers nothing is compared."""
    with pytest.raises(DataError, match="tiny exists, and is not replaced"):
        checkpoint.export("ckpt-650.pt", folder, "llama")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(DataError, match="link exists, and is not replaced"):
        checkpoint.export("ckpt-650.pt", tmp_path / "link", "llama")
    (tmp_path / f"other.{os.getpid()}.partial").mkdir()
    with pytest.raises(FileExistsError):
        write(state, tmp_path / "other", "eurobert")
    monkeypatch.setitem(sys.modules, "transformers", None)
    write(state, tmp_path / "new", "eurobert")
    assert "transformers, which is not installed: install it and export again" in capsys.readouterr().out
    names = ["link", "new", f"other.{os.getpid()}.partial"]
    assert sorted(os.listdir(tmp_path)) == names
    checkpoint.save(folder.parent / "ckpt-650.pt", state)
    words = ["export", str(folder.parent / "ckpt-650.pt"), str(tmp_path / "another"), "--as=eurobert"]
    monkeypatch.setattr(sys, "argv", ["checkpoint.py", *words])
    for fault, message in (KeyboardInterrupt, "stopped by Ctrl-C"), (OSError("no space"), "no space"):
        with monkeypatch.context() as patch, pytest.raises(SystemExit, match=message):
            patch.setattr(safetensors, "save_file", MagicMock(side_effect=fault))
            checkpoint.main()
        assert sorted(os.listdir(tmp_path)) == names


ODD_RECORDS = [  # of a checkpoint: where, and what is there instead
    ([], "phases", [3]),
    (["phases", 1], "objectives", None),
    (["settings"], "init_from", 3),
    (["settings"], "global_batch_tokens", "many"),
    ([], "data", 7),
    ([], "fine_tuned", {"family": "sc"}),
]


@pytest.mark.parametrize("keys, last, value", ODD_RECORDS)
def test_a_checkpoint_with_odd_records_does_not_go_out(state, tmp_path, keys, last, value):
    odd = deepcopy(state)
    reduce(getitem, keys, odd)[last] = value
    with pytest.raises(Damaged, match="ckpt-650.pt: its records are not as"):
        hub.write_folder(odd, None, "ckpt-650.pt", tmp_path / "out", "eurobert")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("family, shape, causal, kind, message", [
    ("qa", SIZES, True, "eurobert", "fine-tuned with causal=True"),
    ("sc", QWEN3, False, "qwen3", "--as=qwen3 cannot express it .sc, with norms of queries and keys.. There are llama"),
    ("tc", SIZES, False, "llama", "--as=llama cannot express it .tc, without norms"),
    (None, QWEN3, False, "llama", "--as=llama cannot express it .decoder, with norms"),
    (None, SIZES, False, "qwen3", "--as=qwen3 cannot express it .encoder, without norms"),
])  # fmt: skip
def test_models_that_cannot_go_out(family, shape, causal, kind, message, tmp_path):
    state = random_state(shape)
    if family:
        state["fine_tuned"] = dict(family=family, head={}, settings=dict(causal=causal, max_len=64), task={})
    with pytest.raises(DataError, match=message):
        write(state, tmp_path / "out", kind, "model.pt")


def test_weights_that_are_not_finite_stay(tmp_path):
    state = random_state(SIZES)
    state["model"]["embedding.weight"][7] = math.nan
    with pytest.raises(DataError, match="not finite"):
        write(state, tmp_path / "out", "eurobert")
