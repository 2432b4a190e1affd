"""The floating-point operations (FLOPs) of a training step, and the peak FLOP/s of a device.

Together they give the model FLOPs utilization (MFU).
"""

import re
from functools import lru_cache

import torch

# Dense bf16 FLOP/s with fp32 accumulation, without sparsity, by a part of the device's name. From the vendors' data
# sheets and, for the RTX cards, NVIDIA's white papers on Ampere GA102, Ada and Blackwell.
PEAK_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 3090": 71e12,
    "RTX 4090": 165e12,
    "RTX 5090": 210e12,
    "MI300X": 1307e12,
}


@lru_cache(1)  # all steps of a run ask for the same model
def matrix_weights(transformer):
    """Return how many weights take part in matrix products, as two numbers: outside the output head, and in it.

    Every two-dimensional parameter counts, except those of embeddings.
    """
    total = 0
    for module in transformer.modules():
        if not isinstance(module, torch.nn.Embedding):
            total += sum(p.numel() for p in module.parameters(recurse=False) if p.ndim == 2)
    head = transformer.head.weight.numel()
    return total - head, head


def flops_per_token(transformer, T, causal, predicted, seen=1.0):
    """Return the floating-point operations per token of a training step: 6 for each weight of a matrix product.

    predicted: the fraction of tokens on which the output head runs. For attention, each pair of a query and a key
    counts, in two products: T x T pairs, half of them if causal. seen: the fraction of these within documents.
    """
    config = transformer.config
    body, head = matrix_weights(transformer)
    attention = 2 * T * config.n_head * config.head_dim * seen * (0.5 if causal else 1)
    return 6 * (body + len(transformer.blocks) * attention + predicted * head)


def step_flops(transformer, groups, window_split):
    """Return the floating-point operations of a step, over all processes. groups: see `data.objective.group_windows`.

    A window that is cut once at random keeps 2/3 of its pairs on average. Cuts at eos are not counted.
    """
    T = transformer.config.seq_len
    seen = 2 / 3 if window_split == "random" else 1.0
    flops = 0
    for objective, windows in groups.items():
        predicted = objective.n_predicted(T) / T
        flops += len(windows) * T * flops_per_token(transformer, T, objective.causal, predicted, seen)
    return flops


def utilization(dtype, flops, seconds, device):
    """Return the MFU of `flops` in `seconds` on one device, as {"mfu": text}, or {} if its peak is not known.

    dtype: of the activations. The peak is known for bfloat16 and for the GPUs of PEAK_FLOPS.
    """
    if device.type != "cuda" or dtype != "bfloat16" or not seconds:
        return {}
    name = torch.cuda.get_device_name(device).replace("-", " ")
    for part, peak in PEAK_FLOPS.items():
        if re.search(rf"\b{part}\b(?! (NVL|Ti|D|Laptop)\b)", name):  # an H100 NVL is another chip
            return {"mfu": f"{flops / seconds / peak:.1%}"}
    return {}
