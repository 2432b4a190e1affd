"""GPU memory of the presets, computed and not measured, and the largest micro_batch that fits.

"eager" and "compiled" are what the backward pass of one window keeps, without and with torch.compile, which the
presets use. "fixed" depends neither on the micro-batch nor on the GPU. A chunk of the loss takes up to 6 GiB more.
DDP adds nothing, because its buckets are the gradients.
"""

import torch

from model import PRESETS, ModelConfig, Transformer

vocab_size = 128_256  # tokens in the vocabulary
sizes = (24, 40, 80, 141)  # memory of the GPU, in GB

CONTEXT = 2**30  # bytes of the CUDA context
MOST_LOGITS = 2**30  # of a chunk, as in model.linear_cross_entropy, which also takes no more than memory // 64


def eager_bytes(config, n_layer):
    """Count the bytes that an eager model keeps for the backward pass of one window, on a CPU in bf16.

    There are no documents, because PyTorch's attention would keep a dense mask for them. The kernels do not.
    """
    model = Transformer(ModelConfig(**vars(config) | dict(n_layer=n_layer, vocab_size=256)))
    kept, model.compute_dtype = {}, torch.bfloat16
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model(torch.zeros(1, config.seq_len, dtype=torch.long), False)
    del hidden  # only now, so that no storage is freed and its address used again
    return sum(n_bytes for pointer, n_bytes in kept.items() if pointer not in weights)


def compiled_bytes(config, n_layer):
    """Compute the bytes that compiled blocks and what follows them keep for the backward pass of one window, in bf16.

    A block keeps the inputs of its norms and products, and what attention needs. The rest is computed again.
    """
    d, heads = config.d_model, 2 * (config.n_head + config.n_kv_head)  # heads of q, k, v and the output
    block = 2 * (4 * d + heads * config.head_dim + 3 * config.d_ff) + 4 * (config.n_head + 2)  # fp32: lse, norms
    after = 2 * 4 * d  # the last block's output, its norm, the rows that are predicted, their gradient
    return config.seq_len * (n_layer * block + after)


def fixed_bytes(config):
    """Compute the bytes that depend neither on the micro-batch nor on the GPU, as PyTorch's allocator counts them.

    Weights, gradients and AdamW's moments are 16 bytes a parameter. The allocator's peaks show 20, and we do not know
    why. The weights of blocks and head are also there in bf16, and the gradient of the head twice.
    """
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    embedding = config.vocab_size * config.d_model
    return 20 * parameters + 2 * (parameters - embedding) + 4 * embedding


def chunk_bytes(entries):
    """Compute what a chunk of the loss takes in bf16: logits, their gradient, and that of the chunk before."""
    return 3 * 2 * entries


def peak_bytes(config, windows):
    """Compute the allocator's peak of a training step with compiled blocks and a micro-batch of so many windows."""
    logits = min(MOST_LOGITS, windows * config.seq_len * config.vocab_size)
    return fixed_bytes(config) + chunk_bytes(logits) + windows * compiled_bytes(config, config.n_layer)


def largest_micro_batch(config, memory, window=0):
    """Return how many windows fit into `memory` bytes of a GPU. window: bytes of each; 0 = of compiled blocks."""
    used = CONTEXT + chunk_bytes(min(MOST_LOGITS, memory // 64)) + fixed_bytes(config)
    return max(0, int((memory - used) // (window or compiled_bytes(config, config.n_layer))))


def main(cfg):
    print(f"computed, not measured; T=2048, vocabulary {cfg.vocab_size:,}; GiB, and the largest micro_batch, compiled")
    print(f"{'':<16}{'fixed':>7}{'eager':>8}{'compiled':>9}" + "".join(f"{f'{size} GB':>8}" for size in cfg.sizes))
    for name in ("210m", "610m", "1b"):
        config = ModelConfig(vocab_size=cfg.vocab_size, **PRESETS[name])
        n = config.n_layer
        one, two = (eager_bytes(config, n) for n in (1, 2))
        inputs = 2 * n * config.seq_len * config.d_model  # all that is kept of a block that is computed again
        per_window = {
            name: (one + (n - 1) * (two - one), compiled_bytes(config, n)),
            f"{name}, recompute": (one + inputs, compiled_bytes(config, 1) + inputs),
        }
        for title, (eager, compiled) in per_window.items():
            fits = (largest_micro_batch(config, size * 10**9, compiled) for size in cfg.sizes)
            cells = "".join(f"{windows or '-':>8}" for windows in fits)
            print(f"{title:<16}{fixed_bytes(config) / 2**30:>7.1f}{eager / 2**30:>8.2f}{compiled / 2**30:>9.2f}{cells}")
