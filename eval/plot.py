"""What a run shows: its first and last lines, and its figure of both validation losses and the training loss.

python -m eval.plot out/demo
"""

import itertools
import math
import sys
import time
from pathlib import Path
from statistics import mean

from checkpoint import path_of
from data.files import MALFORMED
from data.objective import clm_fraction
from errors import DataError
from run import read_metrics
from runtime import peak_memory, show, step_flops

NAMES = {"clm": "CLM", "mlm": "MLM", "mixed": "CLM + MLM"}  # of the phases
COLORS = {"clm": "#1f4e8c", "mlm": "#b3541e", "mixed": "#5d7038"}


def switches(lines):
    """Return the pairs of neighboring lines of a log between which its phase changes."""
    return [(before, after) for before, after in itertools.pairwise(lines) if before["phase"] != after["phase"]]


def summary(out_dir):
    """Return both validation losses of a run at its start, at its switches if these are few, and at its end, as text."""
    log = read_metrics(out_dir)
    evaluated = [line for line in log if "val_clm_loss" in line]
    moments = [("start", evaluated[0]), ("end", evaluated[-1])]
    before_switches = [before for before, _ in switches(log) if before in evaluated]
    if len(before_switches) < 4:
        moments[1:1] = [("switch", line) for line in before_switches]
    rows = ["validation loss       CLM     MLM   (nats per predicted token)"]
    for name, line in moments:
        moment = f"{name}, step {line['step']}"
        rows.append(f"{moment:<20}{line['val_clm_loss']:>6.3f}  {line['val_mlm_loss']:>6.3f}")
    return "\n".join(rows)


def print_start(cfg, transformer, batches, parts_of, rates, step, world_size, versions):
    """Print the model, the budget with its data, and the machine, a line each.

    parts_of: returns the micro-batches of a step. rates: the learning rate of each step.
    """
    config = transformer.config
    n_params = sum(p.numel() for p in transformer.parameters()) / 1e6
    shape = f"{config.n_layer} layers of width {config.d_model}, {config.n_head} heads"
    print(f"model    {n_params:.1f}M parameters: {shape}, windows of {config.seq_len:,} tokens")

    sampled = [parts_of(s) for s in range(0, cfg.max_steps, math.ceil(cfg.max_steps / 50))]  # these stand for all steps
    clm = mean(map(clm_fraction, sampled))
    flops = mean(step_flops(config, parts, cfg.window_split) for parts in sampled) * world_size * cfg.max_steps
    tokens = f"{cfg.max_steps * cfg.global_batch_tokens:,} tokens in {cfg.max_steps:,} steps"
    epochs = ", ".join(f"{n:.3g} epochs of {folder}" for folder, n in batches.epochs(cfg.max_steps).items())
    mix = f"{clm:.0%} CLM, {1 - clm:.0%} MLM; learning rate up to {max(rates):g}, {rates[-1]:.2g} in the last step"
    print(f"budget   {tokens}, {epochs}; {mix}; about {flops:.1e} FLOPs")

    attention = "fused kernels" if versions.get("attention") == "triton" else "PyTorch's attention"
    micro_batches = max(map(len, sampled))  # of this process
    machine = f"{cfg.device} ({versions['device']}), {cfg.dtype}, {attention}, processes: {world_size}"
    plural = "es" if micro_batches > 1 else ""
    print(f"machine  {machine}, {micro_batches} micro-batch{plural} a step; {cfg.out_dir}")
    if step:
        print(f"This run goes on at step {step:,}.")


def print_losses(bar, step, phase, line):
    """Print both validation losses of a line of the log, if it has them, above a progress bar."""
    if "val_clm_loss" not in line:
        return
    bar.write(f"step {step:,} ({phase}): validation loss CLM {line['val_clm_loss']:.3f}, MLM {line['val_mlm_loss']:.3f}")
    for folder, clm in line.get("val_clm_loss_by_source", {}).items():
        bar.write(f"  {folder}: CLM {clm:.3f}, MLM {line['val_mlm_loss_by_source'][folder]:.3f}")


def print_end(cfg, bar, step, device):
    """Print how a run ended, its losses and costs, and what to do next. bar: of this process's steps."""
    bar.close()
    if step < cfg.max_steps:
        print(f"\nStopped at step {step} of {cfg.max_steps}, which is saved. To continue, add --resume=True.")
        return
    print(f"\n{summary(cfg.out_dir)}\n")
    last = read_metrics(cfg.out_dir)[-1]
    for name in ("step", "tokens", "seconds", "flops", "loss", "val_clm_loss", "val_mlm_loss"):
        if name in last:
            print(f"{name}: {last[name]}")
    print(f"minutes_with_evaluation: {(time.time() - bar.start_t) / 60:.1f}")
    print(f"peak_memory_gb: {peak_memory(device) / 1e9:.2f}")
    show(print_figure, cfg.out_dir)
    checkpoint = path_of(cfg.out_dir, step)
    if checkpoint.exists():  # a branch that begins at the last step trains and saves nothing
        use = '--prompt="The following"' if last["phase"] == "clm" else '--fill="Return the [MASK] of the list."'
        print(f"checkpoint: {checkpoint}")
        print(f"next: python -m eval.sample --ckpt={cfg.out_dir} {use}")


def print_figure(out_dir):
    """Draw the figure of a run and say where it is."""
    drawn = plot_run(out_dir)
    print(f"figure: {drawn or f'not drawn: pip install matplotlib, then python -m eval.plot {out_dir}'}")


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
    figure = new_figure(7, 4.2)
    if figure is None:
        return None
    lines = read_metrics(out_dir)
    axes = figure.subplots()
    draw_training(axes, [line for line in lines if "loss" in line])
    draw_validation(axes, [line for line in lines if "val_clm_loss" in line])
    for before, after in switches(lines):
        name = NAMES[after["phase"]]
        axes.axvline(before["step"], color="0.5", lw=1, ls=":")
        top = axes.get_xaxis_transform()  # y = 1 is the upper end
        axes.text(before["step"], 1, f" to {name}", transform=top, va="top", color="0.35", fontsize=8)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per predicted token)")
    axes.legend()
    path = Path(out_dir, "loss.png")
    save_figure(figure, path)
    return path


def draw_training(axes, lines):
    """Draw a curve of the training loss for each kind of phase, with gaps where the run was in another."""
    steps = [line["step"] for line in lines]
    for phase, name in NAMES.items():
        losses = []
        for line in lines:
            part = line.get(f"{phase}_loss", math.nan)  # a mixed phase has both parts; nan is a gap
            losses.append(line["loss"] if line["phase"] == phase else part)
        if not all(math.isnan(loss) for loss in losses):
            axes.plot(steps, losses, color=COLORS[phase], alpha=0.5, lw=1, label=f"training, {name}")


def draw_validation(axes, lines):
    """Draw a curve of each validation loss."""
    steps = [line["step"] for line in lines]
    clm = [line["val_clm_loss"] for line in lines]
    mlm = [line["val_mlm_loss"] for line in lines]
    axes.plot(steps, clm, "o-", color=COLORS["clm"], ms=4, label="validation, CLM")
    axes.plot(steps, mlm, "s--", color=COLORS["mlm"], ms=4, label="validation, MLM")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m eval.plot OUT_DIR    (the folder of a run, with its metrics.jsonl)")
    try:
        print_figure(sys.argv[1])
    except (DataError, OSError) as error:
        sys.exit(str(error))
    except MALFORMED as error:
        sys.exit(f"{sys.argv[1]}/metrics.jsonl is not a log of train.py ({type(error).__name__}: {error})")
