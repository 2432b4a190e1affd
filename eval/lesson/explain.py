"""Two tables: a run's next batch under each objective, and what a model predicts for each token of a sentence.

CLM predicts a token from those before it. MLM predicts a hidden token from all others, so here each token is hidden in
turn; a [MASK] in the text is always hidden. A model that was trained with only one objective does the other badly.
"""

import torch

import checkpoint
import configurator
from data.loader import make_batches
from data.objective import CLM, MLM, phases_of, predicts_from
from data.shards import load_data
from errors import DataError

TOP_K = 3  # how many of the likeliest tokens to show
TOKENS = 12  # how many tokens of the batch to show
HEADER = ("   i token", "p", "CLM: token i from tokens 0 .. i-1", "p", "MLM: token i, hidden, from all others")


def read(ckpt):
    """Return a checkpoint's dict, its model and its tokenizer.

    Raises DataError if the model predicts a hidden token from the position before it.
    """
    state = checkpoint.load(ckpt)
    if predicts_from(phases_of(state)) == "before":
        raise DataError(f"{ckpt}: predicts a hidden token from the position before; the lesson needs predict_from=mask")
    return state, checkpoint.model_from(state), checkpoint.tokenizer_of(state)


def encode(text, model, tokenizer):
    """Return the text's token ids, a list. Raises DataError if there are none or too many."""
    ids = tokenizer.encode_masked(text)
    if not 0 < len(ids) <= model.config.seq_len:
        raise DataError(f"text: has {len(ids)} tokens, expected 1 to {model.config.seq_len}")
    return ids


def example(state, tokenizer):
    """Return {objective: (inputs, targets)} for the first tokens of a run's next batch, as text.

    state: the run's checkpoint. A target stands at the position that predicts it; "" is no target.
    """
    cfg = configurator.Settings(state["settings"])
    batches, _ = make_batches(cfg, load_data(cfg.data), tokenizer, state["config"]["seq_len"])
    shown = {}
    for name, objective in {"CLM": CLM(), "MLM": MLM(cfg.mask_ratio)}.items():
        batch = batches.batch(state["step"], objective, [0])
        (inputs,) = batch["tokens"]
        targets = torch.full_like(inputs, -1).scatter(0, batch["positions"], batch["targets"])
        rows = torch.stack([inputs, targets])[:, :TOKENS].tolist()
        shown[name] = [[token_name(tokenizer, i) for i in ids] for ids in rows]
    return shown


def batch_table(shown):
    """Return the result of `example` as a table, as text."""
    rows = [["position", *map(str, range(TOKENS))]]
    for name, (inputs, targets) in shown.items():
        rows += [f"{name} input", *inputs], [f"{name} target", *targets]
    return aligned(rows)


@torch.no_grad()
def predictions(model, ids, tokenizer):
    """Return the probabilities of the whole vocabulary at each position of ids (T,), for each objective.

    Returns clm, mlm: fp32 (T, V). Row i of clm predicts token i + 1 from tokens 0 .. i. Row i of mlm predicts token i
    from all others.
    """
    clm = model.logits(model(ids[None], causal=True)[0])
    hidden_in_turn = ids.repeat(len(ids), 1).fill_diagonal_(tokenizer.mask_id)  # (T, T): token i is hidden in row i
    mlm = model.logits(model(hidden_in_turn, causal=False).diagonal().T)  # the state at position i of row i
    return clm.float().softmax(-1), mlm.float().softmax(-1)


def token_name(tokenizer, i):
    """Return a token as text; "" if i is negative, which stands for no token."""
    if i < 0:
        return ""
    if i == tokenizer.mask_id:
        return "[MASK]"
    return repr(tokenizer.decode([i]))


def guess(tokenizer, p, i):
    """Return two texts: the probability of token i, and the likeliest tokens with theirs. p: probabilities (V,).

    If i is the mask, the token is unknown (it is masked in the text, or follows its end), and the first text is "".
    """
    best = [f"{token_name(tokenizer, k)} {p[k]:.0%}" for k in p.topk(TOP_K).indices.tolist()]
    own = "" if i == tokenizer.mask_id else f"{p[i]:.1%}"
    return own, ", ".join(best)


def guess_table(model, tokenizer, ids):
    """Return a table, as text, of what each objective predicts for each of the ids."""
    clm, mlm = predictions(model, torch.tensor(ids), tokenizer)
    rows = [HEADER]
    by_clm = "", "no token before it"
    following = [*ids[1:], tokenizer.mask_id]  # what follows the last token is unknown
    for i, token in enumerate(ids):
        by_mlm = guess(tokenizer, mlm[i], token)
        rows.append((f"{i:>4} {token_name(tokenizer, token)}", *by_clm, *by_mlm))
        by_clm = guess(tokenizer, clm[i], following[i])
    rows.append((f"{len(ids):>4} (next)", *by_clm, "", ""))
    return aligned(rows)


def aligned(rows):
    """Return rows of cells as text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
