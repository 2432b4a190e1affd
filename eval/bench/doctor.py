"""Whether this machine works, and what to set: the first thing to run on a new one."""

import platform
import sys

import torch

import model
import model_checks
import runtime

head_dims = (64, 96, 128, 32)  # of the kernels that are compared, on a GPU

AUTO = {"device": "auto", "dtype": "auto"}


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


def main(cfg):
    print_hardware()
    settings = runtime.resolve_auto(AUTO)
    print(f"device={settings['device']}, dtype={settings['dtype']}, GPUs: {torch.cuda.device_count()}")
    if not torch.cuda.is_available():
        print("what to set: nothing. Train the demo (python train.py); larger models need a GPU")
        return
    free, total = torch.cuda.mem_get_info()
    print(f"what to set: docs/speed.md has the micro_batch for {free / 1e9:.1f} GB, free of {total / 1e9:.1f}")
    kernels(cfg.head_dims)
