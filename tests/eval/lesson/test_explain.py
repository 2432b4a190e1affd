"""eval/explain.py, eval/per_token.py and eval/switch.py against the model and the loader they speak of."""

import importlib.util
import json

import pytest
import torch

from data.loader import Batches, TokenStream
from data.shards import load_meta
from data.tokenizer import Tokenizer
from eval.lesson import explain, per_token, switch
from eval.sample import fill_in
from model import ModelConfig, Transformer

TEXT = "Return the [MASK] of the list."


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load("embedded")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = Transformer(ModelConfig(vocab_size=4224, n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=48, seq_len=32))
    for p in model.parameters():  # larger than at the start of training, so that a wrong mask shows
        p.data.mul_(5)
    return model


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_the_attention_weights_are_the_models(model, causal):
    """Put back together with the values, they give what each block makes."""
    ids = torch.arange(40, 52)
    weights, layers = explain.attention_weights(model, ids, causal), explain.states(model, ids[None], causal)
    assert weights.shape == (2, 4, 12, 12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 12))
    assert bool((weights.triu(1) == 0).all()) == causal
    for block, w, x, after in zip(model.blocks, weights, layers, layers[1:]):
        v = block.qkv(block.attn_norm(x))[0, :, -2 * 8 :].view(12, 2, 8).repeat_interleave(2, dim=1)  # (T, H, D)
        x = x + block.attn_out(torch.einsum("hqk,khd->qhd", w, v).reshape(1, 12, 32))
        gate, up = block.gate_up(block.mlp_norm(x)).chunk(2, dim=-1)
        torch.testing.assert_close(x + block.down(torch.nn.functional.silu(gate) * up), after)
    torch.testing.assert_close(model.norm(layers[-1]), model(ids[None], causal))


@torch.no_grad()
def test_the_predictions_are_the_models(model, tokenizer):
    ids = torch.tensor(tokenizer.encode_masked(TEXT))
    clm, mlm = explain.predictions(model, ids, tokenizer.mask_id)
    torch.testing.assert_close(clm, model.logits(model(ids[None], True)[0]).softmax(-1))
    (best,) = fill_in(model, tokenizer, TEXT, k=3)
    at = ids.tolist().index(tokenizer.mask_id)
    torch.testing.assert_close(mlm[at].topk(3).values, torch.tensor([p for _, p in best]))
    alone = ids.clone()
    alone[4] = tokenizer.mask_id
    torch.testing.assert_close(mlm[4], model.logits(model(alone[None], False)[0, 4]).softmax(-1))


def test_explain_prints_and_draws(run, encoder, tmp_path):
    code, text = run([f"--ckpt={encoder}", f"--out={tmp_path}/new/figure.png", "--top=2", "The file of"], "eval/explain.py")
    assert code == 0, text
    lines = [line.split() for line in text.splitlines()]
    assert ["0", "'The'", "#..", "###"] in lines and ["step", "650,", "of", "which", "200", "CLM"] == lines[0][1:]
    assert "where its heads look from position 2, ' of'" in text and "  head 2  " in text
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "new" / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize("args, message", [
    ([], "no text: python eval/explain.py"),
    (["  "], "no text"),
    (["word " * 70], "the text has 71 tokens, here 64 are the most"),
    (["x", "--layer=3"], "layer=3: this model has 2"),
    (["x", "--out=picture"], "must be the name of a .png file"),
    (["x", "--ckpt=nowhere"], "nowhere is neither a checkpoint nor a folder with one"),
    (["x", "--ckpt=README.md"], "README.md is damaged or not a checkpoint"),
    (["x", "--txt=y"], "unknown setting 'txt'. Did you mean 'text'?"),
])  # fmt: skip
def test_explain_on_bad_input(run, encoder, args, message):
    code, text = run([f"--ckpt={encoder}", *args], name="eval/explain.py")
    assert code in (1, 2) and message in text


@pytest.fixture(scope="module")
def batches(data_dir, tokenizer):
    return Batches(TokenStream(data_dir, load_meta(data_dir), "val"), tokenizer, 0, 32, 6, mask_ratio=0.25)


@torch.no_grad()
def test_a_side_that_is_cut_is_not_seen(model, batches):
    """Each of the three losses is that of the masked token in a text of its own: whole, up to it, from it."""
    batch = batches.batch(0, causal=False)
    at, targets = batch["positions"].view(6, 8) % 32, batch["targets"].view(6, 8)
    losses = torch.zeros(3)
    for row in range(6):
        n = (at[row] - 16).abs().argmin()
        i, tokens = at[row, n], batch["tokens"][row]
        for kind, (text, k) in enumerate(((tokens, i), (tokens[: i + 1], i), (tokens[i:], 0))):
            logits = model.logits(model(text[None], False)[0, k])
            losses[kind] += torch.nn.functional.cross_entropy(logits, targets[row, n]) / 6
    torch.testing.assert_close(torch.tensor(switch.sides(model, batch, 1)), losses)


def test_cka_is_blind_to_rotation_and_scale_alone():
    torch.manual_seed(0)
    x, turn = torch.randn(200, 8), torch.linalg.qr(torch.randn(8, 8)).Q
    assert switch.cka(x, 3 * x @ turn + 1) == pytest.approx(1, abs=1e-6)
    assert switch.cka(x, torch.randn(200, 8)) < 0.2


def test_tokens_predicted_are_the_targets(run, tiny, tmp_path, batches):
    """What per_token says was predicted is the number of targets in the batches."""
    out = tmp_path / "run"
    code, text = run([*tiny, f"--out_dir={out}", "--mask_ratio=0.25", "--max_steps=10", "--eval_interval=5", "--decay_steps=0"])
    assert code == 0, text
    a_window = {causal: int((batches.batch(0, causal)["targets"] >= 0).sum()) / 6 for causal in (True, False)}
    points = per_token.curve(out)
    assert [points[step][:2] for step in (0, 5, 10)] == [
        (0, 0), (5 * 512, 5 * 16 * a_window[True]), (10 * 512, 16 * (8 * a_window[True] + 2 * a_window[False]))
    ]  # fmt: skip
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert points[10][2] == last["val_mlm_loss"]


@pytest.mark.parametrize("script, args, message", [
    ("eval/per_token.py", ["--runs=nowhere,out/x"], "runs: nowhere is not the folder of a run of train.py"),
    ("eval/per_token.py", ["--runs="], "runs: give the folders of one or more runs"),
    ("eval/switch.py", ["--run=nowhere"], "run=nowhere: has fewer than two checkpoints"),
    ("eval/switch.py", ["--run=nowhere", "--windows=0"], "windows=0: must be at least 1"),
])  # fmt: skip
def test_the_others_on_bad_input(run, script, args, message):
    code, text = run(args, name=script)
    assert code == 2 and message in text
