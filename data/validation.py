"""What validation predicts: the same for every run, so that the losses of two runs can be compared.

These are CLM, and MLM that hides 40 % of the tokens and shows all of them as the mask token. An encoder that predicts
from the position before a token (MNTP) is validated on the same masks, and its loss has a name of its own. The code
stands apart from data/objective.py on purpose: an edit there must not change what validation measures.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from data.loader import to_device
from data.objective import Examples
from runtime import world

MASK_RATIO = 0.4


class NextToken:
    """Each token predicts the next one of its document, with the causal mask."""

    name = "clm"
    causal = True

    def n_predicted(self, T):
        return T

    def examples(self, w):
        is_last = w.position + 1 == w.end
        return Examples(w.tokens, np.where(is_last, -1, np.roll(w.tokens, -1, axis=1)))


@dataclass(frozen=True)
class HiddenTokens:
    """Hidden tokens are predicted at their own position, or from the position before, with the full mask."""

    predict_from: str = "mask"
    causal = False

    @property
    def name(self):
        return "mntp" if self.predict_from == "before" else "mlm"

    def n_predicted(self, T):
        return round(MASK_RATIO * T)

    def examples(self, w):
        special = np.isin(w.tokens, list(w.tokenizer.special_tokens.values()))
        score = np.where(special, np.iinfo(np.uint64).max, w.random())  # special tokens come last and are not hidden
        rank = score.argsort(axis=1, kind="stable").argsort(axis=1)  # (B, T)
        hidden = (rank < self.n_predicted(len(w.position))) & ~special
        if self.predict_from == "before":
            hidden &= w.position > w.start  # nothing is before the first token of a document
        targets = np.where(hidden, w.tokens, -1)
        if self.predict_from == "before":
            targets = np.roll(targets, -1, axis=1)
        return Examples(np.where(hidden, w.tokenizer.mask_id, w.tokens), targets)


@torch.no_grad()
def evaluate(loss_module, val_batches, predict_from, micro_batch, device):
    """Return the validation loss of each objective, in nats per predicted token. The processes share the windows.

    The loss of a mixture is the mean over its sources, weighted by their fractions; that of each source follows.
    predict_from: the position from which the model predicts a hidden token.
    """
    loss_module.eval()
    rank, world_size = world()
    values = {}
    for objective in (NextToken(), HiddenTokens(predict_from)):
        name = f"val_{objective.name}_loss"
        losses = {}
        for folder, (_, batches) in val_batches.items():
            total = torch.zeros(2, dtype=torch.float64, device=device)  # sum of losses, predicted tokens
            windows = range(batches.windows_per_step)
            for first in range(0, len(windows), world_size * micro_batch):
                own = windows[first + rank * micro_batch :][:micro_batch]
                batch = to_device(batches.batch(0, objective, own or [0]), device)
                with torch.compiler.set_stance("force_eager"):  # no second compilation for the last, smaller batch
                    found = torch.stack(loss_module(batch, objective.causal))  # even without windows: shards need it
                if own:
                    total += found
            if world_size > 1:
                dist.all_reduce(total)
            losses[folder] = (total[0] / total[1]).item()
        values[name] = sum(fraction * losses[folder] for folder, (fraction, _) in val_batches.items())
        if len(losses) > 1:
            values[f"{name}_by_source"] = losses
    loss_module.train()
    return values
