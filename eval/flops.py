"""How much arithmetic a training step is, and how much of it a device could do."""

import re

import torch


def flops_per_token(config, T, causal, predicted):
    """Floating-point operations per token of a training step: 6 for each weight of a product.

    predicted: the share of tokens on which the head runs. Attention counts its two T x T
    products, half of them if causal; documents, which cut them further, are not counted.
    """
    d, D = config.d_model, config.head_dim
    block = (config.n_head + 2 * config.n_kv_head) * D * d + d * d + 3 * d * config.d_ff
    attention = 2 * T * d * (0.5 if causal else 1)
    return 6 * (config.n_layer * (block + attention) + predicted * config.vocab_size * d)


# Dense bf16 peak in FLOP/s by a part of the device's name (makers' data sheets, without sparsity).
PEAK_FLOPS = {"B200": 2250e12, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
              "RTX 4090": 165e12}  # fmt: skip


def peak_flops(device):
    """The peak of a torch.device in bf16 FLOP/s, or None where it is not known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    name = re.sub(r"[-_]", " ", name)
    return next((peak for part, peak in PEAK_FLOPS.items() if re.search(rf"\b{part}\b", name)), None)
