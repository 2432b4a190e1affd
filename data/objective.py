"""What windows train, and the record of what a run has trained."""

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
SETTINGS = ("switch_step", "clm_windows", "mask_ratio", "predict_from")  # of train.py: from them follow the objectives


def add_step(phases, micro_batches):
    """Add a step to the record of a run's phases, a list of dicts, in place.

    micro_batches: (Objective, its windows) of each micro-batch of the step. A phase is called "clm", "mlm", or "mixed" if
    both are trained in one step. Its dict has `phase`, `predict_from`, `steps`, `clm_steps` (its steps, times the
    fraction of the windows that are CLM) and `mask_ratio` [first, last], which is [0, 0] for CLM.
    """
    windows = sum(len(its) for _, its in micro_batches)
    clm = sum(len(its) for objective, its in micro_batches if objective.causal) / windows
    ratio, predict_from = max((o.mask_ratio, o.predict_from) for o, _ in micro_batches)
    name = {0: "mlm", 1: "clm"}.get(clm, "mixed")
    if not phases or (phases[-1]["phase"], phases[-1]["predict_from"]) != (name, predict_from):
        phases.append(dict(phase=name, predict_from=predict_from, steps=0, clm_steps=0.0, mask_ratio=[ratio, ratio]))
    last = phases[-1]
    last["steps"] += 1
    last["clm_steps"] += clm
    last["mask_ratio"] = [last["mask_ratio"][0], ratio]


def phases_of(state):
    """Return the record of phases of a checkpoint's dict; [] for a model of the hub.

    Checkpoints older than the record have CLM up to their setting `switch_step`, then MLM.
    """
    if "phases" in state or not state["settings"]:
        return state.get("phases", [])
    clm, ratio = min(state["step"], state["settings"]["switch_step"]), state["settings"]["mask_ratio"]
    phases = []
    if clm:
        phases.append(dict(phase="clm", predict_from="mask", steps=clm, clm_steps=float(clm), mask_ratio=[0.0, 0.0]))
    if mlm := state["step"] - clm:
        phases.append(dict(phase="mlm", predict_from="mask", steps=mlm, clm_steps=0.0, mask_ratio=[ratio, ratio]))
    return phases


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
