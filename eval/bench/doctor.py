"""Whether this machine works, and what to set: the first thing to run on a new one."""

import sys

import torch

from model import ModelConfig
from model_checks import fused_attention_fails
from run import versions
from runtime import resolve_auto

head_dims = (64, 96, 128, 32)  # of the kernels that are compared, on a GPU


def print_hardware(device):
    """Print the versions and the device, "cpu" or "cuda", in one line."""
    print(", ".join(map(" ".join, versions(torch.device(device)).items())))


def kernels(head_dims, device, dtype):
    """Compare the fused attention kernels with float64 for every mask, and look for rare differences."""
    failed = False
    for D in head_dims:
        config = ModelConfig(n_head=18, n_kv_head=6, head_dim=D)
        why = fused_attention_fails(config, dtype, device)
        print(f"head dim {D}: {f'FAILED: {why}' if why else 'the kernels agree with float64'}")
        failed = failed or why
    if failed:
        sys.exit("where they failed, runs use PyTorch's attention, which is slower")


def main(cfg):
    settings = resolve_auto({"device": "auto", "dtype": "auto"})
    device = settings["device"]
    print_hardware(device)
    print(f"device={device}, dtype={settings['dtype']}, GPUs: {torch.cuda.device_count()}")
    if device == "cpu":
        print("what to set: nothing. Train the demo (python train.py); larger models need a GPU")
        return
    free, total = torch.cuda.mem_get_info()
    print(f"what to set: docs/speed.md has the micro_batch for {free / 1e9:.1f} GB, free of {total / 1e9:.1f}")
    kernels(cfg.head_dims, torch.device(device), getattr(torch, settings["dtype"]))
