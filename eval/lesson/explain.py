"""Show one sentence under both objectives: who sees whom, what is predicted of each token, where each head looks.

    python -m eval.lesson explain --ckpt=out/demo --text="Return the [MASK] of the list."

Prints tables, and draws them where matplotlib is installed. CLM predicts a token from the tokens before it. MLM
predicts a hidden token from all others, so here each token is hidden in turn; a [MASK] in the text is always hidden.
A model that was trained with one objective only does the other badly.
"""

import sys

import torch

import checkpoint
import configurator
from eval.plot import new_figure, save_figure
from model import attention_mask, rotate

ckpt = "out/demo"  # a checkpoint, the folder of a run (its newest checkpoint), or a model from the hub
text = "If the file does not [MASK], an error is raised."  # the sentence
layer = 0  # the layer whose attention to show, from 1; 0 = the last
out = "out/explain.png"  # the figure

LONGEST = 64  # tokens in a text; more can be neither read nor drawn
TOP_K = 3  # how many of the likeliest tokens, and of the tokens with the most attention, to print
OBJECTIVES = {"CLM": True, "MLM": False}  # name: causal


@torch.no_grad()
def predictions(model, ids, mask_id):
    """Return the probability of every token of the vocabulary at each position of ids (T,), for each objective.

    Returns clm, mlm: fp32 (T, V). Row i of clm is about token i + 1, given tokens 0 .. i. Row i of mlm is about
    token i, given all others.
    """
    clm = model.logits(model(ids[None], causal=True)[0])
    hidden_in_turn = ids.repeat(len(ids), 1).fill_diagonal_(mask_id)  # (T, T): token i is hidden in row i
    mlm = model.logits(model(hidden_in_turn, causal=False).diagonal().T)  # the state at position i of row i
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
    T, weights = len(ids), []
    mask = attention_mask(T, causal, device=ids.device)
    for block, x in zip(model.blocks, hidden_states(model, ids[None], causal)):
        qkv = block.qkv(block.attn_norm(x))[0].view(T, sum(block.heads), -1)  # (T, H + 2 H_kv, D)
        q, k, _ = qkv.split(block.heads, dim=1)
        q, k = (rotate(y, model.cos[:T], model.sin[:T]) for y in (block.q_norm(q), block.k_norm(k)))
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # query head h reads key head h // group
        scores = torch.einsum("qhd,khd->hqk", q, k).float() * q.shape[-1] ** -0.5
        weights.append(scores.masked_fill(~mask, -torch.inf).softmax(-1))
    return torch.stack(weights)


def print_table(rows, justify=str.ljust):
    """Print rows of cells as a table."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(justify(cell, width) for cell, width in zip(row, widths)).rstrip())


def likeliest(p, name):
    """Return the largest of p (N,) as text. name(i): what to call number i."""
    values, best = p.topk(min(TOP_K, len(p)))
    return ", ".join(f"{name(i)} {q:.0%}" for i, q in zip(best.tolist(), values.tolist()) if q > 0)


def print_masks(labels):
    """Print which tokens each token sees."""
    rows = [("     token", "causal=True", "causal=False")]
    masks = [attention_mask(len(labels), causal) for causal in (True, False)]
    for i, label in enumerate(labels):
        rows.append((f"{i:>4} {label}", *("".join(".#"[see] for see in mask[i]) for mask in masks)))
    print_table(rows)


def print_predictions(ids, name, mask_id, clm, mlm):
    """Print what each objective predicts of each token. clm, mlm: see `predictions`."""
    rows = [("   i token", "p", "CLM: token i from tokens 0 .. i-1", "p", "MLM: token i, hidden, from all others")]
    for i, token in enumerate(ids):
        clm_p, mlm_p = ("" if token == mask_id else f"{p[token]:.1%}" for p in (clm[i - 1], mlm[i]))
        before = (clm_p, likeliest(clm[i - 1], name)) if i else ("", "no token before it")
        rows.append((f"{i:>4} {name(token)}", *before, mlm_p, likeliest(mlm[i], name)))
    print_table([*rows, (f"{len(ids):>4} (next)", "", likeliest(clm[-1], name), "", "")])


def print_attention(weights, labels, i):
    """Print where each head of one layer looks from position i. weights: {objective: (H, T, T)}."""
    cells = [[likeliest(head[i], lambda j: f"{j} {labels[j]}") for head in heads] for heads in weights.values()]
    rows = [(f"  head {head}", *row) for head, row in enumerate(zip(*cells), 1)]
    print_table([("", "CLM (causal=True)", "MLM (causal=False)"), *rows])


def draw(labels, guesses, weights, layer):
    """Return a figure with CLM in the left half and MLM in the right, or None without matplotlib.

    labels: the T tokens. guesses: {objective: [(the best guess for a token, its probability, whether it is correct)]}.
    weights: {objective: (H, T, T)}, the attention weights of one layer.
    """
    T, n_heads = len(labels), len(weights["CLM"])
    size, n_rows = max(1.9, 0.16 * T), 1 + -(-n_heads // 2)  # inches of one panel; two heads in a row
    if not (figure := new_figure(4 * size + 2, n_rows * (size + 0.4) + 0.5)):
        return None
    grid = figure.subplots(n_rows, 4, squeeze=False)
    for column, (name, causal) in zip((0, 2), OBJECTIVES.items()):
        mask, bars, *heads = grid[:, column : column + 2].flat
        for axes in heads[n_heads:]:
            axes.remove()
        images = [(mask, f"{name}: attention mask", attention_mask(T, causal) / 2)]
        for number, (axes, head) in enumerate(zip(heads, weights[name]), 1):
            images.append((axes, f"{name}: layer {layer}, head {number}", head.sqrt()))  # so that small weights show
        for axes, title, image in images:
            axes.imshow(image.numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto")
            axes.set_title(title, fontsize=9)
        texts, p, correct = zip(*guesses[name])
        rectangles = bars.barh(range(T), p, color=["0.35" if right else "0.8" for right in correct], height=0.75)
        bars.bar_label(rectangles, texts, padding=3, fontsize=7)
        bars.set(xlim=(0, 1.4), xticks=(0, 0.5, 1), ylim=(T - 0.5, -0.5))
        bars.set_title(f"{name}: best guess (dark: correct)", fontsize=9)
        bars.set_xlabel("probability", fontsize=8)
        for n, axes in enumerate([mask, bars, *heads[:n_heads]]):
            axes.set_yticks(range(T), labels if column == n % 2 == 0 else [""] * T)
            if axes is not bars:
                axes.set_xticks(range(T), labels if n >= n_heads else [""] * T, rotation=90)
            axes.tick_params(labelsize=7, length=2)
    figure.supylabel("token i", fontsize=9)
    figure.supxlabel("token j (attention maps: the darker, the more attention, on a square-root scale)", fontsize=9)
    return figure


def main(argv):
    cfg = configurator.load(__file__, argv, command="python -m eval.lesson explain")
    path = checkpoint.find(cfg.ckpt)
    state = checkpoint.load(path)
    model, tokenizer = checkpoint.model_from(state), checkpoint.tokenizer_of(state)
    ids, mask_id, n_layer = tokenizer.encode_masked(cfg.text), tokenizer.mask_id, model.config.n_layer
    longest, layer = min(LONGEST, model.config.seq_len), cfg.layer or n_layer
    if not 0 < len(ids) <= longest:
        sys.exit(f"text: has {len(ids)} tokens, expected 1 to {longest}")
    if not 0 < layer <= n_layer:
        sys.exit(f"layer={layer}: expected 1 to {n_layer}, or 0 for the last")

    def name(i):
        return "[MASK]" if i == mask_id else repr(tokenizer.decode([i]))

    labels, tokens = [name(i) for i in ids], torch.tensor(ids)
    settings = state["settings"]  # empty for a model from the hub
    phases = f", of which {min(state['step'], settings['switch_step'])} CLM" if settings else ""
    print(f"{path}: step {state['step']}{phases}\n\nwhich tokens position i sees (#)")
    print_masks(labels)

    clm, mlm = predictions(model, tokens, mask_id)
    print(f"\nwhat each objective predicts (p: probability of the token itself; then the {TOP_K} likeliest)")
    print_predictions(ids, name, mask_id, clm, mlm)

    weights = {name: attention_weights(model, tokens, causal)[layer - 1] for name, causal in OBJECTIVES.items()}
    i = ids.index(mask_id) if mask_id in ids else len(ids) - 1
    print(f"\nattention of layer {layer} of {n_layer}: where its heads look from position {i}, {labels[i]}")
    print_attention(weights, labels, i)

    def best(p, about):  # p (n, V): predictions of the n tokens `about`
        return [(name(q.argmax().item()), q.max().item(), q.argmax() == token) for q, token in zip(p, about)]

    guesses = {"CLM": [("no token before it", 0.0, False), *best(clm, ids[1:])], "MLM": best(mlm, ids)}
    if figure := draw(labels, guesses, weights, layer):
        save_figure(figure, cfg.out)
        print(f"\ndrawn in {cfg.out}")
