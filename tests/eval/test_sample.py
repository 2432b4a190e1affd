"""eval/sample.py: fill in, continue."""

from types import SimpleNamespace

import pytest
import torch

import checkpoint
from data.tokenizer_files import read_tokenizer
from data.objective import MLM
from eval import sample
from eval.sample import continue_text, fill_in
from helpers import record

tokenizer = read_tokenizer("embedded")


@pytest.fixture
def model(encoder):
    return checkpoint.load_model(encoder)


@torch.no_grad()
def test_fill_in_ranks_each_mask(model):
    """Also from the position before, for a mask that begins the text: an eos is before it, as in training."""
    text = "[MASK] the list [MASK]."
    for predict_from, before in ("mask", 0), ("before", 1):
        ids = torch.tensor([[tokenizer.eos_id] * before + tokenizer.encode_masked(text)])
        at = (ids[0] == tokenizer.mask_id).nonzero().flatten() - before
        p = model.logits(model(ids, causal=False)[0, at]).softmax(-1).topk(3)
        assert at[0] == 0
        for best, values, tokens in zip(fill_in(model, tokenizer, text, 3, predict_from), *p, strict=True):
            assert best == [(tokenizer.decode([i]), q) for i, q in zip(tokens.tolist(), values.tolist())]


def test_the_command_goes_by_the_record(model, encoder, tmp_path, capsys):
    phases = record({MLM(0.4, "before"): [0]})
    checkpoint.save(tmp_path / "ckpt-650.pt", checkpoint.load(encoder) | {"phases": phases})
    sample.main([f"--ckpt={tmp_path}", "--fill=[MASK] b", "--prompt=The"])
    (best,) = fill_in(model, tokenizer, "[MASK] b", predict_from="before")
    expected = "mask 1: " + ", ".join(f"{token!r} {p:.1%}" for token, p in best)
    assert capsys.readouterr().out.startswith(f"{expected}\nThe")


def test_a_text_that_is_too_long_leaves_the_model_in_training(model):
    model.config.seq_len = 4
    with pytest.raises(ValueError, match="seq_len is 4"):
        run = SimpleNamespace(transformer=model, tokenizer=tokenizer, step=1, phase="mlm", predict_from="mask")
        sample.print_examples(run)
    assert model.training


def test_continue_is_greedy_or_seeded_and_may_outgrow_the_window(model):
    text = continue_text(model, tokenizer, "The list", 80, temperature=0)
    ids = torch.tensor([[tokenizer.eos_id, *tokenizer.encode("The list")]])
    likeliest = model.logits(model(ids, causal=True)[0, -1]).argmax().item()
    assert text.startswith("The list" + tokenizer.decode([likeliest]))
    a, b, c = (continue_text(model, tokenizer, "The list", 20, 1.0, seed) for seed in (1, 1, 2))
    assert a == b != c
