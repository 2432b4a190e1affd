"""What validation predicts: the same for every run, so that the losses of two runs can be compared.

These are CLM, and MLM that hides 40 % of the tokens and shows all of them as the mask token. An encoder that predicts
from the position before a token (MNTP) is validated on the same masks, and its loss has a name of its own. The code
stands apart from data/objective.py on purpose: an edit there must not change what validation measures.
"""

from dataclasses import dataclass

import numpy as np

from data.objective import Examples

MASK_RATIO = 0.4


class NextToken:
    """Each token predicts the next one of its document, with the causal mask."""

    name = "clm"
    causal = True

    def n_predicted(self, T):
        return T

    def examples(self, w):
        is_last = w.position + 1 == w.end
        return Examples(w.tokens, np.where(is_last, -1, np.roll(w.tokens, -1, axis=1)), w.start, w.end)


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
        return Examples(np.where(hidden, w.tokenizer.mask_id, w.tokens), targets, w.start, w.end)


def objectives(predict_from):
    """Return what a model is validated with. predict_from: the position from which it predicts a hidden token."""
    return NextToken(), HiddenTokens(predict_from)
