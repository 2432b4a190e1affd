"""Training steps per second of this code, next to other code for a model of the same shape, for CLM and for MLM.

    python -m eval.bench step                                            # the demo
    python -m eval.bench step --model=610m --micro_batch=8 --only=compiled,compiled_sdpa

A step is that of train.py: a batch from a memory-mapped file of random tokens, forward, backward, clipping, AdamW.
At the end, PyTorch's profiler shows where the time of the first variant goes.

The variants: ours is this code as it is, compiled the same with torch.compile, compiled_sdpa that with PyTorch's
attention, fp32 in that dtype, muon and compiled_muon with Muon instead of AdamW. transformers is the same
architecture (Llama, EuroBERT) with its own loss, on a GPU compiled. nanogpt is a GPT-2 in fp32.
"""

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
from data.objective import CLM, Objective
from eval.bench.loader import nanogpt_batch, random_data
from eval.bench.predict import PAIRS, peak_bytes
from eval.bench.timing import alternating, unknown_names
from model import PRESETS, PretrainingLoss, Transformer
from runtime import flops_per_token, peak_flops, resolve_auto

model = "demo"  # demo, 210m, 610m or 1b: a preset in config/
only = "ours,compiled,compiled_sdpa,muon,compiled_muon,transformers,fp32,nanogpt"  # the variants
micro_batch = 0  # windows of a step; 0 = the preset's
steps = 3  # steps of one repeat
repeats = 7  # the median of these counts
profiler_rows = 15  # rows of the profiler's table of the first variant; 0 = none

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = only.split(",")


def check(cfg):
    """Yield what is wrong with the settings."""
    names, choices = (["steps", "repeats"], ["micro_batch", "profiler_rows"]), {"model": [*PRESETS]}
    yield from configurator.outside_limits(cfg, *names, choices=choices)
    yield from unknown_names(cfg, "only", VARIANTS)


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


def make_loss(name, config, tokenizer, causal, dtype, on_gpu):
    """Return the module of a variant, which maps (batch, causal) to (loss, count)."""
    if name == "nanogpt":
        return GPT(config)
    if name == "transformers":
        loss = HubModel(config, tokenizer, causal, dtype)
        if on_gpu:
            loss.model.compile(dynamic=False)
        return loss
    loss = PretrainingLoss(Transformer(config))
    loss.model.compute_dtype = torch.float32 if name == "fp32" else dtype
    loss.model.attention_backend = "sdpa" if name == "compiled_sdpa" else "auto"
    if name.startswith("compiled"):
        loss.compile_parts()
    return loss


def make_step(loss_module, batches, causal, preset, muon=False):
    """Return a function that makes some steps of training, as train.py does."""
    device = torch.device(preset.device)
    params = [*loss_module.to(device).parameters()]
    betas = preset.beta1, preset.beta2
    matrices = [p for p in loss_module.model.blocks.parameters() if p.ndim == 2] if muon else []
    rest = [*{*params} - {*matrices}]
    optimizers = [torch.optim.AdamW(rest, 1e-4, betas, preset.eps, preset.weight_decay, fused=True)]
    if muon:
        optimizers.append(torch.optim.Muon(matrices, 1e-4, preset.weight_decay, adjust_lr_fn="match_rms_adamw"))

    def step(times=1):
        for _ in range(times):
            loss, count = loss_module(to_device(next(batches), device), causal)
            loss.backward()
            grads = [p.grad for p in params]
            norm = torch.nn.utils.get_total_norm(grads).item() / count.item()
            torch._foreach_mul_(grads, min(1.0, 1.0 / (norm + 1e-6)) / count.item())
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    return step


def bench_phase(cfg, preset, config, stream, tokenizer, causal):
    """Print the speed of every variant in one phase, and where the time of the first one goes."""
    device, T, windows, dtype = torch.device(preset.device), config.seq_len, preset.micro_batch, preset.dtype
    on_gpu, steps, memory = device.type == "cuda", {}, {}
    torch.manual_seed(0)
    kind = CLM if causal else Objective(mask_ratio=max(preset.mask_ratio))
    source = Batches(stream, tokenizer, 1, T, windows, preset.window_split, max(preset.mask_ratio))
    batches = prefetch(source.batch, ((i, kind) for i in itertools.count()))
    gpt_batches = (nanogpt_batch(stream, T, windows) for _ in itertools.count())
    for name in cfg.only.split(","):
        others = torch.cuda.memory_allocated() if on_gpu else 0
        try:
            loss = make_loss(name, config, tokenizer, causal, getattr(torch, dtype), on_gpu)
            step = make_step(loss, gpt_batches if name == "nanogpt" else batches, causal, preset, "muon" in name)
            step()
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            step()  # now compiled, and with the optimizer's state
            memory[name] = f"{(torch.cuda.max_memory_allocated() - others) / 1e9:>8.1f} GB" if on_gpu else ""
            steps[name] = partial(step, cfg.steps)
        except Exception as error:  # out of memory, or another package is missing or fails: measure the rest
            print(f"left out: {name}: {type(error).__name__}: {str(error).strip()[:300]}")
    if not steps:
        sys.exit("none of the variants ran")
    seconds = alternating(steps, cfg.repeats)

    predicted = 1 if causal else kind.mask_ratio
    pairs = PAIRS if preset.window_split == "random" else 1
    flops, most = (flops_per_token(config, T, causal, predicted, seen) for seen in (pairs, 1))
    peak = peak_flops(device) if dtype != "float32" else None
    phase = "CLM" if causal else "MLM"
    print(
        f"\n{cfg.model}, {phase}: {windows} windows of {T}, window_split={preset.window_split}, "
        f"vocabulary {config.vocab_size:,}, {dtype}; medians of {cfg.repeats} times {cfg.steps} steps"
    )
    if on_gpu:
        computed = peak_bytes(config, windows, torch.cuda.get_device_properties(device).total_memory) / 1e9
        print(f"MFU by the pairs that the mask leaves (by T x T); computed peak of memory, compiled: {computed:.1f} GB")
    first = next(iter(steps))
    for name, value in seconds.items():
        speed = cfg.steps * windows * T / value
        mfu = f"{speed * flops / peak:>8.1%} MFU ({speed * most / peak:.1%})" if peak and name != "nanogpt" else ""
        print(f"{phase} {name:<14}{speed:>10,.0f} tokens/s {seconds[first] / value:>6.2f}x{mfu}{memory[name]}")
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
            bench_phase(cfg, preset, config, *data, causal)
            torch.compiler.reset()
