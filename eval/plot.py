"""What a run shows: its first and last lines, and its figure of both validation losses and the training loss.

python -m eval.plot out/demo
"""

import itertools
import math
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import mean

from checkpoint import path_of
from data.files import MALFORMED
from data.objective import micro_batches, title, validation_keys
from errors import DataError
from run import read_metrics
from runtime import peak_memory, show, step_flops

COLORS = {"clm": "#1f4e8c", "mlm": "#b3541e", "mntp": "#b3541e"}
OTHER_COLORS = "#5d7038", "#7a3e8e", "#333333"


def switches(lines):
    """Return the pairs of neighboring lines of a log between which its phase changes."""
    return [(before, after) for before, after in itertools.pairwise(lines) if before["phase"] != after["phase"]]


def summary(out_dir):
    """Return the validation losses of a run at its start, at its switches if these are few, and at its end, as text."""
    log = read_metrics(out_dir)
    evaluated = [line for line in log if "val_clm_loss" in line]
    keys = validation_keys(evaluated[-1])
    moments = [("start", evaluated[0]), ("end", evaluated[-1])]
    before_switches = [before for before, _ in switches(log) if before in evaluated]
    if len(before_switches) < 4:
        moments[1:1] = [("switch", line) for line in before_switches]
    rows = [["validation loss", *map(title, keys)]]
    for name, line in moments:
        rows.append([f"{name}, step {line['step']}", *(f"{line[key]:.3f}" for key in keys.values())])
    rows[0].append("   (nats per predicted token)")
    return "\n".join(f"{name:<18}" + "".join(f"{cell:>8}" for cell in cells) for name, *cells in rows)


def print_start(cfg, transformer, batches, groups_of, rates, step, world_size, versions):
    """Print the model, the budget with its data, and the machine, a line each.

    groups_of: returns the windows of a step by objective. rates: the learning rate of each step.
    """
    config = transformer.config
    n_params = sum(p.numel() for p in transformer.parameters()) / 1e6
    shape = f"{config.n_layer} layers of width {config.d_model}, {config.n_head} heads"
    print(f"model    {n_params:.1f}M parameters: {shape}, windows of {config.seq_len:,} tokens")

    # About 50 steps stand for all of them.
    sampled = [groups_of(s) for s in range(0, cfg.max_steps, math.ceil(cfg.max_steps / 50))]
    windows = Counter()
    for groups in sampled:
        for what, numbers in groups.items():
            windows[what.name] += len(numbers)
    flops = mean(step_flops(config, groups, cfg.window_split) for groups in sampled) * cfg.max_steps
    n_tokens = windows.total() * config.seq_len * cfg.max_steps / len(sampled)
    tokens = f"{n_tokens:,.0f} tokens in {cfg.max_steps:,} steps"
    epochs = ", ".join(f"{n:.3g} epochs of {folder}" for folder, n in batches.epochs(cfg.max_steps).items())
    mix = ", ".join(f"{n / windows.total():.0%} {title(name)}" for name, n in windows.items())
    mix += f"; learning rate up to {max(rates):g}, {rates[-1]:.2g} in the last step"
    print(f"budget   {tokens}, {epochs}; {mix}; about {flops:.1e} FLOPs")

    attention = "fused kernels" if versions.get("attention") == "triton" else "PyTorch's attention"
    most = max(len(micro_batches(groups, cfg.micro_batch, 0, world_size)) for groups in sampled)  # micro-batches a step
    machine = f"{cfg.device} ({versions['device']}), {cfg.dtype}, {attention}, processes: {world_size}"
    plural = "es" if most > 1 else ""
    print(f"machine  {machine}, {most} micro-batch{plural} a step; {cfg.out_dir}")
    if step:
        print(f"This run goes on at step {step:,}.")


def print_losses(bar, step, phase, line):
    """Print the validation losses of a line of the log, if it has them, above a progress bar."""
    keys = validation_keys(line)
    if keys:
        losses = ", ".join(f"{title(name)} {line[key]:.3f}" for name, key in keys.items())
        bar.write(f"step {step:,} ({title(phase)}): validation loss {losses}")
    for folder in line.get("val_clm_loss_by_source", ()):
        losses = ", ".join(f"{title(name)} {line[f'{key}_by_source'][folder]:.3f}" for name, key in keys.items())
        bar.write(f"  {folder}: {losses}")


def print_end(cfg, bar, step, device):
    """Print how a run ended, its losses and costs, and what to do next. bar: of this process's steps."""
    bar.close()
    if step < cfg.max_steps:
        print(f"\nStopped at step {step} of {cfg.max_steps}, which is saved. To continue, add --resume=True.")
        return
    print(f"\n{summary(cfg.out_dir)}\n")
    last = read_metrics(cfg.out_dir)[-1]
    for name in ("step", "tokens", "seconds", "flops", "loss", *validation_keys(last).values()):
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
    print(f"figure: {plot_run(out_dir)}")


def new_figure(width, height):
    """Return an empty matplotlib Figure, its sizes in inches."""
    from matplotlib import rcParams  # here, because it takes long
    from matplotlib.figure import Figure

    rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure, path):
    """Write a figure as a PNG file; make its folder where it is missing."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")


def plot_run(out_dir):
    """Write out_dir/loss.png and return its path."""
    figure = new_figure(7, 4.2)
    lines = read_metrics(out_dir)
    axes = figure.subplots()
    draw_training(axes, [line for line in lines if "loss" in line])
    draw_validation(axes, [line for line in lines if "val_clm_loss" in line])
    for before, after in switches(lines):
        name = title(after["phase"])
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
    """Draw a curve of the training loss for each phase and each objective, with gaps where the run was in another."""
    curves = {}  # by name: {step: loss}
    for line in lines:
        losses = {name: line.get(f"{name.replace(' ', '_')}_loss") for name in line["phase"].split(" + ")}
        losses[line["phase"]] = line["loss"]
        for name, loss in losses.items():
            curves.setdefault(name, {})[line["step"]] = loss
    axes.set_prop_cycle(color=OTHER_COLORS)
    for name, curve in curves.items():
        losses = [curve.get(line["step"], math.nan) for line in lines]  # nan is a gap
        steps = [line["step"] for line in lines]
        axes.plot(steps, losses, color=COLORS.get(name), alpha=0.5, lw=1, label=f"training, {title(name)}")


def draw_validation(axes, lines):
    """Draw a curve of each validation loss."""
    steps = [line["step"] for line in lines]
    for (name, key), style in zip(validation_keys(lines[-1]).items(), ("o-", "s--")):
        losses = [line[key] for line in lines]
        axes.plot(steps, losses, style, color=COLORS[name], ms=4, label=f"validation, {title(name)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m eval.plot OUT_DIR    (the folder of a run, with its metrics.jsonl)")
    try:
        print_figure(sys.argv[1])
    except (DataError, OSError) as error:
        sys.exit(str(error))
    except MALFORMED as error:
        sys.exit(f"{sys.argv[1]}/metrics.jsonl is not a log of train.py ({type(error).__name__}: {error})")
