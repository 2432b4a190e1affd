"""What a run shows: its first and last lines, and its figure of both validation losses and the training loss.

python -m eval.plot out/demo
"""

import itertools
import math
import sys
import time
from pathlib import Path

from checkpoint import path_of
from errors import DataError
from run import read_metrics
from runtime import show, step_flops

NAMES = {"clm": "CLM", "mlm": "MLM", "mixed": "CLM + MLM"}  # of the phases
COLORS = {"clm": "#1f4e8c", "mlm": "#b3541e", "mixed": "#5d7038"}


def switches(lines):
    """Return the pairs of neighboring lines of a log between which its phase changes."""
    return [(a, b) for a, b in itertools.pairwise(lines) if a["phase"] != b["phase"]]


def summary(out_dir):
    """Return both validation losses of a run at its start, at its switches if these are few, and at its end, as text."""
    log = read_metrics(out_dir)
    evaluated, ends = [line for line in log if "val_clm_loss" in line], [line for line, _ in switches(log)]
    moments = [("start", evaluated[0]), *(("switch", line) for line in ends if len(ends) < 4), ("end", evaluated[-1])]
    lines = ["validation loss       CLM     MLM   (nats per predicted token)"]
    for name, line in moments:
        if line in evaluated:
            moment = f"{name}, step {line['step']}"
            lines.append(f"{moment:<20}{line['val_clm_loss']:>6.3f}  {line['val_mlm_loss']:>6.3f}")
    return "\n".join(lines)


def print_start(cfg, transformer, batches, parts_of, step, world_size, versions):
    """Print the model, the budget with its data, and the machine, a line each."""
    config, sampled = transformer.config, range(0, cfg.max_steps, -(-cfg.max_steps // 50))  # these stand for all steps
    parts = [part for s in sampled for part in parts_of(s)]
    clm = sum(len(its) for kind, its in parts if kind.causal) / sum(len(its) for _, its in parts)
    flops = step_flops(config, parts, cfg.window_split) * world_size * cfg.max_steps / len(sampled)
    n_params = sum(p.numel() for p in transformer.parameters()) / 1e6
    shape = f"{config.n_layer} layers of width {config.d_model}, {config.n_head} heads"
    tokens = f"{cfg.max_steps * cfg.global_batch_tokens:,} tokens in {cfg.max_steps:,} steps"
    mix = f"{clm:.0%} CLM, {1 - clm:.0%} MLM; warmup {cfg.warmup_steps:,}, decay {cfg.decay_steps:,} steps"
    attention = "fused kernels" if versions.get("kernels_fail") == "" else "PyTorch's attention"
    machine = f"{cfg.device} ({versions['device']}), {cfg.dtype}, {attention}, processes: {world_size}"
    print(f"model    {n_params:.1f}M parameters: {shape}, windows of {config.seq_len:,} tokens")
    epochs = ", ".join(f"{n:.3g} epochs of {folder}" for folder, n in batches.epochs(cfg.max_steps).items())
    print(f"budget   {tokens}, {epochs}; {mix}; about {flops:.1e} FLOPs")
    print(f"machine  {machine}; {cfg.out_dir}")
    if step:
        print(f"This run goes on at step {step:,}.")


def print_losses(bar, step, phase, line):
    """Print both validation losses of a line of the log, if it has them, above a progress bar."""
    if "val_clm_loss" in line:
        losses = f"CLM {line['val_clm_loss']:.3f}, MLM {line['val_mlm_loss']:.3f}"
        bar.write(f"step {step:,} ({phase}): validation loss {losses}")
        for folder, loss in line.get("val_clm_loss_by_source", {}).items():
            bar.write(f"  {folder}: CLM {loss:.3f}, MLM {line['val_mlm_loss_by_source'][folder]:.3f}")


def print_end(cfg, bar, step):
    """Print how a run ended, its losses and speed, and what to do next. bar: of this process's steps."""
    bar.close()
    if step < cfg.max_steps:
        print(f"\nStopped at step {step} of {cfg.max_steps}, which is saved. To continue, add --resume=True.")
        return
    steps, seconds = step - bar.initial, time.time() - bar.start_t
    speed = f"{steps * cfg.global_batch_tokens / seconds:,.0f} tokens/s with evaluation and saving"
    use = '--prompt="The following"' if cfg.switch_step == cfg.max_steps else '--fill="Return the [MASK] of the list."'
    print(f"\n{summary(cfg.out_dir)}\n\n{steps:,} steps in {seconds / 60:,.1f} minutes, {speed}")
    print(f"checkpoint  {path_of(cfg.out_dir, step)}\nnext        python -m eval.sample --ckpt={cfg.out_dir} {use}")
    show(print_figure, cfg.out_dir)


def print_figure(out_dir):
    """Draw the figure of a run and say where it is."""
    missing = f"not drawn: pip install matplotlib, then python -m eval.plot {out_dir}"
    print(f"figure      {plot_run(out_dir) or missing}")


def new_figure(width, height):
    """Return an empty matplotlib Figure, its sizes in inches; None where matplotlib is not installed."""
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError:
        return None
    rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure, path):
    """Write a figure as a PNG file; make its folder where it is missing."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")


def plot_run(out_dir):
    """Write out_dir/loss.png and return its path; None where matplotlib is not installed."""
    if not (figure := new_figure(7, 4.2)):
        return None
    axes, lines = figure.subplots(), read_metrics(out_dir)
    train = [line for line in lines if "loss" in line]
    train_steps = [line["step"] for line in train]
    for phase, name in NAMES.items():
        losses = [line["loss"] if line["phase"] == phase else line.get(f"{phase}_loss", math.nan) for line in train]
        if not all(map(math.isnan, losses)):  # nan: a gap for the other phase
            axes.plot(train_steps, losses, color=COLORS[phase], alpha=0.5, lw=1, label=f"training, {name}")
    evaluated = [line for line in lines if "val_clm_loss" in line]
    steps = [line["step"] for line in evaluated]
    for name, style in (("clm", "o-"), ("mlm", "s--")):
        losses = [line[f"val_{name}_loss"] for line in evaluated]
        axes.plot(steps, losses, style, color=COLORS[name], ms=4, label=f"validation, {NAMES[name]}")
    for before, line in switches(lines):
        axes.axvline(before["step"], color="0.5", lw=1, ls=":")
        axis, name = axes.get_xaxis_transform(), NAMES[line["phase"]]
        axes.text(before["step"], 1, f" to {name}", transform=axis, va="top", color="0.35", fontsize=8)
    axes.set(xlabel="step", ylabel="loss (nats per predicted token)")
    axes.legend()
    save_figure(figure, path := Path(out_dir) / "loss.png")
    return path


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m eval.plot OUT_DIR    (the folder of a run, with its metrics.jsonl)")
    try:
        print_figure(sys.argv[1])
    except (DataError, OSError) as error:
        sys.exit(str(error))
