"""Whether this machine works, and what to set: the first thing to run on a new one."""

import platform
import sys

import torch

import model
import model_checks
import runtime

head_dims = (64, 96, 128, 32)  # of the kernels that are compared, on a GPU

PAPER = {name: model.ModelConfig(vocab_size=128_256, **model.PRESETS[name]) for name in ("210m", "610m", "1b")}
AUTO = {"device": "auto", "dtype": "auto"}
WINDOWS = 144  # windows of a step on one GPU: the paper's batch on eight


# ----------------------------------------------------------------------------
# Memory of training in bf16 with compiled blocks, in bytes: computed, not measured


def fixed_bytes(config):
    """Compute what depends neither on the micro-batch nor on the GPU, as PyTorch's allocator counts it.

    Weights, gradients and AdamW's moments are 16 bytes a parameter. The allocator's peaks show 20, and we do not know
    why. The weights of blocks and head are also there in bf16, and the gradient of the head twice.
    """
    with torch.device("meta"):
        parameters = sum(p.numel() for p in model.Transformer(config).parameters())
    embedding = config.vocab_size * config.d_model
    return 20 * parameters + 2 * (parameters - embedding) + 4 * embedding


def window_bytes(config):
    """Compute what the backward pass of one window keeps, with the fused attention kernels."""
    d, heads = config.d_model, 2 * (config.n_head + config.n_kv_head)  # of q, k, v and the output
    block = 2 * heads * config.head_dim + 4 * (config.n_head + 2)  # in fp32: the log-sum-exp and the norms' statistics
    block += 8 * d + 6 * config.d_ff  # the inputs of the norms and products; the rest is computed again
    after = 8 * d  # the last block's output, its norm, the rows that are predicted, their gradient
    return config.seq_len * (config.n_layer * block + after)


def loss_bytes(memory):
    """Compute what a chunk of the loss takes on a GPU: its logits, their gradient, and that of the chunk before."""
    return 3 * 2 * min(2**30, memory // 64)  # the chunk of model.linear_cross_entropy


def largest_micro_batch(config, memory):
    """Return how many windows fit into `memory` bytes of a GPU, beside 1 GiB for CUDA."""
    return max(0, (memory - 2**30 - fixed_bytes(config) - loss_bytes(memory)) // window_bytes(config))


# ----------------------------------------------------------------------------
# The parts


def print_hardware():
    """Print the machine and the software in one line."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    triton = getattr(model.triton, "__version__", "missing")
    software = f"Python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    print(f"{device}, threads: {torch.get_num_threads()}, {software}, Triton {triton}")


def kernels(head_dims):
    """Compare the fused attention kernels with float64 for every mask, and look for rare differences."""
    settings = runtime.resolve_auto(AUTO)
    failed = False
    for D in head_dims:
        config = model.ModelConfig(n_head=18, n_kv_head=6, head_dim=D)
        dtype = getattr(torch, settings["dtype"])
        why = model_checks.fused_attention_fails(config, dtype, torch.device(settings["device"]))
        print(f"head dim {D}: {f'FAILED: {why}' if why else 'the kernels agree with float64'}")
        failed = failed or why
    if failed:
        sys.exit("where they failed, runs use PyTorch's attention, which is slower")


def memory():
    """Print the largest micro_batch of each preset that fits and divides the windows of a step evenly."""
    free, total = torch.cuda.mem_get_info()
    print(f"memory: {free / 1e9:.1f} of {total / 1e9:.1f} GB are free")
    for name, config in PAPER.items():
        most = largest_micro_batch(config, free)
        fits = max((n for n in range(1, most + 1) if WINDOWS % n == 0), default=0)
        print(f"what to set: config/{name}.py {f'--micro_batch={fits}' if fits else '--recompute=True'}")


def main(cfg):
    print_hardware()
    settings = runtime.resolve_auto(AUTO)
    print(f"device: {settings['device']}, dtype: {settings['dtype']}, GPUs: {torch.cuda.device_count()}")
    if not torch.cuda.is_available():
        print("what to set: nothing. Train the demo (python train.py); larger models need a GPU")
        return
    memory()
    kernels(cfg.head_dims)
