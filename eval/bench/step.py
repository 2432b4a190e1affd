"""Training steps per second, for CLM and for MLM, with MFU and peak memory on a GPU.

    python -m eval.bench step                                            # the demo
    python -m eval.bench step --model=610m --micro_batch=8 --only=compiled,compiled_sdpa

A step is that of train.py: a batch of the text that comes with the project, forward, backward, clipping, AdamW.
At the end, PyTorch's profiler shows where the time of the first variant goes.

The variants: ours is this code as it is, compiled the same with torch.compile, compiled_sdpa that with PyTorch's
attention, compiled_muon with Muon instead of AdamW.
"""

import gc
import itertools
import sys
from functools import partial
from pathlib import Path

import torch
from torch.profiler import profile

import configurator
from data.loader import make_batches, prefetch, to_device
from data.objective import CLM, Objective
from data.prepare import EMBEDDED_FOLDER, prepare_embedded
from data.shards import load_data, load_tokenizer
from eval.bench.timing import alternating, wall_seconds
from model import PRESETS, PretrainingLoss, Transformer
from run import model_config
from runtime import resolve_auto, utilization

model = "demo"  # demo (train.py's default), or 210m, 610m or 1b: a preset in config/
only = ("ours", "compiled", "compiled_sdpa", "compiled_muon")  # the variants
micro_batch = 0  # windows of a micro-batch; 0 = the preset's
micro_steps = 1  # micro-batches of a step
steps = 3  # steps of one repeat
repeats = 7  # the median of these counts

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = only


def check(cfg):
    """Yield what is wrong with the settings."""
    names, choices = (["micro_steps", "steps", "repeats"], ["micro_batch"]), {"model": [*PRESETS]}
    yield from configurator.outside_limits(cfg, *names, choices=choices)
    yield from (f"only={name}: must be some of {', '.join(VARIANTS)}" for name in cfg.only if name not in VARIANTS)


# ----------------------------------------------------------------------------
# The benchmark


def make_loss(name, config, dtype):
    """Return the module of a variant, which maps (batch, causal) to (loss, count)."""
    loss = PretrainingLoss(Transformer(config))
    loss.model.compute_dtype = dtype
    loss.model.attention_backend = "sdpa" if name == "compiled_sdpa" else "auto"
    if name.startswith("compiled"):
        loss.compile_parts()
    return loss


def make_step(loss_module, batches, causal, preset, micro_steps, muon=False):
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
            count = 0
            for _ in range(micro_steps):
                loss, n = loss_module(to_device(next(batches), device), causal)
                loss.backward()
                count += n
            grads = [p.grad for p in params]
            norm = torch.nn.utils.get_total_norm(grads).item() / count.item()
            torch._foreach_mul_(grads, min(1.0, 1.0 / (norm + 1e-6)) / count.item())
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    return step


def bench_phase(cfg, preset, config, source, causal):
    """Print the speed of every variant in one phase, and where the time of the first one goes."""
    device, T, windows, dtype = torch.device(preset.device), config.seq_len, preset.micro_batch, preset.dtype
    on_gpu, steps, memory, phase = device.type == "cuda", {}, {}, "CLM" if causal else "MLM"
    torch.manual_seed(0)
    kind = CLM if causal else Objective(mask_ratio=max(preset.mask_ratio))
    batches = prefetch(source.batch, ((i, kind) for i in itertools.count()))
    for name in cfg.only:
        others = torch.cuda.memory_allocated() if on_gpu else 0
        try:
            loss = make_loss(name, config, getattr(torch, dtype))
            step = make_step(loss, batches, causal, preset, cfg.micro_steps, "muon" in name)
            first_step = wall_seconds(step)
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            step()  # now compiled, and with the optimizer's state
            memory[name] = (torch.cuda.max_memory_allocated() - others) / 1e9 if on_gpu else 0
            steps[name] = partial(step, cfg.steps)
            print(f"{phase} {name}: ready, its first step took {first_step:.0f} s", flush=True)
        except Exception as error:  # out of memory, for example: measure the rest
            print(f"left out: {name}: {type(error).__name__}: {str(error).strip()[:300]}", flush=True)
    if not steps:
        sys.exit("none of the variants ran")
    seconds = alternating(steps, cfg.repeats)

    parts = [(kind, range(cfg.micro_steps * windows))]  # of a step
    print(
        f"\n{cfg.model}, {phase}: {cfg.micro_steps} x {windows} windows of {T}, window_split={preset.window_split}, "
        f"vocabulary {config.vocab_size:,}, {dtype}; medians of {cfg.repeats} times {cfg.steps} steps"
    )
    first = next(iter(seconds.values()))
    for name, value in seconds.items():
        speed = cfg.steps * cfg.micro_steps * windows * T / value
        mfu = utilization(preset, config, parts, value / cfg.steps, device).get("mfu")
        on_the_gpu = f"{mfu:>8} MFU{memory[name]:>8.1f} GB" if on_gpu else ""
        print(f"{phase} {name:<14}{speed:>10,.0f} tokens/s {first / value:>6.2f}x{on_the_gpu}", flush=True)
    with profile() as profiler:
        steps[next(iter(steps))]()
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=order, row_limit=15, max_name_column_width=50))


def main(cfg):
    args = [str(ROOT / f"config/{cfg.model}.py")] * (cfg.model != "demo")  # which is train.py's default
    args += [f"--data={EMBEDDED_FOLDER}"] + [f"--micro_batch={cfg.micro_batch}"] * (cfg.micro_batch > 0)
    preset = resolve_auto(configurator.load(ROOT / "train.py", args))
    config = model_config(preset, 4096 if cfg.model == "demo" else 128_256)
    preset["global_batch_tokens"] = preset.micro_batch * config.seq_len  # of each batch that is drawn
    if not Path(preset.data).exists():
        prepare_embedded()
    data = load_data(preset.data)
    source, _ = make_batches(preset, data, load_tokenizer(data), config.seq_len)
    for causal in (True, False):
        bench_phase(cfg, preset, config, source, causal)
        torch.compiler.reset()
        gc.collect()  # compiled blocks refer to themselves, and would keep their memory
