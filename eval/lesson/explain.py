"""Show the next batch of a run as each objective trains on it, and what its model predicts of each token of a sentence.

    python -m eval.lesson explain --ckpt=out/lesson --text="Return the [MASK] of the list."

CLM predicts a token from the tokens before it. MLM predicts a hidden token from all others, so here each token is hidden
in turn; a [MASK] in the text is always hidden. A model that was trained with one objective only does the other badly.
"""

import torch
import torch.nn.functional as F

import checkpoint
import configurator
from data.loader import make_batches
from data.objective import CLM, MLM, phases_of, predicts_from
from data.shards import load_data
from errors import DataError
from model import attention_mask, rotate

ckpt = "out/lesson"  # a checkpoint, the folder of a run (its newest checkpoint), or a model from the hub
text = "If the file does not [MASK], an error is raised."  # the sentence

LONGEST = 64  # tokens in a text; nobody can read a larger table
TOP_K = 3  # how many of the likeliest tokens to print
TOKENS = 12  # how many tokens of the batch to show
OBJECTIVES = {"CLM": True, "MLM": False}  # name: causal


def example(state):
    """Return {objective: (inputs, targets)} of the first tokens of a run's next batch, as text; "" for no target.

    state: the run's checkpoint. MLM is that of its validation; a target is at the position that predicts it.
    """
    cfg = configurator.Settings(state["settings"])
    T = state["config"]["seq_len"]
    tokenizer = checkpoint.tokenizer_of(state)
    batches, _ = make_batches(cfg, load_data(cfg.data), tokenizer, T)
    mlm = MLM(cfg.mask_ratio[0], cfg.predict_from)
    shown = {}
    for name, objective in (("CLM", CLM()), ("MLM", mlm)):
        batch = batches.batch(state["step"], objective, [0])
        predicted = batch["targets"] >= 0
        positions = batch["positions"][predicted]
        targets = torch.full((T,), -1)  # no target
        targets[positions] = batch["targets"][predicted]
        inputs = [token_name(tokenizer, i) for i in batch["tokens"][0, :TOKENS].tolist()]
        answers = [token_name(tokenizer, i) for i in targets[:TOKENS].tolist()]
        shown[name] = inputs, answers
    return shown


@torch.no_grad()
def predictions(model, ids, tokenizer, predict_from="mask"):
    """Return the probability of every token of the vocabulary at each position of ids (T,), for each objective.

    Returns clm, mlm: fp32 (T, V). Row i of clm is about token i + 1, given tokens 0 .. i. Row i of mlm is about
    token i, given all others. predict_from: where mlm is read, at token i ("mask") or at the one before ("before").
    """
    clm = model.logits(model(ids[None], causal=True)[0])
    hidden_in_turn = ids.repeat(len(ids), 1).fill_diagonal_(tokenizer.mask_id)  # (T, T): token i is hidden in row i
    if predict_from == "before":  # with an eos in front, so that position i of row i is the one before token i
        hidden_in_turn = F.pad(hidden_in_turn, (1, 0), value=tokenizer.eos_id)  # (T, T + 1)
    states = model(hidden_in_turn, causal=False)
    mlm = model.logits(states.diagonal().T)  # the state at position i of row i
    return clm.float().softmax(-1), mlm.float().softmax(-1)


@torch.no_grad()
def hidden_states(model, tokens, causal):
    """tokens (B, T) -> the embeddings and the output of each layer: n_layer + 1 tensors (B, T, d_model)."""
    T = tokens.shape[1]
    x = [model.embedding(tokens).to(model.compute_dtype)]
    for block in model.blocks:
        x.append(block(x[-1], model.cos[:T], model.sin[:T], causal, None, None))
    return x


@torch.no_grad()
def attention_weights(model, ids, causal):
    """Return how much query i of each head takes from key j: fp32 (n_layer, n_head, T, T); rows sum to 1.

    `model.attention` never returns these. Here its formula is applied to the input of each layer.
    """
    T = len(ids)
    cos = model.cos[:T]
    sin = model.sin[:T]
    hidden = ~attention_mask(T, causal, device=ids.device)
    weights = []
    for block, x in zip(model.blocks, hidden_states(model, ids[None], causal)):
        qkv = block.qkv(block.attn_norm(x))[0].view(T, sum(block.heads), -1)  # (T, H + 2 H_kv, D)
        q, k, _ = qkv.split(block.heads, dim=1)
        q = rotate(block.q_norm(q), cos, sin)
        k = rotate(block.k_norm(k), cos, sin)
        group = q.shape[1] // k.shape[1]
        k = k.repeat_interleave(group, dim=1)  # query head h reads key head h // group
        scores = torch.einsum("qhd,khd->hqk", q, k).float() * q.shape[-1] ** -0.5
        weights.append(scores.masked_fill(hidden, -torch.inf).softmax(-1))
    return torch.stack(weights)


def token_name(tokenizer, i):
    """Return a token as text; "" for a negative number, which stands for no token."""
    if i < 0:
        return ""
    if i == tokenizer.mask_id:
        return "[MASK]"
    return repr(tokenizer.decode([i]))


def print_table(rows, justify=str.ljust):
    """Print rows of cells as a table."""
    rows = list(rows)
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    for row in rows:
        cells = [justify(cell, width) for cell, width in zip(row, widths)]
        print("  ".join(cells).rstrip())


def likeliest(p, tokenizer):
    """Return the likeliest tokens with their probabilities, as text. p (V,)."""
    best, ids = p.topk(TOP_K)
    return ", ".join(f"{token_name(tokenizer, i)} {q:.0%}" for q, i in zip(best.tolist(), ids.tolist()))


def print_predictions(ids, tokenizer, clm, mlm):
    """Print what each objective predicts of each token. clm, mlm: see `predictions`."""
    rows = [("   i token", "p", "CLM: token i from tokens 0 .. i-1", "p", "MLM: token i, hidden, from all others")]
    for i, token in enumerate(ids):
        p_clm = p_mlm = ""
        best_clm = "no token before it"
        if i > 0:
            best_clm = likeliest(clm[i - 1], tokenizer)
        if token != tokenizer.mask_id:  # nobody knows the token behind a mask of the text
            p_mlm = f"{mlm[i, token]:.1%}"
            if i > 0:
                p_clm = f"{clm[i - 1, token]:.1%}"
        best_mlm = likeliest(mlm[i], tokenizer)
        rows.append((f"{i:>4} {token_name(tokenizer, token)}", p_clm, best_clm, p_mlm, best_mlm))
    rows.append((f"{len(ids):>4} (next)", "", likeliest(clm[-1], tokenizer), "", ""))
    print_table(rows)


def read(ckpt, text):
    """Return a checkpoint's dict, its model and tokenizer, the ids (T,) of the text, and the `predictions`."""
    state = checkpoint.load(checkpoint.find(ckpt))
    model = checkpoint.model_from(state)
    tokenizer = checkpoint.tokenizer_of(state)
    predict_from = predicts_from(phases_of(state))
    ids = tokenizer.encode_masked(text)
    longest = min(LONGEST, model.config.seq_len - (predict_from == "before"))  # an eos comes before it
    if not 0 < len(ids) <= longest:
        raise DataError(f"text: has {len(ids)} tokens, expected 1 to {longest}")
    ids = torch.tensor(ids)
    clm, mlm = predictions(model, ids, tokenizer, predict_from)
    return state, model, tokenizer, ids, clm, mlm


def main(cfg):
    state, _, tokenizer, ids, clm, mlm = read(cfg.ckpt, cfg.text)
    if state.get("settings"):  # a model of the hub has none
        print(f"The first tokens of the batch of step {state['step']}\n")
        rows = [["position", *map(str, range(TOKENS))]]
        for name, (inputs, targets) in example(state).items():
            rows.append([f"{name} input", *inputs])
            rows.append([f"{name} target", *targets])
        print_table(rows)
    print(f"\n{cfg.ckpt}, step {state['step']} (p: probability of the token itself; then the {TOP_K} likeliest)\n")
    print_predictions(ids.tolist(), tokenizer, clm, mlm)
