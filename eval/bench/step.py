"""`python eval/bench.py step`: training steps per second of this code and of others of the same shape.

    python eval/bench.py step                                            # the demo, both phases
    python eval/bench.py step --model=610m --phase=mlm --micro_batch=8

A step is what train.py's is: a batch from a memory-mapped file of random tokens, forward, backward,
clipping, AdamW. All variants run in turn; then steps that do not count tell where the time goes.
"""

import copy
import itertools
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import configurator
from data.loader import Batches, TokenStream, prefetch, to_device
from runtime import flops_per_token, peak_flops
from eval.bench.timing import alternating, hardware
from model import PRESETS, Linear, PretrainingLoss, Transformer, attention, linear_cross_entropy
from checkpoint import model_config
from runtime import resolve_auto as resolved

model = "demo"  # the shape: demo, 210m, 610m or 1b; what is 0 or empty below is its preset's in config/
phase = "both"  # clm, mlm or both
only = ""  # some of ours,sdpa,compiled,compiled_sdpa,fp32,transformers,nanogpt; empty = all that suit the device
micro_batch = 0  # windows of a step
window_split = ""  # none, random or document
mask_ratio = 0.0  # share of the tokens that MLM predicts
vocab_size = 0  # 0 = 4,096 for the demo, 128,256 for the others
recompute = False  # activation checkpointing, of ours
steps = 3  # of one repeat
repeats = 7  # of which the median counts
device = "auto"  # cuda where there is one, else cpu
dtype = "auto"  # of activations; auto = bfloat16 where the device has it

ROOT = Path(__file__).resolve().parents[1]
ON_CPU = ("ours", "sdpa", "compiled", "fp32", "transformers", "nanogpt")
ON_GPU = ("ours", "sdpa", "compiled", "compiled_sdpa", "transformers")
TITLES = dict(ours="ours", sdpa="ours, SDPA", compiled="ours, compiled", compiled_sdpa="ours, SDPA, compiled",
              fp32="ours, fp32", transformers="transformers", nanogpt="nanoGPT-style, fp32")  # fmt: skip


def check(s):
    choices = dict(model=[*PRESETS], phase=["clm", "mlm", "both"], window_split=["", "none", "random", "document"],
                   device=["auto", "cpu", "cuda"], dtype=["auto", "float32", "bfloat16", "float16"])  # fmt: skip
    for name, values in choices.items():
        if s[name] not in values:
            yield f"{name}={s[name]}: must be one of {', '.join(filter(None, values))}"
    for name, low in dict(micro_batch=0, vocab_size=0, steps=1, repeats=1).items():
        if s[name] < low:
            yield f"{name}={s[name]}: must be at least {low}"
    if not 0 <= s["mask_ratio"] < 1:
        yield f"mask_ratio={s['mask_ratio']}: must be at least 0 and below 1"
    for name in filter(None, s["only"].split(",")):
        if name not in TITLES:
            yield f"only={name}: must be some of {','.join(TITLES)}"
    if "transformers" in s["only"] and not find_spec("transformers"):
        yield "only=transformers: needs that package (pip install transformers)"
    if "nanogpt" in s["only"] and s["model"] != "demo":
        yield f"only=nanogpt: is for the demo's shape, not model={s['model']}"
    if s["device"] == "cuda" and not torch.cuda.is_available():
        yield "device=cuda: this machine has no GPU that torch can use"


# ----------------------------------------------------------------------------
# What is compared


class GPT(nn.Module):
    """The model of a nanoGPT-style loop: GPT-2 blocks, learned positions, tied head, logits at every position."""

    class Block(nn.Module):
        def __init__(self, d, n_head):
            super().__init__()
            self.n_head, self.norm1, self.norm2 = n_head, nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x):
            B, T, d = x.shape
            q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(B, T, d))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    def __init__(self, config):
        super().__init__()
        d = config.d_model
        self.tokens, self.positions = nn.Embedding(config.vocab_size, d), nn.Embedding(config.seq_len, d)
        self.blocks = nn.Sequential(*(self.Block(d, config.n_head) for _ in range(config.n_layer)))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, config.vocab_size, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, batch, causal):
        x = self.tokens(batch["tokens"]) + self.positions.weight[: batch["tokens"].shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten()), torch.ones((), device=x.device)


class Theirs(nn.Module):
    """The same architecture in `transformers`, with its own loss over the logits of every position."""

    def __init__(self, config, causal, dtype, compiled):
        from transformers import EuroBertConfig, EuroBertForMaskedLM, LlamaConfig, LlamaForCausalLM

        super().__init__()
        shape = dict(vocab_size=config.vocab_size, hidden_size=config.d_model, intermediate_size=config.d_ff,
                     num_hidden_layers=config.n_layer, num_attention_heads=config.n_head, head_dim=config.head_dim,
                     num_key_value_heads=config.n_kv_head, max_position_embeddings=config.seq_len,
                     rms_norm_eps=config.norm_eps, tie_word_embeddings=config.tie_embeddings, use_cache=False,
                     attn_implementation="sdpa", pad_token_id=0, bos_token_id=0, eos_token_id=0)  # fmt: skip
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


def sdpa(q, k, v, causal, doc_start, doc_end):
    return attention(q, k, v, causal, doc_start, doc_end, backend="sdpa")


def step(loss_module, params, optimizer, batches, causal, device, mark=lambda part: None):
    """One optimizer step, as train.py's; `mark` hears which part begins."""
    mark("waiting for data")
    batch = to_device(next(batches), device)
    mark("other")
    loss, count = loss_module(batch, causal)
    loss.backward()
    mark("optimizer")
    grads = [p.grad for p in params]
    norm = torch.nn.utils.get_total_norm(grads).item() / count.item()
    torch._foreach_mul_(grads, min(1.0, 1.0 / (norm + 1e-6)) / count.item())
    optimizer.step()
    optimizer.zero_grad()
    mark("other")


# ----------------------------------------------------------------------------
# Where the time goes


class Border(torch.autograd.Function):
    """The identity on tensors; notes that one part of a step ends here and another begins, in both directions."""

    @staticmethod
    def forward(ctx, mark, ahead, back, *tensors):
        ctx.mark, ctx.back = mark, back
        mark(ahead)
        return tensors

    @staticmethod
    def backward(ctx, *grads):
        ctx.mark(ctx.back)
        return None, None, None, *grads


PARTS = ("attention", "linear layers", "head and loss", "optimizer", "waiting for data", "other")


class Clock:
    """Notes the time whenever a part of a step begins: a CUDA event on a GPU, so that the host waits for nothing."""

    def __init__(self, device):
        self.on_gpu, self.marks = device.type == "cuda", []

    def mark(self, part):
        if self.on_gpu:
            now = torch.cuda.Event(enable_timing=True)
            now.record()
        else:
            now = time.perf_counter()
        self.marks.append((part, now))

    def bordered(self, function, part, tensors):
        """function with a border before and after it; tensors: the slice of its arguments that gradients flow to."""

        def between(*args):
            args = list(args)
            args[tensors] = Border.apply(self.mark, part, "other", *args[tensors])
            out, *rest = result if isinstance(result := function(*args), tuple) else (result,)
            (out,) = Border.apply(self.mark, "other", part, out)
            return (out, *rest) if rest else out

        return between

    def shares(self):
        """{part: share of the time between the first mark and the last}"""
        if self.on_gpu:
            torch.cuda.synchronize()
        shares = dict.fromkeys(PARTS, 0)
        for (part, start), (_, end) in itertools.pairwise(self.marks):
            shares[part] += start.elapsed_time(end) if self.on_gpu else end - start
        total = sum(shares.values())
        return {part: seconds / total for part, seconds in shares.items()}


# ----------------------------------------------------------------------------
# The benchmark


def main(argv):
    s = configurator.load(__file__, argv, check)
    print(hardware())
    preset = configurator.load(ROOT / "train.py", [str(ROOT / f"config/{s['model']}.py")])
    s = resolved({name: value or preset.get(name, value) for name, value in s.items()})
    vocab_size = s["vocab_size"] or (4096 if s["model"] == "demo" else 128_256)
    config = model_config(preset, vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        n_tokens = max(2**20, 64 * s["micro_batch"] * config.seq_len)
        ids = np.random.default_rng(0).integers(0, vocab_size - 2, n_tokens).astype(np.uint32)
        ids[::700] = vocab_size - 2
        ids.tofile(Path(folder) / "train-00000.bin")
        meta = {"dtype": "uint32", "splits": {"train": {"shards": [{"file": "train-00000.bin"}]}}}
        stream = TokenStream(folder, meta, "train")
        for causal in (True, False):
            if s["phase"] in (("clm", "both") if causal else ("mlm", "both")):
                bench_phase(s, preset, config, stream, causal)
                torch.compiler.reset()


def bench_phase(s, preset, config, stream, causal):
    """Prints the speed of every variant in one phase, and where the time of ours goes."""
    device, dtype, on_gpu = torch.device(s["device"]), getattr(torch, s["dtype"]), s["device"] == "cuda"
    T, V, windows = config.seq_len, config.vocab_size, s["micro_batch"]
    names = s["only"].split(",") if s["only"] else ON_GPU if on_gpu else ON_CPU
    if not s["only"]:
        missing = (not find_spec("transformers") and "transformers", s["model"] != "demo" and "nanogpt")
        names = [name for name in names if name not in missing]
    tokenizer = SimpleNamespace(mask_id=V - 1, eos_id=V - 2, vocab_size=V, ranks={i: i for i in range(V - 2)})
    memory = torch.cuda.memory_allocated if on_gpu else int
    torch.manual_seed(0)

    def batches(window_split):
        source = Batches(stream, tokenizer, 1, T, windows, window_split, s["mask_ratio"])
        return prefetch(source.batch, ((i, causal) for i in itertools.count()))

    def nanogpt_batches():
        while True:
            at = torch.randint(len(stream) - T, (windows,))
            rows = [torch.from_numpy(stream.shards[0][i : i + T + 1].astype(np.int64)) for i in at]
            yield {"tokens": torch.stack([r[:-1] for r in rows]), "targets": torch.stack([r[1:] for r in rows])}

    def stepping(loss_module, data, model):
        params = list(model.parameters())
        adamw = torch.optim.AdamW(params, 1e-4, (preset["beta1"], preset["beta2"]), preset["eps"],
                                  preset["weight_decay"], fused=True)  # fmt: skip
        return partial(step, loss_module, params, adamw, data, causal, device)

    updates, backends, peaks, ours, held = {}, {}, {}, None, 0

    def run(name, times=1, **marks):
        with patch("model.attention", backends[name]):
            for _ in range(times):
                updates[name](**marks)

    for name in sorted(names, key=list(TITLES).index):
        backends[name] = sdpa if "sdpa" in name else attention
        if name == "transformers":
            held = memory()  # of the models before it
            theirs = Theirs(config, causal, dtype, compiled=on_gpu).to(device)
            updates[name] = stepping(theirs, batches("none"), theirs)
        elif name == "nanogpt":
            held, gpt = memory(), GPT(config).to(device)
            updates[name] = stepping(gpt, nanogpt_batches(), gpt)
        else:
            if ours is None:
                ours = Transformer(config).to(device)
                first = stepping(None, batches(s["window_split"]), ours)
            # A twin with the same weights, optimizer and batches, so that memory holds one set of them.
            twin = copy.deepcopy(ours, {id(p): p for p in ours.parameters()})
            twin.compute_dtype, twin.recompute = torch.float32 if name == "fp32" else dtype, s["recompute"]
            loss_module = PretrainingLoss(twin)
            if "compiled" in name:
                loss_module.compile_parts()
            updates[name] = partial(step, loss_module, *first.args[1:])
        try:
            run(name)
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            run(name)  # compiled, and with the optimizer's state
        except Exception as error:  # out of memory, or of another package: the rest is measured
            print(f"left out: {TITLES[name]}: {type(error).__name__}: {str(error).strip()[:300]}")
            del updates[name]
            continue
        peaks[name] = torch.cuda.max_memory_allocated() - held if on_gpu else None

    if not updates:
        sys.exit("nothing of this could run")
    seconds = alternating({name: partial(run, name, s["steps"]) for name in updates}, s["repeats"])

    d, D, share = config.d_model, config.head_dim, 1 if causal else round(s["mask_ratio"] * T) / T
    flops, peak = flops_per_token(config, T, causal, share), peak_flops(device) if dtype != torch.float32 else None
    weights = (config.n_head + 2 * config.n_kv_head) * D * d + d * d + 3 * d * config.d_ff
    print(f"\n{s['model']}, {'CLM' if causal else 'MLM'}: {windows} windows of {T}, window_split={s['window_split']}, "
          f"vocabulary {V:,}, {s['dtype']}; medians of {s['repeats']} times {s['steps']} steps")  # fmt: skip
    print(f"FLOPs of a token: 6 x ({config.n_layer} layers x ({weights:,} weights + attention 2 x {T} x {d}"
          f"{' / 2' if causal else ''}) + head {share:.2f} x {V} x {d}) = {flops / 1e6:,.1f}M")  # fmt: skip
    for name, value in seconds.items():
        speed = s["steps"] * windows * T / value
        line = f"{TITLES[name]:<22}{speed:>10,.0f} tokens/s {seconds[next(iter(seconds))] / value:>6.2f}x"
        if peak and name != "nanogpt":
            line += f"{speed * flops / peak:>8.1%} MFU"
        print(line + (f"{peaks[name] / 2**30:>8.2f} GiB" if on_gpu else ""))
    for name in [name for name in ("ours", "sdpa") if name in updates]:
        clock = Clock(device)
        backends[name] = clock.bordered(backends[name], "attention", slice(0, 3))
        linear = clock.bordered(Linear.forward, "linear layers", slice(1, 2))
        head = clock.bordered(linear_cross_entropy, "head and loss", slice(0, 1))
        with patch("model.Linear.forward", linear), patch("model.linear_cross_entropy", head):
            run(name, s["steps"], mark=clock.mark)
        print(f"{TITLES[name] + ':':<12}" + ", ".join(f"{part} {share:.0%}" for part, share in clock.shares().items()))


if __name__ == "__main__":
    main(sys.argv[1:])
