"""Training steps per second of this code, next to other code for a model of the same shape.

    python -m eval.bench step                                            # the demo, CLM and MLM
    python -m eval.bench step --model=610m --phase=mlm --micro_batch=8

A step is that of train.py: a batch from a memory-mapped file of random tokens, forward, backward, clipping, AdamW.
At the end, PyTorch's profiler shows where the time of the first variant goes.

The variants: ours is this code as it is, sdpa with PyTorch's attention, compiled with torch.compile, fp32 in that
dtype. transformers is the same architecture (Llama, EuroBERT) with its own loss. nanogpt is a GPT-2 in fp32.
"""

import copy
import itertools
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import configurator
from checkpoint import model_config
from data.loader import Batches, prefetch, to_device
from eval.bench.loader import nanogpt_batch, random_data
from eval.bench.timing import alternating, hardware
from model import PRESETS, PretrainingLoss, Transformer
from runtime import flops_per_token, peak_flops, resolve_auto

model = "demo"  # the shape: demo, 210m, 610m or 1b; settings that are 0 or empty come from its preset in config/
phase = "both"  # clm, mlm or both
only = ""  # some of ours,sdpa,compiled,compiled_sdpa,fp32,transformers,nanogpt; empty = all that suit the device
micro_batch = 0  # windows of a step
window_split = ""  # none, random or document
steps = 3  # steps of one repeat
repeats = 7  # the median of these counts
dtype = "auto"  # of activations: float32 or bfloat16; auto = bfloat16 where the device has it

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("ours", "sdpa", "compiled", "compiled_sdpa", "fp32", "transformers", "nanogpt")


def check(cfg):
    """Yield what is wrong with the settings."""
    choices = dict(model=[*PRESETS], phase=["clm", "mlm", "both"], dtype=["auto", "float32", "bfloat16"])
    choices["window_split"] = ["", "none", "random", "document"]
    for name, values in choices.items():
        if cfg[name] not in values:
            yield f"{name}={cfg[name]}: must be one of {', '.join(filter(None, values))}"
    for name in filter(None, cfg.only.split(",")):
        if name not in NAMES:
            yield f"only={name}: must be some of {','.join(NAMES)}"
    for name, low in dict(micro_batch=0, steps=1, repeats=1).items():
        if cfg[name] < low:
            yield f"{name}={cfg[name]}: must be at least {low}"


# ----------------------------------------------------------------------------
# Other code for the same shape. Like PretrainingLoss: (batch, causal) -> (loss, count)


class GPTBlock(nn.Module):
    def __init__(self, d, n_head):
        super().__init__()
        self.n_head, self.norm1, self.norm2 = n_head, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        B, T, d = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, d))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """The model of nanoGPT: GPT-2 blocks, learned positions, tied head, logits at every position."""

    def __init__(self, config):
        super().__init__()
        d = config.d_model
        self.tokens, self.positions = nn.Embedding(config.vocab_size, d), nn.Embedding(config.seq_len, d)
        self.blocks = nn.Sequential(*(GPTBlock(d, config.n_head) for _ in range(config.n_layer)))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, config.vocab_size, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, batch, causal):
        x = self.tokens(batch["tokens"]) + self.positions.weight[: batch["tokens"].shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten()), torch.ones((), device=x.device)


class HubModel(nn.Module):
    """The same architecture in `transformers`, with its own loss over the logits of every position."""

    def __init__(self, config, causal, dtype, compiled):
        from transformers import EuroBertConfig, EuroBertForMaskedLM, LlamaConfig, LlamaForCausalLM

        super().__init__()
        shape = dict(vocab_size=config.vocab_size, hidden_size=config.d_model, intermediate_size=config.d_ff)
        shape |= dict(num_hidden_layers=config.n_layer, num_attention_heads=config.n_head, head_dim=config.head_dim)
        shape |= dict(num_key_value_heads=config.n_kv_head, max_position_embeddings=config.seq_len)
        shape |= dict(rms_norm_eps=config.norm_eps, tie_word_embeddings=config.tie_embeddings, use_cache=False)
        shape |= dict(attn_implementation="sdpa", pad_token_id=0, bos_token_id=0, eos_token_id=0)
        if causal:
            self.model = LlamaForCausalLM(LlamaConfig(**shape))
        else:
            self.model = EuroBertForMaskedLM(EuroBertConfig(mask_token_id=0, **shape))
        self.dtype = dtype
        if compiled:
            self.model.compile(dynamic=False)

    def forward(self, batch, causal):
        labels = batch["tokens"]
        if not causal:
            targets = batch["targets"].where(batch["targets"] >= 0, -100)
            labels = torch.full_like(labels, -100).flatten().scatter(0, batch["positions"], targets).view_as(labels)
        with torch.autocast(labels.device.type, self.dtype, enabled=self.dtype != torch.float32):
            loss = self.model(input_ids=batch["tokens"], labels=labels).loss
        return loss, torch.ones((), device=labels.device)


# ----------------------------------------------------------------------------
# The benchmark


class Step:
    """One optimizer step, as in train.py."""

    def __init__(self, loss_module, batches, causal, preset, device):
        self.loss_module, self.batches, self.causal, self.device = loss_module, batches, causal, device
        self.params = list(loss_module.parameters())
        betas, eps, weight_decay = (preset.beta1, preset.beta2), preset.eps, preset.weight_decay
        self.optimizer = torch.optim.AdamW(self.params, 1e-4, betas, eps, weight_decay, fused=True)

    def __call__(self, times=1):
        for _ in range(times):
            loss, count = self.loss_module(to_device(next(self.batches), self.device), self.causal)
            loss.backward()
            grads = [p.grad for p in self.params]
            norm = torch.nn.utils.get_total_norm(grads).item() / count.item()
            torch._foreach_mul_(grads, min(1.0, 1.0 / (norm + 1e-6)) / count.item())
            self.optimizer.step()
            self.optimizer.zero_grad()


def names_to_run(cfg):
    if cfg.only:
        return cfg.only.split(",")
    left_out = [] if find_spec("transformers") else ["transformers"]
    left_out += ["fp32", "nanogpt"] if cfg.device == "cuda" else ["compiled_sdpa"]
    left_out += [] if cfg.model == "demo" else ["nanogpt"]
    return [name for name in NAMES if name not in left_out]


def variants(cfg, preset, config, data, causal):
    """Yield (name, Step, bytes on the GPU before it was made).

    Ours share one set of weights, optimizer state and batches, so that they fit into memory side by side.
    """
    device, dtype, first = torch.device(cfg.device), getattr(torch, cfg.dtype), None
    stream, tokenizer = data

    def batches(window_split):
        T, windows = config.seq_len, cfg.micro_batch
        source = Batches(stream, tokenizer, 1, T, windows, window_split, preset.mask_ratio)
        return prefetch(source.batch, ((i, causal) for i in itertools.count()))

    for name in names_to_run(cfg):
        held = torch.cuda.memory_allocated() if cfg.device == "cuda" else 0
        if name == "transformers":
            module = HubModel(config, causal, dtype, compiled=cfg.device == "cuda").to(device)
            yield name, Step(module, batches("none"), causal, preset, device), held
        elif name == "nanogpt":
            endless = (nanogpt_batch(stream, config.seq_len, cfg.micro_batch) for _ in itertools.count())
            yield name, Step(GPT(config).to(device), endless, causal, preset, device), held
        else:
            if first is None:
                module = PretrainingLoss(Transformer(config).to(device))
                first = Step(module, batches(cfg.window_split), causal, preset, device)
            step = copy.copy(first)
            step.loss_module = copy.deepcopy(first.loss_module, {id(p): p for p in first.params})
            encoder = step.loss_module.model
            encoder.compute_dtype = torch.float32 if name == "fp32" else dtype
            encoder.attention_backend = "sdpa" if "sdpa" in name else "auto"
            if "compiled" in name:
                step.loss_module.compile_parts()
            yield name, step, 0


def bench_phase(cfg, preset, config, data, causal):
    """Print the speed of every variant in one phase, and where the time of ours goes."""
    device, on_gpu, steps, peaks = torch.device(cfg.device), cfg.device == "cuda", {}, {}
    torch.manual_seed(0)
    for name, step, held in variants(cfg, preset, config, data, causal):
        try:
            step()
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            step()  # now compiled, and with the optimizer's state
        except Exception as error:  # out of memory, or an error of another package: measure the rest
            print(f"left out: {name}: {type(error).__name__}: {str(error).strip()[:300]}")
            continue
        steps[name], peaks[name] = step, torch.cuda.max_memory_allocated() - held if on_gpu else 0
    if not steps:
        sys.exit("none of the variants ran")
    seconds = alternating({name: partial(step, cfg.steps) for name, step in steps.items()}, cfg.repeats)

    T, windows = config.seq_len, cfg.micro_batch
    flops = flops_per_token(config, T, causal, 1 if causal else round(preset.mask_ratio * T) / T)
    peak = peak_flops(device) if cfg.dtype != "float32" else None
    print(
        f"\n{cfg.model}, {'CLM' if causal else 'MLM'}: {windows} windows of {T}, window_split={cfg.window_split}, "
        f"vocabulary {config.vocab_size:,}, {cfg.dtype}, {flops / 1e6:,.1f}M FLOPs a token; "
        f"medians of {cfg.repeats} times {cfg.steps} steps"
    )
    for name, value in seconds.items():
        speed = cfg.steps * windows * T / value
        line = f"{name:<14}{speed:>10,.0f} tokens/s {seconds[next(iter(seconds))] / value:>6.2f}x"
        if peak and name != "nanogpt":
            line += f"{speed * flops / peak:>8.1%} MFU"
        print(line + (f"{peaks[name] / 2**30:>8.2f} GiB" if on_gpu else ""))
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        next(iter(steps.values()))(cfg.steps)
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=order, row_limit=15, max_name_column_width=50))


def main(args):
    cfg = configurator.load(__file__, args, check, command="python -m eval.bench step")
    print(hardware())
    preset = configurator.load(ROOT / "train.py", [str(ROOT / f"config/{cfg.model}.py")])
    for name in ("micro_batch", "window_split"):
        cfg[name] = cfg[name] or preset[name]
    cfg = resolve_auto(configurator.Settings(cfg, device="auto"))
    config = model_config(preset, 4096 if cfg.model == "demo" else 128_256)
    with tempfile.TemporaryDirectory() as folder:
        data = random_data(folder, config.vocab_size, max(2**20, 64 * cfg.micro_batch * config.seq_len))
        for causal in (True, False):
            if cfg.phase in ("both", "clm" if causal else "mlm"):
                bench_phase(cfg, preset, config, data, causal)
                torch.compiler.reset()
