"""GPU memory of the presets, computed and not measured, and the largest micro_batch that fits.

Weights, gradients and AdamW's moments take 16 bytes a parameter. (DDP's buckets are the gradients.)
"""

import torch

from model import PRESETS, ModelConfig, Transformer

vocab_size = 128_256  # tokens in the vocabulary
sizes = (24, 40, 80, 141)  # memory of the GPU, in GB


def activation_bytes(shape, n_layer):
    """Count the bytes that the backward pass of one window keeps, in eager mode on a CPU in bf16. shape: a dict.

    There are no documents, because PyTorch's attention would keep a dense mask for them. The kernels do not.
    """
    config = ModelConfig(**shape | dict(n_layer=n_layer, vocab_size=256))
    model, kept = Transformer(config), {}
    model.compute_dtype = torch.bfloat16
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model(torch.zeros(1, config.seq_len, dtype=torch.long), False)
    del hidden  # only now, so that no storage is freed and its address used again
    return sum(n_bytes for pointer, n_bytes in kept.items() if pointer not in weights)


def main(cfg):
    print(f"computed, not measured; T=2048, vocabulary {cfg.vocab_size:,}; GiB, and the largest micro_batch")
    print(f"{'':<20}{'fixed':>7}{'a window':>10}" + "".join(f"{f'{size} GB':>9}" for size in cfg.sizes))
    for name in ("210m", "610m", "1b"):
        config = ModelConfig(vocab_size=cfg.vocab_size, **PRESETS[name])
        with torch.device("meta"):
            parameters = sum(p.numel() for p in Transformer(config).parameters())
        loss = 2**28 * (4 + 2) + 4 * cfg.vocab_size * config.d_model  # a chunk of logits, the gradient of the head
        # With the weights in bf16, kept for the backward pass, and 1 GiB for the CUDA context and fragmentation.
        fixed = (16 + 2) * parameters + loss + 2**30
        one, two = (activation_bytes(PRESETS[name], n) for n in (1, 2))
        block_input = 2 * config.seq_len * config.d_model
        per_window = {name: one + (config.n_layer - 1) * (two - one)}
        per_window[f"{name}, recompute"] = one + config.n_layer * block_input
        for title, window in per_window.items():
            fits = [max(0, int((size * 1e9 - fixed) // window)) for size in cfg.sizes]
            cells = "".join(f"{n or '-':>9}" for n in fits)
            print(f"{title:<20}{fixed / 2**30:>7.1f}{window / 2**30:>10.2f}{cells}")
