"""eval/sample.py: fill in, continue."""

import pytest
import torch

import checkpoint
from data.tokenizer import Tokenizer
from data.objective import MLM
from eval import sample
from eval.sample import continue_text, fill_in
from helpers import record

tokenizer = Tokenizer.load("embedded")


@pytest.fixture
def model(encoder):
    return checkpoint.load_model(encoder)


def test_fill_in_ranks_each_mask(model):
    masks = fill_in(model, tokenizer, "Return the [MASK] of [MASK] list.", k=3)
    assert len(masks) == 2 and all(len(best) == 3 for best in masks)
    for best in masks:
        p = [q for _, q in best]
        assert p == sorted(p, reverse=True) and 0 < sum(p) < 1


@torch.no_grad()
def test_fill_in_from_the_position_before(model):
    """Also for a mask that begins the text: an eos is before it, as in training."""
    masks = fill_in(model, tokenizer, "[MASK] the list [MASK].", k=3, predict_from="before")
    ids = torch.tensor([[tokenizer.eos_id, *tokenizer.encode_masked("[MASK] the list [MASK].")]])
    at = (ids[0] == tokenizer.mask_id).nonzero().flatten() - 1
    p = model.logits(model(ids, causal=False)[0, at]).softmax(-1).topk(3).values
    assert at[0] == 0 and [[q for _, q in best] for best in masks] == p.tolist()


def test_the_command_goes_by_the_record(model, encoder, tmp_path, capsys):
    phases = record({MLM(0.4, "before"): [0]})
    checkpoint.save(tmp_path / "ckpt-650.pt", checkpoint.load(encoder) | {"phases": phases})
    sample.main([f"--ckpt={tmp_path}", "--fill=[MASK] b", "--prompt=The"])
    (best,) = fill_in(model, tokenizer, "[MASK] b", predict_from="before")
    expected = "mask 1: " + ", ".join(f"{token!r} {p:.1%}" for token, p in best)
    assert capsys.readouterr().out.startswith(f"{expected}\nThe")
    text = "[MASK]" * 64
    with pytest.raises(SystemExit, match="65 tokens in a row, but this model's seq_len is 64"):
        sample.main([f"--ckpt={tmp_path}/ckpt-650.pt", f"--fill={text}"])


def test_continue_is_greedy_or_seeded_and_may_outgrow_the_window(model):
    text = continue_text(model, tokenizer, "The list", 80, temperature=0)
    assert text.startswith("The list") and text == continue_text(model, tokenizer, "The list", 80, temperature=0)
    a, b, c = (continue_text(model, tokenizer, "The list", 20, 1.0, seed) for seed in (1, 1, 2))
    assert a == b != c


BAD_INPUT = [
    ([], "nothing to do"),
    (["--fill=no mask"], "has no [MASK]"),
    (["--prompt=x", "--ckpt=nowhere"], "nowhere is neither a checkpoint nor a folder with one"),
]


@pytest.mark.parametrize("args, message", BAD_INPUT)
def test_bad_input(args, message, encoder, capsys):
    with pytest.raises(SystemExit) as raised:
        sample.main([f"--ckpt={encoder}", *args])
    assert message in f"{raised.value} {capsys.readouterr().err}"
