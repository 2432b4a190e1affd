"""Tiny models whose folders are compared with other programs."""

import torch

import checkpoint
from data.hub import write_folder


def random_weights(model, seed=0):
    """Weights as large as after training: with smaller ones, a wrong rotation would hardly show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(std=0.3, generator=generator).add_(name.endswith("norm.weight"))
    return model.eval()


def export(state, folder, kind):
    """Export a checkpoint's dict; return the folder."""
    write_folder(state, checkpoint.model_from(state), "ckpt-650.pt", folder, kind)
    return folder
