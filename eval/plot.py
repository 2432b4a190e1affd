"""What a run prints at its start and end, and its figure of the training loss and both validation losses.

python -m eval.plot out/demo
"""

import itertools
import math
import shlex
import sys
from collections import Counter
from pathlib import Path

from checkpoint import path_of, steps
from data.flops import step_flops
from data.objective import micro_batches, title, validation_keys
from errors import DataError, exit_with_message, show
from run import read_metrics
from runtime import peak_memory

COLORS = {"clm": "#1f4e8c", "mlm": "#b3541e", "mntp": "#b3541e"}
OTHER_COLORS = "#5d7038", "#7a3e8e", "#333333"


def switches(log):
    """Return the last line of each phase except the final one; [] if the log has more than four phases."""
    found = [line for line, following in itertools.pairwise(log) if line["phase"] != following["phase"]]
    return found if len(found) < 4 else []


def summary(log):
    """Return the validation losses of a run as text: at its start, at its switches and at its end."""
    evaluated = [line for line in log if "val_clm_loss" in line]
    keys = validation_keys(evaluated[-1])
    moments = [("start", evaluated[0])]
    moments += [("switch", line) for line in switches(log) if line in evaluated]
    moments.append(("end", evaluated[-1]))
    rows = ["validation loss   " + "".join(f"{title(name):>8}" for name in keys) + "   (nats per predicted token)"]
    for name, line in moments:
        losses = "".join(f"{line[key]:>8.3f}" for key in keys.values())
        rows.append(f"{name}, step {line['step']}".ljust(18) + losses)
    return "\n".join(rows)


def print_start(run, rates):
    """Print a line each about the model, the budget and the machine. rates: the learning rate of each step."""
    cfg = run.cfg
    config = run.config
    transformer = run.transformer
    print(
        f"model    {sum(p.numel() for p in transformer.parameters()) / 1e6:.1f}M parameters: {config.n_layer} layers "
        f"of width {config.d_model}, {config.n_head} heads, windows of {config.seq_len:,} tokens"
    )

    windows = Counter()  # windows in the sampled steps, by objective
    flops = most = 0  # FLOPs of the sampled steps; the most micro-batches in one of them
    for groups in run.sampled:
        flops += step_flops(transformer, groups, cfg.window_split)
        most = max(most, len(micro_batches(groups, cfg.micro_batch, 0, run.world_size)))
        for what, numbers in groups.items():
            windows[what.name] += len(numbers)
    each = cfg.max_steps / len(run.sampled)  # each sampled step stands for this many
    parts = [f"{windows.total() * config.seq_len * each:,.0f} tokens in {cfg.max_steps:,} steps"]
    for folder, n in run.train_batches.epochs(cfg.max_steps).items():
        parts.append(f"{n:.3g} epochs of {folder} (validation: {run.val_batches[folder][1].windows_per_step} windows)")
    parts += [f"{n / windows.total():.0%} {title(name)}" for name, n in windows.items()]
    parts.append(f"learning rate up to {max(rates):g}, {rates[-1]:.2g} in the last step")
    print(f"budget   {', '.join(parts)}, about {flops * each:.1e} FLOPs")

    print(
        f"machine  {cfg.device} ({run.versions['device']}), {cfg.dtype}, attention {transformer.attention_backend}, "
        f"processes: {run.world_size}, micro-batches a step: {most}, folder: {cfg.out_dir}"
    )
    if run.first:
        print(f"This run continues at step {run.first:,}.")


def print_losses(run, line):
    """Print the validation losses in a line of the log, if it has any, above the progress bar."""
    if losses := [f"{title(name)} {line[key]:.3f}" for name, key in validation_keys(line).items()]:
        run.bar.write(f"step {run.step:,} ({title(run.phase)}): validation loss {', '.join(losses)}")


def print_end(run):
    """Print a run's losses and costs, and the command to try next; if it stopped early, how to continue."""
    cfg = run.cfg
    step = run.step
    run.bar.close()
    if step < cfg.max_steps:
        print(f"\nStopped at step {step} of {cfg.max_steps}. Steps with checkpoints: {steps(cfg.out_dir)}.")
        print("To continue, add --resume=True.")
        return
    log = read_metrics(cfg.out_dir)
    print(f"\n{summary(log)}\n")
    last = log[-1]
    for name in ("step", "tokens", "seconds", "flops", "loss", *validation_keys(last).values()):
        if name in last:
            print(f"{name}: {last[name]}")
    print(f"peak_memory_gb: {peak_memory(run.device) / 1e9:.2f}")
    show(plot_run, cfg.out_dir)
    checkpoint = path_of(cfg.out_dir, step)
    if checkpoint.exists():  # a branch that begins at the last step trains and saves nothing
        use = '--prompt="The following"' if last["phase"] == "clm" else '--fill="Return the [MASK] of the list."'
        print(f"checkpoint: {checkpoint}")
        print(f"next: python -m eval.sample --ckpt={shlex.quote(cfg.out_dir)} {use}")


# ----------------------------------------------------------------------------
# The figure


def new_figure(width, height):
    """Return an empty matplotlib Figure. width and height are in inches."""
    from matplotlib import rcParams  # here, because this import is slow
    from matplotlib.figure import Figure

    rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    return Figure(figsize=(width, height), layout="constrained")


def plot_run(out_dir):
    """Write out_dir/loss.png and print its path."""
    lines = read_metrics(out_dir)
    if not lines or "phase" not in lines[0]:
        raise DataError(f"{out_dir}: has no metrics.jsonl of train.py")
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    axes.set_prop_cycle(color=OTHER_COLORS)
    trained = [line for line in lines if "loss" in line]
    steps = [line["step"] for line in trained]
    for phase in dict.fromkeys(line["phase"] for line in trained):  # NaN leaves a gap where another phase ran
        losses = [line["loss"] if line["phase"] == phase else math.nan for line in trained]
        axes.plot(steps, losses, color=COLORS.get(phase), alpha=0.5, lw=1, label=f"training, {title(phase)}")
    evaluated = [line for line in lines if "val_clm_loss" in line]
    steps = [line["step"] for line in evaluated]
    for (name, key), style in zip(validation_keys(evaluated[-1]).items(), ("o-", "s--")):
        losses = [line[key] for line in evaluated]
        axes.plot(steps, losses, style, color=COLORS[name], ms=4, label=f"validation, {title(name)}")
    for line in switches(lines):
        axes.axvline(line["step"], color="0.5", lw=1, ls=":", label="switch")
    axes.set(xlabel="step", ylabel="loss (nats per predicted token)")
    axes.legend()
    path = Path(out_dir, "loss.png")
    figure.savefig(path, dpi=150)
    print(f"figure: {path}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m eval.plot OUT_DIR    (the folder of a run, with its metrics.jsonl)")
    with exit_with_message():
        plot_run(sys.argv[1])
