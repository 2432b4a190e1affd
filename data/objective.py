"""What windows train, and the record of what a run has trained."""

from itertools import groupby
from typing import NamedTuple


class Objective(NamedTuple):
    """What a window trains. CLM is Objective(causal=True), MLM is Objective(mask_ratio=0.4).

    causal: the attention mask, True for a decoder and False for an encoder.
    mask_ratio: the fraction of the window's tokens that are hidden and predicted; with 0 nothing is hidden, and every
        position predicts the next token.
    predict_from: the position that predicts a hidden token: "mask" is its own, "before" is the one before it (masked
        next-token prediction, as in LLM2Vec, arXiv 2404.05961).
    """

    causal: bool = False
    mask_ratio: float = 0.0
    predict_from: str = "mask"


CLM = Objective(causal=True)


def micro_batches(objective, cfg, n_windows, rank, world_size, step):
    """Return the micro-batches of a process in a step of `n_windows`: [(Objective, its windows), ...].

    objective(step, window, n_windows, cfg) returns what a window trains. All windows of a micro-batch train the same.
    Those with one objective are split into parts of equal size, as few as the settings' `micro_batch` allows.
    """
    parts = []
    for kind, its in groupby(range(rank, n_windows, world_size), lambda w: objective(step, w, n_windows, cfg)):
        its = [*its]
        size = next(m for m in range(min(cfg.micro_batch, len(its)), 0, -1) if len(its) % m == 0)
        parts += [(kind, its[i : i + size]) for i in range(0, len(its), size)]
    return parts


def phase_of(parts):
    """Return "clm" or "mlm", or "mixed" for a step with both. parts: see `micro_batches`."""
    causal = {kind.causal for kind, _ in parts}
    return "mixed" if len(causal) > 1 else "clm" if True in causal else "mlm"


def add_step(phases, parts):
    """Add a step to the record of a run's phases, a list of dicts, in place. parts: see `micro_batches`.

    The dict of a phase has `phase` (see `phase_of`), `predict_from`, `steps`, `clm_steps` (its steps, times the
    fraction of their windows that are CLM) and `mask_ratio` [at first, at last], which is [0, 0] for CLM.
    """
    ratio, predict_from = max((kind.mask_ratio, kind.predict_from) for kind, _ in parts)
    name, size = phase_of(parts), [len(its) for _, its in parts]
    if not phases or (phases[-1]["phase"], phases[-1]["predict_from"]) != (name, predict_from):
        phases.append(dict(phase=name, predict_from=predict_from, steps=0, clm_steps=0.0, mask_ratio=[ratio, ratio]))
    last = phases[-1]
    last["steps"] += 1
    last["clm_steps"] += sum(n for n, (kind, _) in zip(size, parts) if kind.causal) / sum(size)
    last["mask_ratio"] = [last["mask_ratio"][0], ratio]


def details(phase, clm_sum, clm_count, mlm_sum, mlm_count):
    """Return what the log of a step says beside its loss, as a dict. phase: the last one of the record of phases.

    clm_sum, clm_count: the sum of the losses of CLM, and its predicted tokens. mlm_sum, mlm_count: of MLM.
    """
    line = {} if phase["phase"] == "clm" else {"mask_ratio": phase["mask_ratio"][1]}
    if phase["phase"] == "mixed":
        line["clm_loss"], line["mlm_loss"] = clm_sum / clm_count, mlm_sum / mlm_count
        line["clm_tokens"] = clm_count / (clm_count + mlm_count)  # the fraction of the predicted tokens
    return line


def phases_of(state):
    """Return the record of phases of a checkpoint's dict; [] for a model of the hub."""
    return state.get("phases", [])


def predicts_from(state):
    """Return the position from which a checkpoint predicts a hidden token, "mask" or "before"."""
    return next((its["predict_from"] for its in reversed(phases_of(state)) if its["phase"] != "clm"), "mask")


def describe(phases):
    """Describe a record of phases in words, such as "CLM for 200 steps, then MLM (40 % masked) for 450 steps"."""
    if len(phases) > 4:
        clm, steps = (sum(its[key] for its in phases) for key in ("clm_steps", "steps"))
        return f"CLM and MLM in {len(phases)} phases, {clm:,.0f} of {steps:,} steps CLM"
    return ", then ".join(f"{describe_phase(its)} for {its['steps']:,} steps" for its in phases)


def describe_phase(its):
    first, last = (f"{100 * ratio:.3g} %" for ratio in its["mask_ratio"])
    masked = f"{first} masked" if first == last else f"{first} masked at first, {last} at last"
    masked += ", predicted from the position before" * (its["predict_from"] == "before")
    mlm = f"MLM ({masked})"
    mixed = f"CLM in {100 * its['clm_steps'] / its['steps']:.3g} % of the windows, {mlm} in the others"
    return {"clm": "CLM", "mlm": mlm}.get(its["phase"], mixed)
