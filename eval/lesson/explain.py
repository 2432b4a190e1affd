"""One sentence under either objective: who sees whom, what is predicted of each token, where each head looks.

    python eval/explain.py --ckpt=out/demo "Return the [MASK] of the list."

Prints it, and draws it where matplotlib is installed. CLM predicts a token from those before it; MLM predicts a token
that is hidden from all others, so here each token is hidden in turn, and a [MASK] of the text always. A model that was
only trained one way does the other badly.
"""

import sys
from pathlib import Path

import torch

import checkpoint
import configurator
from data.tokenizer import Tokenizer
from errors import Damaged, DataError
from model import Transformer, rotate, attention_mask

ckpt = "out/demo"  # a checkpoint, the folder of a run (its newest one), or a model of the hub
text = ""  # the sentence, which may hold [MASK]; the same as the word without a name
top = 3  # how many of the likeliest tokens, and of the tokens looked at, to print
layer = 0  # whose attention to show, from 1; 0 = the last
out = "out/explain.png"  # the figure

LONGEST = 64  # tokens of a text: more can neither be read nor drawn


# ----------------------------------------------------------------------------
# What the model does


@torch.no_grad()
def predictions(model, ids, mask_id):
    """The probability of every token of the vocabulary at each position of ids (T,), by either objective.

    Returns clm, mlm: fp32 (T, V). Row i of clm is about token i + 1, from tokens 0 .. i; row i of mlm is about token i,
    from all others.
    """
    clm = model.logits(model(ids[None], causal=True)[0])
    hidden_in_turn = ids.repeat(len(ids), 1).fill_diagonal_(mask_id)  # (T, T): token i is hidden in row i
    mlm = model.logits(model(hidden_in_turn, causal=False).diagonal().T)  # of row i the state at position i
    return clm.float().softmax(-1), mlm.float().softmax(-1)


@torch.no_grad()
def states(model, tokens, causal):
    """tokens (B, T) -> what each block reads and what the last one leaves: n_layer + 1 tensors (B, T, d_model)."""
    T = tokens.shape[1]
    x = [model.embedding(tokens).to(model.compute_dtype)]
    for block in model.blocks:
        x.append(block(x[-1], model.cos[:T], model.sin[:T], causal, None, None))
    return x


@torch.no_grad()
def attention_weights(model, ids, causal):
    """How much each head's query i takes from key j: fp32 (n_layer, n_head, T, T), rows sum to 1.

    `model.attention` never returns these; here its formula is spelt out on what each block reads.
    """
    T, found = len(ids), []
    for block, x in zip(model.blocks, states(model, ids[None], causal)):
        qkv = block.qkv(block.attn_norm(x))[0].view(T, sum(block.heads), -1)  # (T, H + 2 H_kv, D)
        q, k, _ = qkv.split(block.heads, dim=1)
        q, k = rotate(q, model.cos[:T], model.sin[:T]), rotate(k, model.cos[:T], model.sin[:T])
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # query head h reads key head h // group
        scores = torch.einsum("qhd,khd->hqk", q, k).float() * q.shape[-1] ** -0.5
        found.append(scores.masked_fill(~attention_mask(T, causal, device=ids.device), -torch.inf).softmax(-1))
    return torch.stack(found)


# ----------------------------------------------------------------------------
# Print


def likeliest(p, tokens, k):
    """The k largest of p (N,) as text; tokens: what stands for each of the N."""
    values, best = p.topk(min(k, len(p)))
    return ", ".join(f"{tokens(i)} {q:.0%}" for i, q in zip(best.tolist(), values.tolist()) if q > 0)


def table(ids, shown, name, mask_id, clm, mlm, k):
    """Who sees whom and what is predicted, a line a token. shown: the tokens of ids; name: the text of any id."""
    T, width = len(ids), max(8, *map(len, shown))
    yield "which tokens position i sees (#)"
    yield f"{'':>4} {'token':<{width}}  {'causal=True':<{max(T, 11)}}  causal=False"
    for i, token in enumerate(shown):
        clm_sees, mlm_sees = ("".join(".#"[see] for see in attention_mask(T, causal)[i]) for causal in (True, False))
        yield f"{i:>4} {token:<{width}}  {clm_sees:<{max(T, 11)}}  {mlm_sees}"
    yield ""
    left = ["its position sees nothing to the left"] + [likeliest(p, name, k) for p in clm]
    right = [likeliest(p, name, k) for p in mlm] + [""]
    own = [token if token != mask_id else None for token in ids.tolist()]
    columns = [("token", [*shown, "(next)"]),
               ("p", [""] + [share(clm[i - 1], own[i]) for i in range(1, T)] + [""]),
               ("CLM: token i from tokens 0 .. i-1", left),
               ("p", [share(mlm[i], own[i]) for i in range(T)] + [""]),
               ("MLM: token i, hidden, from all others", right)]  # fmt: skip
    yield f"what each objective predicts (p: probability of the token itself; then the {k} likeliest)"
    widths = [max(len(heading), *map(len, cells)) for heading, cells in columns]
    yield "   i " + "  ".join(heading.ljust(w) for (heading, _), w in zip(columns, widths)).rstrip()
    for i, row in enumerate(zip(*(cells for _, cells in columns))):
        yield f"{i:>4} " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip()


def share(p, token):
    return "" if token is None else f"{p[token]:.1%}"


def looks(weights, shown, i, k):
    """Where the heads of one layer look from position i, a line a head. weights: {"CLM", "MLM"}: (H, T, T)."""
    cells = {name: [likeliest(w[i], lambda j: f"{j} {shown[j]}", k) for w in heads] for name, heads in weights.items()}
    width = max(map(len, cells["CLM"]))
    yield f"{'':>9} {'CLM (causal=True)':<{max(width, 17)}}  MLM (causal=False)"
    for head, (clm, mlm) in enumerate(zip(cells["CLM"], cells["MLM"]), 1):
        yield f"  head {head:<2} {clm:<{max(width, 17)}}  {mlm}"


# ----------------------------------------------------------------------------
# Draw


def draw(path, shown, bars, weights, title):
    """Writes the figure; False without matplotlib.

    bars: for CLM and MLM, for each token: (its best guess, the guess's probability, whether it is correct, or None).
    """
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import PowerNorm

    T, n_heads = len(shown), len(weights["CLM"])
    across = min(n_heads, 3)  # heads in a line, once for CLM and once for MLM
    down = -(-n_heads // across)
    size = max(1.7, 0.16 * T)  # inches of a map of T x T
    heights = size + 0.75, down * (size + 0.35) + 1.2
    figure = plt.figure(figsize=(max(2 * size + 6, 2 * across * size + 1.8), sum(heights)), layout="constrained")
    upper, lower = figure.subfigures(2, height_ratios=heights)

    masks = upper.subplots(1, 4, width_ratios=[size, size, 2, 2])
    for axes, causal, name in zip(masks, (True, False), ("CLM", "MLM")):
        axes.imshow(0.55 * attention_mask(T, causal), cmap="Greys", vmin=0, vmax=1, aspect="auto")
        axes.set_title(f"{name}: i sees j (grey)", fontsize=9)
        axes.set_xlabel("token j", fontsize=8)
    for axes, (name, rows) in zip(masks[2:], bars.items()):
        colours = ["0.35" if right else "0.8" for _, _, right in rows]
        axes.barh(range(T), [100 * p for _, p, _ in rows], color=colours, height=0.75)
        for i, (guess, p, _) in enumerate(rows):
            axes.annotate(guess, (100 * p, i), (3, 0), textcoords="offset points", va="center", fontsize=7)
        axes.set(xlim=(0, 140), xticks=(0, 50, 100), ylim=(T - 0.5, -0.5))
        axes.set_title(f"{name}: best guess for token i", fontsize=9)
        axes.set_xlabel("probability (%), dark: correct", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in masks:
        axes.set_yticks(range(T), shown if axes in (masks[0], masks[2]) else [""] * T)
        axes.tick_params(labelsize=7, length=2)
    masks[0].set_ylabel("token i", fontsize=8)

    lower.suptitle(title, fontsize=10)
    grid = lower.subplots(down, 2 * across, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for n, (name, heads) in enumerate(weights.items()):
        for h, w in enumerate(heads):
            axes = grid[h // across, n * across + h % across]
            axes.set_visible(True)
            image = axes.imshow(w, cmap="Greys", norm=PowerNorm(0.5, 0, 1))  # so that small weights show
            axes.set_title(f"{name}, head {h + 1}", fontsize=9)
            axes.set_yticks(range(T), shown if h % across == n == 0 else [""] * T)
            axes.set_xticks(range(T), shown if h + across >= n_heads else [""] * T, rotation=90)
            axes.tick_params(labelsize=7, length=2)
    lower.supylabel("from token i", fontsize=8)
    lower.supxlabel("to token j", fontsize=8)
    bar = lower.colorbar(image, ax=grid, shrink=0.8)
    bar.set_label("attention weight", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True


# ----------------------------------------------------------------------------


def check(s):
    if not s["text"].strip():
        yield 'no text: python eval/explain.py --ckpt=out/demo "Return the [MASK] of the list."'
    if s["top"] < 1 or s["layer"] < 0:
        yield f"top={s['top']}, layer={s['layer']}: must be at least 1 and at least 0"
    if Path(s["out"]).suffix != ".png":
        yield f"out={s['out']}: must be the name of a .png file"


def arguments(argv):
    """The sentence may stand for itself: words that are neither a setting nor a config file are --text."""
    words = [word for word in argv if not word.startswith("-") and not word.endswith(".py")]
    return [word for word in argv if word not in words] + ["--text=" + " ".join(words)] * bool(words)


def main():
    globals().update(configurator.load(__file__, arguments(sys.argv[1:]), check))
    try:
        path = checkpoint.find(ckpt)
        state = checkpoint.load(path)
    except (Damaged, DataError) as error:
        sys.exit(f"{error}")
    model = Transformer.from_state(state)
    tokenizer = Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])
    ids = torch.tensor(tokenizer.encode_masked(text))
    T, longest = len(ids), min(LONGEST, model.config.seq_len)
    if T > longest:
        sys.exit(f"the text has {T} tokens, here {longest} are the most")
    if layer > model.config.n_layer:
        sys.exit(f"layer={layer}: this model has {model.config.n_layer}")

    def name(i):
        return "[MASK]" if i == tokenizer.mask_id else repr(tokenizer.decode([i]))

    shown = [name(i) for i in ids.tolist()]
    print(f"{path}: step {state['step']}" + phases(state) + "\n")
    clm, mlm = predictions(model, ids, tokenizer.mask_id)
    print("\n".join(table(ids, shown, name, tokenizer.mask_id, clm, mlm, top)))

    n = layer or model.config.n_layer
    weights = {"CLM": attention_weights(model, ids, True)[n - 1], "MLM": attention_weights(model, ids, False)[n - 1]}
    at = ids.tolist().index(tokenizer.mask_id) if tokenizer.mask_id in ids else T - 1
    title = f"attention of layer {n} of {model.config.n_layer}"
    print(f"\n{title}: where its heads look from position {at}, {shown[at]}")
    print("\n".join(looks(weights, shown, at, top)))

    guesses = {"CLM": [("nothing to its left", 0.0, None)], "MLM": []}
    for rows, p, about in ((guesses["CLM"], clm[:-1], ids[1:]), (guesses["MLM"], mlm, ids)):
        for row, token in zip(p, about):
            rows.append((name(int(row.argmax())), float(row.max()), bool(row.argmax() == token)))
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    if draw(out, shown, guesses, weights, title):
        print(f"\ndrawn in {out}")


def phases(state):
    """What the steps before a checkpoint were; of a model of the hub nothing is known."""
    s = state["settings"]
    return f", of which {min(state['step'], s['switch_step'])} CLM" if s else ""


if __name__ == "__main__":
    main()
