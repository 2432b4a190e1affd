"""Check that this machine works and say what to set. Run it first on a new machine.

    python -m eval.bench.doctor

`sh eval/bench/gpu.sh FOLDER` measures speeds on a GPU.
"""

import sys

import torch

import configurator
from errors import exit_with_message
from model import ModelConfig
from model_checks import fused_attention_fails
from run import versions
from runtime import resolve_auto

head_dims = (64, 96, 128, 32)  # head dimensions to check the kernels with, on a GPU


def kernels(head_dims, device, dtype):
    """Compare the fused attention kernels with float64 for every mask, also repeatedly to find rare errors."""
    failed = False
    for D in head_dims:
        why = fused_attention_fails(ModelConfig(n_head=18, n_kv_head=6, head_dim=D), dtype, device)
        print(f"head dim {D}: {f'FAILED: {why}' if why else 'the kernels agree with float64'}")
        failed = failed or why
    if failed:
        sys.exit("For head dims that failed, runs use PyTorch's attention, which is slower.")


@exit_with_message()
def main(argv):
    cfg = configurator.load(__file__, argv, command="python -m eval.bench.doctor")
    settings = resolve_auto({"device": "auto", "dtype": "auto"})
    device = torch.device(settings["device"])
    print(", ".join(map(" ".join, versions(device).items())))
    print(f"device={device}, dtype={settings['dtype']}, GPUs: {torch.cuda.device_count()}")
    if device.type == "cpu":
        print("what to set: nothing. Train the demo (python train.py); larger models need a GPU")
        return
    free, total = torch.cuda.mem_get_info()
    print(f"what to set: micro_batch, by docs/speed.md; free GPU memory in GB: {free / 1e9:.1f} of {total / 1e9:.1f}")
    kernels(cfg.head_dims, device, getattr(torch, settings["dtype"]))


if __name__ == "__main__":
    main(sys.argv[1:])
