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
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.profiler import profile

import configurator
from checkpoint import model_config
from data.hub import hub_config
from data.loader import Batches, prefetch, to_device
from eval.bench.loader import nanogpt_batch, random_data
from eval.bench.memory import peak_bytes
from eval.bench.roofline import PAIRS
from eval.bench.timing import alternating, unknown_names
from model import PRESETS, PretrainingLoss, Transformer
from runtime import flops_per_token, peak_flops, resolve_auto

model = "demo"  # demo, 210m, 610m or 1b: a preset in config/
phase = "both"  # clm, mlm or both
only = ""  # some of ours,sdpa,compiled,compiled_sdpa,transformers,fp32,nanogpt; empty = all; without the last two if not the demo
micro_batch = 0  # windows of a step; 0 = the preset's
steps = 3  # steps of one repeat
repeats = 7  # the median of these counts
profiler_rows = 15  # rows of the profiler's table of the first variant; 0 = none

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("ours", "sdpa", "compiled", "compiled_sdpa", "transformers", "fp32", "nanogpt")


def check(cfg):
    """Yield what is wrong with the settings."""
    choices = dict(model=[*PRESETS], phase=["clm", "mlm", "both"])
    yield from configurator.outside_limits(cfg, ["steps", "repeats"], ["micro_batch", "profiler_rows"], choices=choices)
    yield from unknown_names("only", cfg.only, NAMES)


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

    def __init__(self, config, tokenizer, causal, dtype):
        import transformers

        super().__init__()
        kind, name = ("llama", "LlamaForCausalLM") if causal else ("eurobert", "EuroBertForMaskedLM")
        shape = hub_config({"config": vars(config)}, tokenizer, name, kind)
        hub = transformers.AutoConfig.for_model(**shape, use_cache=False, attn_implementation="sdpa")
        self.model, self.dtype = getattr(transformers, name)(hub), dtype

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
        self.loss_module, self.batches, self.causal = loss_module.to(device), batches, causal
        self.preset, self.device, self.params = preset, device, list(loss_module.parameters())
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


def make_variant(name, ours, dtype, stream, tokenizer):
    """Return the Step of a variant. `ours` share weights, optimizer and batches, to fit into memory side by side."""
    config, same = ours.loss_module.model.config, (ours.causal, ours.preset, ours.device)
    if name == "transformers":
        module = HubModel(config, tokenizer, ours.causal, dtype)
        if ours.device.type == "cuda":
            module.model.compile(dynamic=False)
        return Step(module, ours.batches, *same)
    if name == "nanogpt":
        n_windows = ours.preset.micro_batch
        endless = (nanogpt_batch(stream, config.seq_len, n_windows) for _ in itertools.count())
        return Step(GPT(config), endless, *same)
    step = copy.copy(ours)
    step.loss_module = copy.deepcopy(ours.loss_module, {id(p): p for p in ours.params})
    encoder = step.loss_module.model
    encoder.compute_dtype = torch.float32 if name == "fp32" else dtype
    encoder.attention_backend = "sdpa" if "sdpa" in name else "auto"
    if "compiled" in name:
        step.loss_module.compile_parts()
    return step


def bench_phase(cfg, preset, config, data, causal):
    """Print the speed of every variant in one phase, and where the time of the first one goes."""
    device, T, windows = torch.device(preset.device), config.seq_len, preset.micro_batch
    on_gpu, steps, memory = device.type == "cuda", {}, {}
    torch.manual_seed(0)
    source = Batches(*data, 1, T, windows, preset.window_split, preset.mask_ratio)
    batches = prefetch(source.batch, ((i, causal) for i in itertools.count()))
    ours = Step(PretrainingLoss(Transformer(config)), batches, causal, preset, device)
    for name in cfg.only.split(",") if cfg.only else NAMES if cfg.model == "demo" else NAMES[:-2]:
        try:
            step = make_variant(name, ours, getattr(torch, preset.dtype), *data)
            step()
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            step()  # now compiled, and with the optimizer's state
            memory[name] = f"{torch.cuda.max_memory_allocated() / 1e9:>8.1f} GB" if on_gpu else ""
            steps[name] = partial(step, cfg.steps)
        except Exception as error:  # out of memory, or another package is missing or fails: measure the rest
            print(f"left out: {name}: {type(error).__name__}: {str(error).strip()[:300]}")
    if not steps:
        sys.exit("none of the variants ran")
    seconds = alternating(steps, cfg.repeats)

    predicted = 1 if causal else round(preset.mask_ratio * T) / T
    seen = PAIRS if preset.window_split == "random" else 1
    flops, most = (flops_per_token(config, T, causal, predicted, pairs) for pairs in (seen, 1))
    peak = peak_flops(device) if preset.dtype != "float32" else None
    print(
        f"\n{cfg.model}, {'CLM' if causal else 'MLM'}: {windows} windows of {T}, window_split={preset.window_split}, "
        f"vocabulary {config.vocab_size:,}, {preset.dtype}, {flops / 1e6:,.1f}M FLOPs a token; "
        f"medians of {cfg.repeats} times {cfg.steps} steps"
    )
    if on_gpu:
        computed = peak_bytes(config, windows) / 1e9
        print(
            f"MFU by the pairs that the mask leaves (by T x T); peak of memory, computed: {computed:.1f} GB if compiled"
        )
    first = next(iter(steps))
    for name, value in seconds.items():
        speed = cfg.steps * windows * T / value
        mfu = f"{speed * flops / peak:>8.1%} MFU ({speed * most / peak:.1%})" if peak and name != "nanogpt" else ""
        print(f"{name:<14}{speed:>10,.0f} tokens/s {seconds[first] / value:>6.2f}x{mfu}{memory[name]}")
    if cfg.profiler_rows:
        with profile() as profiler:
            steps[first]()
        order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        print(profiler.key_averages().table(sort_by=order, row_limit=cfg.profiler_rows, max_name_column_width=50))


def main(cfg):
    changed = [f"--micro_batch={cfg.micro_batch}"] if cfg.micro_batch else []
    preset = resolve_auto(configurator.load(ROOT / "train.py", [str(ROOT / f"config/{cfg.model}.py"), *changed]))
    config = model_config(preset, 4096 if cfg.model == "demo" else 128_256)
    with tempfile.TemporaryDirectory() as folder:
        data = random_data(folder, config.vocab_size, max(2**20, 64 * preset.micro_batch * config.seq_len))
        for causal in (True, False):
            if cfg.phase in ("both", "clm" if causal else "mlm"):
                bench_phase(cfg, preset, config, data, causal)
                torch.compiler.reset()
