"""The time of a training step on one GPU, predicted from its arithmetic and its memory traffic, as a Markdown table.

Blocks are compiled, in bf16. Products reach `product_speed` of the GPU's peak, attention reaches what others published
for an H100, everything else reaches `memory_speed` of the bandwidth, and nothing overlaps. "head" is the products of
the output head, the loss, and the gradient of the head's weight. MFU counts the pairs of a query and a key that the
mask leaves, and in brackets all T x T of them (half if causal).
"""

import math
from pathlib import Path

import configurator
from checkpoint import model_config
from eval.bench.memory import MOST_LOGITS
from runtime import PEAK_FLOPS, flops_per_token

windows = 144  # windows of a step on one GPU: the paper's batch on eight
micro_batch = 0  # windows of a micro-step; 0 = the preset's
vocab_size = 128_256  # tokens in the vocabulary
product_speed = 0.70  # of the peak
memory_speed = 0.85  # of the bandwidth

ROOT = Path(__file__).resolve().parents[2]
BANDWIDTH = {"H100": 3.35e12, "H200": 4.8e12}  # bytes per second, from the data sheets
ATTENTION = {True: (250e12, 220e12), False: (350e12, 265e12)}  # causal: FLOP/s of the forward and backward pass
PAIRS = 2 / 3  # what is left of T x T when a window is cut in two at random: the mean of x² + (1 - x)²


def check(cfg):
    """Yield what is wrong with the settings."""
    yield from configurator.outside_limits(cfg, ["windows"], ["micro_batch"], ["product_speed", "memory_speed"])


def predict(cfg, preset, gpu, causal):
    """Return ({part: seconds of a step}, MFU with the pairs that the mask leaves, MFU with T x T)."""
    config = model_config(preset, cfg.vocab_size)
    d, T, n = config.d_model, config.seq_len, config.n_layer
    qkv = (config.n_head + 2 * config.n_kv_head) * config.head_dim
    block, head = qkv * d + d * d + 3 * d * config.d_ff, config.vocab_size * d  # weights of the products
    tokens, micro_steps = cfg.windows * T, cfg.windows / (cfg.micro_batch or preset.micro_batch)
    predicted = tokens * (1 if causal else preset.mask_ratio)

    attention = 4 * tokens * T * d * n * (0.5 if causal else 1)  # the forward pass with T x T pairs
    forward, backward = ATTENTION[causal]
    # The bytes that move. Head: three passes over the logits, and the gradient of the weight for each chunk. Blocks:
    # residual, norm, rotary positions and SwiGLU, forward and backward, and the weights cast to bf16. Around them:
    # the embedding, its gradient and the last norm. Optimizer: 12 bytes a parameter for clipping, 28 for AdamW.
    chunks = micro_steps * math.ceil(predicted / micro_steps / (MOST_LOGITS // config.vocab_size // 256 * 256))
    head_bytes = 6 * predicted * config.vocab_size + 8 * head * chunks
    block_bytes = 2 * tokens * n * (20 * d + 4 * qkv + 8 * config.d_ff)
    other_bytes = 6 * micro_steps * (n * block + head) + 20 * micro_steps * head + 40 * tokens * d
    optimizer_bytes = 40 * (n * block + 2 * head)

    peak, speed = PEAK_FLOPS[gpu] * cfg.product_speed, BANDWIDTH[gpu] * cfg.memory_speed
    seconds = {
        "products": 6 * tokens * n * block / peak,
        "head": 6 * predicted * head / peak + head_bytes / speed,
        "attention": PAIRS * attention * (1 / forward + 2.5 / backward),  # the backward pass counts as 2.5 forward
        "activations": (block_bytes + other_bytes) / speed,
        "optimizer": optimizer_bytes / speed,
    }
    speed = tokens / sum(seconds.values()) / PEAK_FLOPS[gpu]
    return seconds, *(speed * flops_per_token(config, T, causal, predicted / tokens, seen) for seen in (PAIRS, 1))


def main(cfg):
    print(f"predicted, not measured: a step of {cfg.windows} windows of 2,048 tokens; ms (share of the step)\n")
    columns = "products|head|attention|activations|optimizer|total|predicted MFU|measured MFU"
    print(f"| |micro_batch|{columns}|\n|---" + "|---" * 9 + "|")
    for gpu in BANDWIDTH:
        for name in ("210m", "610m", "1b"):
            preset = configurator.load(ROOT / "train.py", [str(ROOT / f"config/{name}.py")])
            for causal in (True, False):
                seconds, mfu, mfu_all = predict(cfg, preset, gpu, causal)
                total = sum(seconds.values())
                cells = [f"{1e3 * s:,.0f} ({s / total:.0%})" for s in seconds.values()]
                cells = [cfg.micro_batch or preset.micro_batch, *cells, f"{1e3 * total:,.0f}"]
                title = f"{name} {'CLM' if causal else 'MLM'}, {gpu}"
                print(f"| {title} | {' | '.join(map(str, cells))} | {mfu:.1%} ({mfu_all:.1%}) | |")
