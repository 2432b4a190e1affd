"""Programs of others use what we export, by the commands of docs/hub.md. A test is skipped without its program.

LLAMA_CPP names a clone of llama.cpp. gpt2's ranks are downloaded or in TIKTOKEN_CACHE_DIR, those of Llama 3 come with
the package llama-models.
"""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import checkpoint
from data.tokenizer_files import read_tokenizer
from errors import DataError
from eval.sample import continue_text
from helpers import ROOT
from encoder_helpers import export, random_state
from task_helpers import docs_block

transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")
SIZES = dict(n_layer=2, n_head=4, n_kv_head=2, d_model=64, d_ff=96, seq_len=64)
TEXTS = ["Return the list of the object.", "It's 12345 naïve\n\n  texts 🙂", "a"]
PAIRS = dict(anchor=["sort a list", "open a file"] * 8, positive=["Return it sorted.", "The file is open."] * 8)


def exported(folder, kind, tokenizer):
    """Write a model with random weights to a folder; return the Transformer."""
    state = random_state(SIZES, tokenizer=tokenizer)
    export(state, folder, kind)
    return checkpoint.model_from(state)


def vocabulary(name):
    """Return a Tokenizer: the embedded one, gpt2's or Llama 3's."""
    if name == "llama3":
        name = Path(*pytest.importorskip("llama_models").__path__, "llama3/tokenizer.model")
    try:
        return read_tokenizer(name)
    except DataError as error:
        pytest.skip(str(error))


def command(client):
    """Return the command in a client's row of the table in docs/hub.md."""
    return re.search(rf"^\| {client} \|.*?`(.*?)`", (ROOT / "docs/hub.md").read_text(), re.M)[1]


@pytest.fixture
def encoder(tmp_path):
    exported(tmp_path / "encoder", "eurobert", read_tokenizer("embedded"))
    return str(tmp_path / "encoder")


@pytest.mark.parametrize("name", ["embedded", "gpt2", "llama3"])
def test_a_decoder_puts_eos_first_and_says_so(name, tmp_path, monkeypatch):
    """In transformers as in training; in llama.cpp by tokenizer_config.json, after the lines of the page."""
    monkeypatch.chdir(tmp_path)
    ours = vocabulary(name)
    exported(tmp_path / "exported/decoder", "llama", ours)
    exec(docs_block("post_processor", "hub"), {})
    for folder, first in ("decoder", [ours.eos_id]), ("decoder-gguf", []):
        there = transformers.AutoTokenizer.from_pretrained(f"exported/{folder}")
        for text in [*TEXTS, ""]:
            assert there(text).input_ids == first + ours.encode(text)
        assert '"add_bos_token": true' in Path(f"exported/{folder}/tokenizer_config.json").read_text()
        assert there.bos_token_id == there.eos_token_id == ours.eos_id
    there = transformers.AutoTokenizer.from_pretrained("exported/decoder", add_bos_token=True)  # some go by it
    one, two = ([ours.eos_id, *ours.encode(text)] for text in TEXTS[:2])
    assert there(TEXTS[0]).input_ids == one and there(*TEXTS[:2]).input_ids == one + two


@pytest.mark.parametrize("name, known", [("gpt2", "gpt-2"), ("llama3", "smaug-bpe"), ("embedded", "llama-bpe")])
def test_llama_cpp_converts_known_vocabularies_and_continues_a_text_as_we_do(name, known, tmp_path, monkeypatch):
    if "LLAMA_CPP" not in os.environ:
        pytest.skip("LLAMA_CPP is not set")
    monkeypatch.chdir(tmp_path)
    clone, ours = Path(os.environ["LLAMA_CPP"]).resolve(), vocabulary(name)
    model = exported(tmp_path / "exported/decoder", "llama", ours)
    exec(docs_block("post_processor", "hub"), {})
    (convert,) = re.findall(r"^# python (.*)", docs_block("post_processor", "hub"), re.M)
    script, *args = convert.split()
    done = subprocess.run([sys.executable, clone / Path(script).name, *args], capture_output=True, text=True)
    assert (done.returncode == 0) == (name != "embedded"), done.stderr
    if name == "embedded":  # then with its hash added, as the page says
        assert "chkhsh:" in done.stderr
        copy = shutil.copytree(clone, tmp_path / "clone", ignore=shutil.ignore_patterns(".git", "models", "build*"))
        base = copy / "conversion/base.py"
        base.write_text(base.read_text().replace("        res = None\n", f'        res = "{known}"\n'))
        subprocess.run([sys.executable, copy / Path(script).name, *args], check=True)
    sys.path.insert(0, str(clone / "gguf-py"))
    fields = __import__("gguf").GGUFReader("decoder.gguf").fields
    read = {key: fields[f"tokenizer.ggml.{key}"].contents() for key in ("pre", "bos_token_id", "add_bos_token")}
    assert read == dict(pre=known, bos_token_id=ours.eos_id, add_bos_token=True)

    library = pytest.importorskip("xllamacpp")
    params = library.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.use_jinja = "decoder.gguf", 64, 1, False
    server = library.Server(params)
    for text in TEXTS:
        answer = server.handle_completions(dict(prompt=text, max_tokens=12, temperature=0, top_k=1))
        assert text + answer["choices"][0]["text"] == continue_text(model, ours, text, 12, temperature=0)


@torch.no_grad()
def test_perplexity_by_lm_eval_is_ours(tmp_path):
    """With the argument of the page. Without it, lm_eval puts eos before the eos of the tokenizer."""
    harness = pytest.importorskip("lm_eval.models.huggingface").HFLM
    from lm_eval.api.instance import Instance

    ours = read_tokenizer("embedded")
    model = exported(tmp_path / "decoder", "llama", ours)
    args = re.search("--model_args (.*)", command("lm_eval"))[1].replace("decoder", str(tmp_path / "decoder"))
    request, found = [Instance("loglikelihood_rolling", {}, (TEXTS[0],), 0)], []
    for one in args, args.split(",")[0]:
        their_model = harness.create_from_arg_string(f"{one},dtype=float32", {"device": "cpu"})
        found += their_model.loglikelihood_rolling(request, disable_tqdm=True)
    ids = torch.tensor([[ours.eos_id, *ours.encode(TEXTS[0])]])
    log_p = model.logits(model(ids, causal=True)).log_softmax(-1)[0]
    expected = log_p[:-1].gather(1, ids[0, 1:, None]).sum().item()
    assert found[0] == pytest.approx(expected, rel=1e-5) and not math.isclose(found[1], expected, rel_tol=0.01)


def test_lora_by_peft_trains_and_merges(encoder):
    peft = pytest.importorskip("peft")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(encoder)
    tuned = peft.get_peft_model(model, eval(command("peft"), vars(peft)))
    optimizer = torch.optim.AdamW((p for p in tuned.parameters() if p.requires_grad), 1e-2)
    batch = dict(input_ids=torch.arange(60).view(4, 15), labels=torch.tensor([0, 1, 0, 1]))
    loss = tuned(**batch).loss
    loss.backward()
    optimizer.step()
    assert tuned.eval()(**batch).loss < loss
    logits, merged = tuned(**batch).logits, tuned.merge_and_unload()
    torch.testing.assert_close(merged(**batch).logits, logits, atol=1e-4, rtol=1e-4)


def test_trainers_of_others(encoder, tmp_path):
    """sentence-transformers' trainer and its CrossEncoder, and setfit."""
    library = pytest.importorskip("sentence_transformers")
    losses = pytest.importorskip("sentence_transformers.losses")
    datasets = pytest.importorskip("datasets")
    names = dict(vars(library), **vars(losses), encoder=encoder, pairs=datasets.Dataset.from_dict(PAIRS))
    names["args"] = library.SentenceTransformerTrainingArguments(str(tmp_path / "out"), report_to="none")
    names["model"] = model = library.SentenceTransformer(encoder, device="cpu")
    leads = []  # of each text's own partner over the other
    for _ in range(2):
        cosines = model.similarity(*(model.encode(texts[:2]) for texts in PAIRS.values()))
        leads.append(cosines.diagonal() - cosines.fliplr().diagonal())
        eval(command("sentence-transformers"), names)
    assert (leads[1] > leads[0]).all()
    assert eval(command("CrossEncoder"), names).predict([*zip(*PAIRS.values())]).shape == (16,)
    names |= vars(pytest.importorskip("setfit"))
    rows = datasets.Dataset.from_dict(dict(text=PAIRS["anchor"], label=[0, 1] * 8))
    learner = eval(command("setfit"), names)
    arguments = names["TrainingArguments"](str(tmp_path / "setfit"), num_epochs=1, report_to="none")
    names["Trainer"](learner, arguments, train_dataset=rows).train()
    assert learner.predict(PAIRS["anchor"]).tolist() == rows["label"][:]


@pytest.mark.filterwarnings("ignore:.*torch.ao|.*quantize_per:")  # they are deprecated
@torch.no_grad()
def test_exported_programs_and_int8(encoder):
    names = dict(torch=torch, model=transformers.AutoModel.from_pretrained(encoder).eval())
    names["tokens"] = tokens = torch.arange(60).view(4, 15)
    expected = names["model"](tokens)[0]
    program = eval(command("torch.export"), names).module()
    torch.testing.assert_close(program(tokens)[0], expected, atol=1e-5, rtol=1e-5)
    small = eval(command("int8"), names)(tokens)[0]
    assert torch.nn.functional.cosine_similarity(small, expected, dim=-1).mean() > 0.95
