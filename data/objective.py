"""What windows train, and the record of what a run has trained."""

from typing import NamedTuple


class Objective(NamedTuple):
    """What a window trains. CLM is Objective(causal=True), MLM is Objective(mask_ratio=0.4).

    causal: the attention mask, True for a decoder and False for an encoder.
    mask_ratio: the fraction of the window's tokens that are hidden and predicted; with 0 nothing is hidden, and every
        position predicts the next token.
    predict_from: the position that predicts a hidden token: "mask" is its own, "before" is the one before it (masked
        next-token prediction, as in LLM2Vec, arXiv 2404.05961).
    proportions: the fractions of the hidden tokens that are shown as the mask token, as a random ordinary token, and
        as they are.
    largest_ratio: the largest mask ratio of the run; batches have its shape, so that a falling ratio compiles nothing.
    """

    causal: bool = False
    mask_ratio: float = 0.0
    predict_from: str = "mask"
    proportions: tuple = (1.0, 0.0, 0.0)
    largest_ratio: float = 0.0


CLM = Objective(causal=True)


class MicroBatch(NamedTuple):
    """Windows of a step that go through the model together: their objective, and their numbers in the step."""

    objective: Objective
    windows: list


def micro_batches(objective, cfg, n_windows, rank, world_size, step):
    """Return the MicroBatches of a process in a step of `n_windows`.

    objective(step, window, n_windows, cfg) returns what a window trains. All windows of a micro-batch train the same.
    Each has the settings' `micro_batch` windows; the last one of an objective may have fewer.
    """
    by_objective = {}
    for window in range(rank, n_windows, world_size):
        by_objective.setdefault(objective(step, window, n_windows, cfg), []).append(window)
    found = []
    for what, windows in by_objective.items():
        for i in range(0, len(windows), cfg.micro_batch):
            found.append(MicroBatch(what, windows[i : i + cfg.micro_batch]))
    return found


def phase_of(batches):
    """Return "clm" or "mlm", or "mixed" for a step with both. batches: see `micro_batches`."""
    causal = {batch.objective.causal for batch in batches}
    if len(causal) == 2:
        return "mixed"
    return "clm" if True in causal else "mlm"


def clm_fraction(batches):
    """Return the fraction of the windows that are CLM. batches: see `micro_batches`."""
    clm = sum(len(batch.windows) for batch in batches if batch.objective.causal)
    return clm / sum(len(batch.windows) for batch in batches)


def add_step(phases, batches):
    """Add a step to the record of a run's phases, a list of dicts, in place. batches: see `micro_batches`.

    The dict of a phase has `phase` (see `phase_of`), `predict_from`, `steps`, `clm_steps` (its steps, times the
    fraction of their windows that are CLM) and `mask_ratio` [at first, at last], which is [0, 0] for CLM.
    """
    name = phase_of(batches)
    ratio, predict_from = max((batch.objective.mask_ratio, batch.objective.predict_from) for batch in batches)
    last = phases[-1] if phases else {}
    if (last.get("phase"), last.get("predict_from")) != (name, predict_from):
        last = dict(phase=name, predict_from=predict_from, steps=0, clm_steps=0.0, mask_ratio=[ratio, ratio])
        phases.append(last)
    last["steps"] += 1
    last["clm_steps"] += clm_fraction(batches)
    last["mask_ratio"] = [last["mask_ratio"][0], ratio]


def phases_of(state):
    """Return the record of phases of a checkpoint's dict; [] for a model of the hub."""
    return state.get("phases", [])


def predicts_from(state):
    """Return the position from which a checkpoint predicts a hidden token, "mask" or "before"."""
    masked = [phase for phase in phases_of(state) if phase["phase"] != "clm"]
    return masked[-1]["predict_from"] if masked else "mask"


def describe(phases):
    """Describe a record of phases in words, such as "CLM for 200 steps, then MLM (40 % masked) for 450 steps"."""
    if len(phases) > 4:
        clm = sum(phase["clm_steps"] for phase in phases)
        steps = sum(phase["steps"] for phase in phases)
        return f"CLM and MLM in {len(phases)} phases, {clm:,.0f} of {steps:,} steps CLM"
    return ", then ".join(f"{describe_phase(phase)} for {phase['steps']:,} steps" for phase in phases)


def describe_phase(phase):
    """Describe the objectives of a phase in words, such as "MLM (40 % masked)"."""
    if phase["phase"] == "clm":
        return "CLM"
    first, last = (f"{100 * ratio:.3g} %" for ratio in phase["mask_ratio"])
    masked = f"{first} masked"
    if first != last:
        masked += f" at first, {last} at last"
    if phase["predict_from"] == "before":
        masked += ", predicted from the position before"
    if phase["phase"] == "mlm":
        return f"MLM ({masked})"
    clm = 100 * phase["clm_steps"] / phase["steps"]
    return f"CLM in {clm:.3g} % of the windows, MLM ({masked}) in the others"
