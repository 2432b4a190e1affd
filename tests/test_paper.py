"""What docs/paper.md says about pretraining, where it follows the paper and where it does not.

More of it is in test_train.py, test_model.py, data/test_loader.py and data/test_prepare.py.
"""

import numpy as np
import pytest
import torch
from helpers import ROOT
from model_helpers import small_model

import configurator
from data.loader import Batches, TokenStream
from data.shards import load_meta
from data.tokenizer_files import read_tokenizer
from model import PRESETS, ModelConfig, Transformer

T = 2_048
SIZES = {  # layers, width, MLP, heads, key-value heads, head dim, millions of parameters: blocks, + input, + output
    "210m": (12, 768, 3_072, 12, 12, 64, 113.3, 211.8, 310.3),
    "610m": (26, 1_152, 4_096, 18, 6, 64, 460.1, 607.9, 755.6),
    "1b": (28, 1_728, 5_120, 18, 6, 96, 966.2, 1187.9, 1409.5),
}


def preset(name):
    return configurator.load(ROOT / "train.py", [str(ROOT / f"config/{name}.py")])


@pytest.mark.parametrize("name", SIZES)
def test_the_shapes(name):
    config = ModelConfig(vocab_size=128_256, **PRESETS[name])
    shape = config.n_layer, config.d_model, config.d_ff, config.n_head, config.n_kv_head, config.head_dim
    with torch.device("meta"):
        model = Transformer(config)
    total, embedding = sum(p.numel() for p in model.parameters()), model.embedding.weight.numel()
    counts = (round(n / 1e6, 1) for n in (total - 2 * embedding, total - embedding, total))
    assert (*shape, *counts) == SIZES[name]
    assert (config.seq_len, config.rope_theta, config.norm_eps, config.tie_embeddings) == (T, 10_000, 1e-5, False)
    assert not any(name.endswith("bias") for name, _ in model.named_parameters())


def test_the_recipe_of_the_presets():
    paper = {
        "global_batch_tokens": 1_152 * T, "max_steps": 42_000, "warmup_steps": 2_000, "decay_steps": 2_000, "lr": 5e-4,
        "beta1": 0.9, "beta2": 0.95, "eps": 1e-5, "weight_decay": 0.1, "grad_clip": 1.0, "mask_ratio": 0.4,
        "mask_proportions": (1.0, 0.0, 0.0), "window_split": "random", "tie_embeddings": False,
    }  # fmt: skip
    for name in SIZES:
        assert preset(name).items() >= (paper | {"model": name}).items()
    continued = {"warmup_steps": 500, "lr": 5e-4, "decay_steps": 2_000, "global_batch_tokens": 2_359_296}
    assert preset("continue").items() >= continued.items()


def test_windows_are_cut_between_12_and_2037_anew_for_each_use(data_dir):
    stream, shape = TokenStream(data_dir, load_meta(data_dir), "train"), np.zeros((1_000, T), np.int64)
    batches = Batches([stream], read_tokenizer("embedded"), 1, T, 1, "random")
    cuts = np.concatenate([batches.bounds(shape, np.arange(i, i + 1_000))[1][:, 0] for i in range(0, 16_000, 1_000)])
    assert (cuts.min(), cuts.max()) == (12, 2_036) and abs(cuts.mean() - 1_024) < 15
    uses = cuts[:: batches.n_windows[0]][:50]  # of the first draw of each epoch
    assert len(set(uses)) > 40


def test_the_residual_stream_is_bf16_and_the_weights_are_fp32():
    model, seen = small_model(), []
    model.compute_dtype = torch.bfloat16
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.extend((inputs[0].dtype, output.dtype)))
    model(torch.zeros(1, 8, dtype=torch.long), causal=True).float().sum().backward()
    assert set(seen) == {torch.bfloat16}
    assert {x.dtype for p in model.parameters() for x in (p, p.grad) if x is not None} == {torch.float32}
