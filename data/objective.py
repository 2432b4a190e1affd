"""Training objectives, and the record of what a run has trained.

An objective is a frozen dataclass that inherits from `Objective`. To try another one, write a class like CLM and MLM
and return it from `objective` in train.py. docs/editing.md has a prefix LM, masked diffusion and others.
"""

import math
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data.loader import mix, u64
from errors import DataError

# ----------------------------------------------------------------------------
# Objectives


class Examples(NamedTuple):
    """The inputs and targets of some windows. All arrays are (B, T), the weights floats and the others int64."""

    shown: np.ndarray  # the input
    targets: np.ndarray  # the token that each position predicts, -1 for none
    # Position t sees the keys in [see_start, see_end), and of those only the ones up to t if `causal`.
    see_start: np.ndarray = None  # None: the start of its document
    see_end: np.ndarray = None  # None: the end of its document
    weights: np.ndarray = None  # of each position in the mean loss, at least 0; None: all are equal


class Objective:
    """The base class of objectives, with defaults.

    A subclass has a lowercase `name`, which the log, figures and model cards show.
    """

    details = ""  # for the record, such as "40 % masked"
    causal = False  # the attention mask: True for a decoder, False for an encoder
    mask_ratio = 0.0  # the fraction of the tokens that are hidden
    predict_from = "mask"  # the position that predicts a hidden token: its own, or "before", the one before it

    def n_predicted(self, T):
        """Return how many of T positions predict, at most. Shapes depend on it, so it must depend on T alone."""
        return T

    def examples(self, w):
        """Return the Examples of some Windows."""
        raise NotImplementedError


@dataclass(frozen=True)
class CLM(Objective):
    """Causal language modeling: each position predicts the next token of its document."""

    name = "clm"
    causal = True

    def examples(self, w):
        targets = np.roll(w.tokens, -1, axis=1)
        targets[w.position + 1 == w.end] = -1
        return Examples(w.tokens, targets)


@dataclass(frozen=True)
class MLM(Objective):
    """Masked language modeling: a fraction of the tokens, chosen at random, are hidden and predicted. For example:

        tokens      The   cat   sat   eos
        random       71    12    40     9
        hidden       no   yes   yes    no     the 2 lowest, but never a special token
        shown       The  mask  mask   eos
        targets      -1   cat   sat    -1     or cat, sat, -1, -1 with predict_from = "before"

    With "before", the position before a hidden token predicts it. This is masked next-token prediction (MNTP), as in
    LLM2Vec (arXiv 2404.05961).
    """

    mask_ratio: float = 0.4  # the fraction of a window's tokens that are hidden
    predict_from: str = "mask"
    proportions: tuple = (1.0, 0.0, 0.0)  # of the hidden tokens: shown as the mask token, as a random token, unchanged

    @property
    def name(self):
        return "mntp" if self.predict_from == "before" else "mlm"

    @property
    def details(self):
        masked = f"{100 * self.mask_ratio:.3g} % masked"
        if self.proportions[0] == 1:
            return masked
        return f"{masked}, of these {'/'.join(f'{100 * part:.3g}' for part in self.proportions)}"

    def n_predicted(self, T):
        return round(self.mask_ratio * T)

    def examples(self, w):
        random = w.random()
        hidden = choose_hidden(w, random, self.mask_ratio)  # bool (B, T)
        if self.predict_from == "before":
            hidden &= w.position > w.start  # nothing is before the first token of a document, so it stays
        shown = show(w, hidden, random, self.proportions)
        targets = np.where(hidden, w.tokens, -1)
        if self.predict_from == "before":
            targets = np.roll(targets, -1, axis=1)
        return Examples(shown, targets)


def choose_hidden(w, random, mask_ratio):
    """Return which tokens are hidden, bool (B, T): in each window the ordinary tokens with the lowest random numbers.

    random: uint64 (B, T), a number for each token.
    """
    T = w.tokens.shape[1]
    n = round(mask_ratio * T)
    if not 0 < n <= T:
        raise DataError(f"mask_ratio={mask_ratio}: it hides {n} of the {T} tokens of a window; must be 1 to {T}")
    ordinary = ~np.isin(w.tokens, list(w.tokenizer.special_tokens.values()))
    score = np.where(ordinary, random, np.iinfo(np.uint64).max)  # special tokens come last
    nth_lowest = np.partition(score, n - 1, axis=1)[:, n - 1 : n]  # (B, 1)
    return ordinary & (score <= nth_lowest)  # fewer than n if a window has fewer ordinary tokens


def show(w, hidden, random, proportions):
    """Return the input, (B, T). Hidden tokens are shown as the mask token, as a random ordinary token, or unchanged.

    proportions: the fractions of these three, as in BERT's 80/10/10.
    """
    as_mask, as_random, _ = proportions
    u = mix(random) / 2.0**64  # a second random number for each token, from 0 to 1
    which = mix(random ^ u64(1)) % u64(len(w.tokenizer.ordinary_ids))
    other = w.tokenizer.ordinary_ids[which.astype(np.int64)]
    instead = np.where(u < as_mask + as_random, other, w.tokens)
    instead[u < as_mask] = w.tokenizer.mask_id
    return np.where(hidden, instead, w.tokens)


# ----------------------------------------------------------------------------
# The windows of a step


class MicroBatch(NamedTuple):
    """Windows of a step that go through the model together. Their objectives have the same class, name and mask."""

    name: str
    causal: bool
    windows: list  # [(objective, the window's number in the step), ...]
    is_own: bool  # False: the window of another process; this one only takes part in the exchange of gradients


def group_windows(objective_of, cfg, n_windows, step, every=1):
    """Return {objective: the numbers of its windows} for a step. every: look at one window in so many.

    objective_of: the function `objective` of train.py.
    """
    groups = {}
    for window in range(0, n_windows, every):
        objective = objective_of(step, window, n_windows, cfg)
        if objective:  # None leaves the window out
            groups.setdefault(objective, []).append(window)
    return groups


def micro_batches(groups, micro_batch, rank, world_size):
    """Return the MicroBatches of a process, of at most `micro_batch` windows each. groups: see `group_windows`.

    Objectives with the same class, name and mask share micro-batches, such as MLM with another ratio for each window.
    Their windows are dealt to the processes in turn. All processes have the same number of micro-batches, because they
    exchange gradients and shards together.
    """
    if not groups:
        raise DataError("`objective` leaves out all windows of a step: it must keep at least one")
    kinds = defaultdict(list)
    for objective, windows in groups.items():
        kinds[kind_of(objective)] += [(objective, window) for window in windows]
    found = []
    for (_, name, causal), pairs in kinds.items():
        own = pairs[rank::world_size]
        for part in np.array_split(range(len(own)), math.ceil(len(pairs) / world_size / micro_batch)):
            mine = [own[i] for i in part]
            found.append(MicroBatch(name, causal, mine or pairs[:1], bool(mine)))
    return found


def kind_of(objective):
    """Return what all objectives in a micro-batch have in common."""
    return type(objective), objective.name, objective.causal


def names_of(groups):
    """Return the names of a step's objectives, sorted. groups: see `group_windows`."""
    return sorted({objective.name for objective in groups})


def phase_of(groups):
    """Return the name of a step's objectives, such as "mlm" or "clm + mlm"."""
    return " + ".join(names_of(groups))


def look_ahead(groups_of, max_steps, batches):
    """Return the groups of about 100 steps, spread over the run, and where hidden tokens are predicted in the end.

    groups_of: a function of the step, see `group_windows`. Raises DataError if it or the examples are not repeatable.
    """
    steps = [*range(0, max_steps, math.ceil(max_steps / 100)), max_steps - 1]
    sampled, again = ([groups_of(step) for step in steps] for _ in range(2))
    if sampled != again:
        raise DataError("`objective` in train.py differs from call to call: it may depend on its arguments only")
    most_hidden_first = sorted(set().union(*sampled), key=lambda objective: -objective.mask_ratio)
    one_of_each = {kind_of(objective): objective for objective in most_hidden_first}  # the one that hides least
    for objective in one_of_each.values():
        batches.check_repeatable(objective)
    phases = []
    for groups in sampled:
        add_step(phases, groups)
    return sampled[:-1], predicts_from(phases)


def checksum_of(sampled):
    """Return a checksum, as text, of what the steps of `look_ahead` train: equal for equal schedules."""
    value = 0
    for groups in sampled:
        for objective, windows in groups.items():
            fields = re.sub(" at 0x[0-9a-f]+", "", str(vars(objective)))  # without addresses, which always differ
            value = zlib.crc32(f"{objective.name} {fields} {windows}".encode(), value)
    return f"{value:08x}"


# ----------------------------------------------------------------------------
# The record of a run's phases


def add_step(phases, groups):
    """Add a step to the record of a run's phases, a list of dicts, in place. groups: see `group_windows`.

    The dict of a phase has `phase` (see `phase_of`), `steps`, and `objectives`. That is a dict by name: `steps` (those
    of the phase, times the fraction of their windows), `causal`, `predict_from`, `mask_ratio` [at first, at last, the
    largest] and `details` [at first, at last].
    """
    name = phase_of(groups)
    if not phases or phases[-1]["phase"] != name:
        phases.append(dict(phase=name, steps=0, objectives={}))
    phase = phases[-1]
    phase["steps"] += 1
    n_windows = sum(map(len, groups.values()))
    for name in names_of(groups):
        same = [objective for objective in groups if objective.name == name]
        ratio = max(objective.mask_ratio for objective in same)
        details = " to ".join(dict.fromkeys([same[0].details, same[-1].details]))
        windows = sum(len(groups[objective]) for objective in same)
        new = dict(
            steps=0.0,
            mask_ratio=[ratio] * 3,
            details=[details] * 2,
            causal=same[0].causal,
            predict_from=same[0].predict_from,
        )
        entry = phase["objectives"].setdefault(name, new)
        entry["steps"] += windows / n_windows
        entry["mask_ratio"][1:] = ratio, max(ratio, entry["mask_ratio"][2])
        entry["details"][1] = details


def phases_of(state):
    """Return the record of phases of a checkpoint's dict; [] for a model of the hub."""
    return state.get("phases", [])


def clm_steps(phases):
    """Return how many steps were CLM. A step with several objectives counts by its fraction of CLM windows."""
    return sum(phase["objectives"].get("clm", {"steps": 0})["steps"] for phase in phases)


def largest_mask_ratio(phases):
    """Return the largest mask ratio of a record of phases, 0 if nothing was hidden."""
    return max((max(entry["mask_ratio"]) for phase in phases for entry in phase["objectives"].values()), default=0.0)


def is_decoder(phases):
    """Return whether the last phase trained the causal mask only."""
    return all(entry["causal"] for entry in phases[-1]["objectives"].values())


def predicts_from(phases):
    """Return the position from which a model predicts a hidden token, "mask" or "before". phases: its record."""
    for phase in reversed(phases):
        for entry in phase["objectives"].values():
            if entry["mask_ratio"][1] > 0 and not entry["causal"]:
                return entry["predict_from"]
    return "mask"


def validation_keys(line):
    """Return {name of an objective: the key of its validation loss} of a line of metrics.jsonl."""
    return {match[1]: key for key in line if (match := re.fullmatch("val_(.+)_loss", key))}


def title(name):
    """Return the name of an objective or a phase as prose writes it: abbreviations in capitals."""
    return re.sub(r"\b(clm|mlm|mntp|lm)\b", lambda word: word[0].upper(), name)


def describe(phases):
    """Describe a record of phases in words, such as "CLM for 200 steps, then MLM (40 % masked) for 450 steps"."""
    words = []
    for phase in phases[:4]:
        parts = []  # an objective each
        for name, entry in phase["objectives"].items():
            text = title(name)
            first, last = entry["details"]
            if last != first:
                text += f" ({first} at first, {last} at last)"
            elif first:
                text += f" ({first})"
            if entry["steps"] < phase["steps"]:
                text += f" in {100 * entry['steps'] / phase['steps']:.3g} % of the windows"
            parts.append(text)
        words.append(f"{' and '.join(parts)} for {phase['steps']:,} steps")
    if len(phases) > 4:
        words.append(f"{len(phases) - 4} more phases")
    return ", then ".join(words)
