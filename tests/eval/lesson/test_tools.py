"""The lesson's tools against the model and the loader that they describe."""

import importlib.util
import json

import pytest
import torch
import torch.nn.functional as F

from data.loader import Batches, TokenStream
from data.shards import load_meta
from data.tokenizer import Tokenizer
from errors import Damaged, DataError
from eval.lesson import exercises, explain, per_token, switch
from eval.sample import fill_in
from model import ModelConfig, Transformer

tokenizer = Tokenizer.load("embedded")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    shape = dict(vocab_size=4224, n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=48, seq_len=32)
    model = Transformer(ModelConfig(**shape, head_dim=16, qk_norm=True))
    for p in model.parameters():  # larger than at the start of training, so that a wrong mask shows
        p.data.mul_(5)
    return model


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_attention_weights_are_the_models(model, causal):
    """Combined with the values, they give the output of each layer."""
    ids = torch.arange(40, 52)
    weights, states = explain.attention_weights(model, ids, causal), explain.hidden_states(model, ids[None], causal)
    assert weights.shape == (2, 4, 12, 12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 12))
    assert bool((weights.triu(1) == 0).all()) == causal
    for block, w, x, after in zip(model.blocks, weights, states, states[1:]):
        v = block.qkv(block.attn_norm(x))[0, :, -2 * 16 :].view(12, 2, 16).repeat_interleave(2, dim=1)  # (T, H, D)
        x = x + block.attn_out(torch.einsum("hqk,khd->qhd", w, v).reshape(1, 12, 64))
        gate, up = block.gate_up(block.mlp_norm(x)).chunk(2, dim=-1)
        torch.testing.assert_close(x + block.down(F.silu(gate) * up), after)
    torch.testing.assert_close(model.norm(states[-1]), model(ids[None], causal))


@torch.no_grad()
def test_predictions_are_the_models(model):
    text = "Return the [MASK] of the list."
    ids = torch.tensor(tokenizer.encode_masked(text))
    clm, mlm = explain.predictions(model, ids, tokenizer.mask_id)
    torch.testing.assert_close(clm, model.logits(model(ids[None], True)[0]).softmax(-1))
    (best,) = fill_in(model, tokenizer, text, k=3)
    at = ids.tolist().index(tokenizer.mask_id)
    torch.testing.assert_close(mlm[at].topk(3).values, torch.tensor([p for _, p in best]))
    alone = ids.clone()
    alone[4] = tokenizer.mask_id
    torch.testing.assert_close(mlm[4], model.logits(model(alone[None], False)[0, 4]).softmax(-1))


def test_explain_prints_and_draws(encoder, tmp_path, capsys):
    explain.main([f"--ckpt={encoder}", f"--out={tmp_path}/new/figure.png", "--text=The file of"])
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["0", "'The'", "#..", "###"] in lines and ["step", "650,", "of", "which", "200", "CLM"] == lines[0][1:]
    assert "where its heads look from position 2, ' of'" in text and "  head 2  " in text
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "new" / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def batches(data_dir):
    return Batches(TokenStream(data_dir, load_meta(data_dir), "val"), tokenizer, 0, 32, 6, mask_ratio=0.25)


@torch.no_grad()
def test_a_hidden_side_is_not_seen(model, batches):
    """Each of the three losses is that of the masked token in a text of its own: whole, up to it, from it."""
    batch = batches.batch(0, causal=False)
    position, targets = batch["positions"].view(6, 8) % 32, batch["targets"].view(6, 8)
    losses = torch.zeros(3)
    for row, tokens in enumerate(batch["tokens"]):
        n = (position[row] - 16).abs().argmin()
        i = position[row, n]
        for kind, (text, k) in enumerate(((tokens, i), (tokens[: i + 1], i), (tokens[i:], 0))):
            losses[kind] += F.cross_entropy(model.logits(model(text[None], False)[0, k]), targets[row, n]) / 6
    torch.testing.assert_close(torch.tensor(switch.context_losses(model, batch, middle=1)), losses)


def test_cka_ignores_rotation_and_scale_only():
    torch.manual_seed(0)
    x, turn = torch.randn(200, 8), torch.linalg.qr(torch.randn(8, 8)).Q
    assert switch.cka(x, 3 * x @ turn + 1) == pytest.approx(1, abs=1e-6)
    assert switch.cka(x, torch.randn(200, 8)) < 0.2


def test_tokens_predicted_are_the_targets(tmp_path, batches):
    """The tokens that per_token counts as predicted are the targets in the batches."""
    config = dict(model=dict(seq_len=32), settings=dict(mask_ratio=0.25))
    (tmp_path / "config.json").write_text(json.dumps(config))
    lines = [dict(step=step, phase="clm" if step <= 8 else "mlm", tokens=512 * step) for step in range(11)]
    for line in lines[::5]:
        line |= dict(val_clm_loss=line["step"] + 1, val_mlm_loss=line["step"] + 2)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    clm, mlm = (int((batches.batch(0, causal)["targets"] >= 0).sum()) / 6 for causal in (True, False))  # per window
    assert per_token.loss_curve(tmp_path) == {
        0: (0, 0, 1),
        5: (5 * 512, 5 * 16 * clm, 6),
        10: (10 * 512, 16 * (8 * clm + 2 * mlm), 12),
    }


DIFF = "--- a/code.py\n+++ b/code.py\n@@ -9 +9 @@\n-two\n+2\n+2.5\n@@ g @@\n five\n-six\n"


def test_a_diff_applies_by_content_and_backwards(tmp_path):
    code = tmp_path / "code.py"
    code.write_text("zero\none\ntwo\nthree\nfive\nsix\nseven\n")
    exercises.apply(DIFF, tmp_path)
    assert code.read_text() == "zero\none\n2\n2.5\nthree\nfive\nseven\n"
    exercises.apply(DIFF, tmp_path, undo=True)
    assert code.read_text() == "zero\none\ntwo\nthree\nfive\nsix\nseven\n"


@pytest.mark.parametrize("text, count", [("two\nfive\n\nsix\n", 0), ("five\nsix\ntwo\nfive\nsix\n", 2)])
def test_a_diff_that_does_not_fit_changes_nothing(text, count, tmp_path):
    (tmp_path / "code.py").write_text(text)
    with pytest.raises(DataError, match=f"found them {count} times .*\nfive\nsix"):
        exercises.apply(DIFF, tmp_path)
    assert (tmp_path / "code.py").read_text() == text


BAD_INPUT = [
    (explain, ["--text="], "text: has 0 tokens, expected 1 to 64"),
    (explain, ["--text=" + "word " * 70], "text: has 71 tokens, expected 1 to 64"),
    (explain, ["--layer=3"], "layer=3: expected 1 to 2, or 0 for the last"),
    (explain, ["--ckpt=nowhere"], "nowhere is neither a checkpoint nor a folder with one"),
    (explain, ["--txt=y"], "unknown setting 'txt'. Did you mean 'text'?"),
    (per_token, ["--runs=nowhere,out/x"], "runs: expected folders of runs of train.py, got nowhere, out/x"),
    (per_token, ["--runs="], "runs: expected folders of runs of train.py, got none"),
    (switch, ["--run=nowhere"], "run=nowhere: has fewer than two checkpoints"),
    (exercises, ["5"], "usage: python -m eval.lesson apply 1|2|3|4|6"),
]


@pytest.mark.parametrize("tool, args, message", BAD_INPUT)
def test_bad_input(tool, args, message, encoder, capsys):
    if tool is explain:
        args = [f"--ckpt={encoder}", *args]
    with pytest.raises((SystemExit, DataError, Damaged)) as raised:
        tool.main(args)
    assert message in f"{raised.value} {capsys.readouterr().err}"
