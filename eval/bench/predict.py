"""What the presets need on a GPU, computed and not measured: the memory of training, and the time of a step.

Memory in GiB: "fixed" does not depend on the micro-batch. "eager" and "compiled" are what the backward pass of one
window keeps, without and with torch.compile, which the presets use. A chunk of the loss takes up to 6 GiB more. Then
comes the largest micro_batch, compiled, by the memory of the GPU. DDP adds nothing: its buckets are the gradients.

Time in milliseconds (share of the step), for blocks that are compiled, in bf16. Matrix products reach 70 % of the
GPU's peak, attention reaches what others published for an H100, everything else 85 % of the bandwidth, and nothing
overlaps. "head" is the products of the output head, the loss, and the gradient of the head's weight. MFU counts the
pairs of a query and a key that the mask leaves, and in brackets all T x T of them (half if causal). The optimizer is
AdamW. The last table is what the matrix products of Muon add to a step, at the same 70 %.
"""

from pathlib import Path

import torch

import configurator
from model import PRESETS, ModelConfig, Transformer
from runtime import PEAK_FLOPS, flops_per_token

ROOT = Path(__file__).resolve().parents[2]
PAPER = {name: ModelConfig(vocab_size=128_256, **PRESETS[name]) for name in ("210m", "610m", "1b")}
WINDOWS = 144  # windows of a step on one GPU: the paper's batch on eight
SIZES = 24, 40, 80, 141  # memory of a GPU, in GB
CONTEXT = 2**30  # bytes of the CUDA context
MOST_LOGITS = 2**30  # of a chunk, as in model.linear_cross_entropy, which also takes no more than memory // 64
BANDWIDTH = {"H100": 3.35e12, "H200": 4.8e12}  # bytes per second, from the data sheets
PRODUCT_SPEED, MEMORY_SPEED = 0.70, 0.85  # of the peak, of the bandwidth
ATTENTION = {True: (250e12, 220e12), False: (350e12, 265e12)}  # causal: FLOP/s of the forward and backward pass
PAIRS = 2 / 3  # what is left of T x T when a window is cut in two at random: the mean of x² + (1 - x)²


# ----------------------------------------------------------------------------
# Memory, in bytes


def fixed_bytes(config):
    """Compute what depends neither on the micro-batch nor on the GPU, as PyTorch's allocator counts it.

    Weights, gradients and AdamW's moments are 16 bytes a parameter. The allocator's peaks show 20, and we do not know
    why. The weights of blocks and head are also there in bf16, and the gradient of the head twice.
    """
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    embedding = config.vocab_size * config.d_model
    return 20 * parameters + 2 * (parameters - embedding) + 4 * embedding


def window_bytes(config, compiled=True, recompute=False):
    """Compute what the backward pass of one window keeps in bf16, with the fused attention kernels."""
    d, d_ff = config.d_model, config.d_ff
    heads = 2 * (config.n_head + config.n_kv_head)  # of q, k, v and the output
    block = 2 * heads * config.head_dim + 4 * (config.n_head + 2)  # in fp32: the log-sum-exp and the norms' statistics
    if config.qk_norm:  # the inputs of these norms, in fp32 if eager, and their statistics
        block += heads // 2 * ((2 if compiled else 4) * config.head_dim + 4)
    if compiled:  # the inputs of the norms and products; what lies between them is computed again
        block += 8 * d + 6 * d_ff
    else:  # the norms' inputs in fp32 and their outputs, gate and up, silu(gate), and the input of the last product
        block += 12 * d + 8 * d_ff
    blocks = block + 2 * config.n_layer * d if recompute else config.n_layer * block
    after = 8 * d  # the last block's output, its norm, the rows that are predicted, their gradient
    return config.seq_len * (blocks + after)


def loss_bytes(memory, logits=MOST_LOGITS):
    """Compute what a chunk of the loss takes: its logits, their gradient, and that of the chunk before."""
    return 3 * 2 * min(MOST_LOGITS, memory // 64, logits)


def peak_bytes(config, windows, memory):
    """Compute the allocator's peak of a training step, compiled, with a micro-batch of so many windows."""
    logits = windows * config.seq_len * config.vocab_size
    return fixed_bytes(config) + loss_bytes(memory, logits) + windows * window_bytes(config)


def largest_micro_batch(config, memory, recompute=False):
    """Return how many windows fit into `memory` bytes of a GPU, compiled."""
    free = memory - CONTEXT - fixed_bytes(config) - loss_bytes(memory)
    return max(0, free // window_bytes(config, recompute=recompute))


# ----------------------------------------------------------------------------
# The time of a step


def predict_step(config, gpu, causal, windows, micro_batch, mask_ratio):
    """Return ({part: seconds of a step}, MFU with the pairs that the mask leaves, MFU with T x T)."""
    d, T, n = config.d_model, config.seq_len, config.n_layer
    qkv, head = (config.n_head + 2 * config.n_kv_head) * config.head_dim, config.vocab_size * d
    products, all_blocks = (flops_per_token(config, length, causal, 0) for length in (0, T))
    weights = products / 6  # of the products in the blocks
    tokens, micro_steps = windows * T, windows / micro_batch
    predicted = tokens * (1 if causal else mask_ratio)

    attention = tokens * (all_blocks - products) / 3  # the forward pass with T x T pairs
    forward, backward = ATTENTION[causal]
    # The bytes that move. Head: three passes over the logits, and the gradient of the weight for each chunk. Blocks:
    # residual, norm, rotary positions and SwiGLU, forward and backward, and the weights cast to bf16. Around them:
    # the embedding, its gradient and the last norm. Optimizer: 12 bytes a parameter for clipping, 28 for AdamW.
    chunks = micro_steps * (1 + predicted / micro_steps // (MOST_LOGITS // config.vocab_size + 1))
    head_bytes = 6 * predicted * config.vocab_size + 8 * head * chunks
    block_bytes = 2 * tokens * n * (20 * d + 4 * qkv + 8 * config.d_ff)
    other_bytes = 6 * micro_steps * (weights + head) + 20 * micro_steps * head + 40 * tokens * d
    optimizer_bytes = 40 * (weights + 2 * head)

    peak, bandwidth = PEAK_FLOPS[gpu] * PRODUCT_SPEED, BANDWIDTH[gpu] * MEMORY_SPEED
    seconds = {
        "products": tokens * products / peak,
        "head": 6 * predicted * head / peak + head_bytes / bandwidth,
        "attention": PAIRS * attention * (1 / forward + 2.5 / backward),  # the backward pass counts as 2.5 forward
        "activations": (block_bytes + other_bytes) / bandwidth,
        "optimizer": optimizer_bytes / bandwidth,
    }
    speed = tokens / sum(seconds.values()) / PEAK_FLOPS[gpu]
    return seconds, *(speed * flops_per_token(config, T, causal, predicted / tokens, seen) for seen in (PAIRS, 1))


def muon_flops(config):
    """Compute the floating-point operations by which one step of Muon orthogonalizes the matrices of the blocks.

    For X (m, n) with m <= n, each of 5 Newton-Schulz iterations computes A = X Xᵀ, A A, and (b A + c A A) X.
    `qkv` and `gate_up` are one matrix each, as in the model.
    """
    d, heads, kv_heads = config.d_model, config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    shapes = (heads + 2 * kv_heads, d), (d, heads), (2 * config.d_ff, d), (d, config.d_ff)
    return config.n_layer * sum(5 * (4 * m * m * n + 2 * m**3) for m, n in map(sorted, shapes))


# ----------------------------------------------------------------------------
# All as Markdown tables


def print_row(*cells):
    print(f"| {' | '.join(map(str, cells))} |")


def main(cfg):
    print("computed, not measured; windows of 2,048 tokens, vocabulary of 128,256\n")
    print_row("GiB", "fixed", "eager", "compiled", *(f"{size} GB" for size in SIZES))
    print_row(*["---"] * (4 + len(SIZES)))
    for name, config in PAPER.items():
        for recompute in (False, True):
            kept = (window_bytes(config, compiled, recompute) / 2**30 for compiled in (False, True))
            fits = (largest_micro_batch(config, size * 10**9, recompute) or "-" for size in SIZES)
            cells = f"{fixed_bytes(config) / 2**30:.1f}", *(f"{x:.2f}" for x in kept), *fits
            print_row(name + ", recompute" * recompute, *cells)

    print()
    columns, totals = "micro_batch|products|head|attention|activations|optimizer|total|predicted MFU|measured MFU", {}
    print_row(f"ms for {WINDOWS} windows", *columns.split("|"))
    print_row(*["---"] * 10)
    for gpu in BANDWIDTH:
        for name, config in PAPER.items():
            preset = configurator.load(ROOT / "train.py", [str(ROOT / f"config/{name}.py")])
            for causal in (True, False):
                shape = WINDOWS, preset.micro_batch, max(preset.mask_ratio)
                seconds, mfu, mfu_all = predict_step(config, gpu, causal, *shape)
                total = sum(seconds.values())
                cells = (f"{1e3 * s:,.0f} ({s / total:.0%})" for s in seconds.values())
                title, mfus = f"{name} {'CLM' if causal else 'MLM'}, {gpu}", f"{mfu:.1%} ({mfu_all:.1%})"
                print_row(title, preset.micro_batch, *cells, f"{1e3 * total:,.0f}", mfus, " ")
                totals[name, gpu, causal] = total

    print()
    print_row("Muon's products, in each step", "TFLOP", "ms", "of the CLM step, H100", "of the MLM step, H100")
    print_row(*["---"] * 5)
    for name, config in PAPER.items():
        seconds = muon_flops(config) / (PEAK_FLOPS["H100"] * PRODUCT_SPEED)
        more = (f"+{seconds / totals[name, 'H100', causal]:.1%}" for causal in (True, False))
        print_row(name, f"{muon_flops(config) / 1e12:.1f}", f"{1e3 * seconds:.1f}", *more)
