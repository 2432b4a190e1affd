"""Write one HTML page for a class: a batch under both objectives, the guesses and the attention of a model, and figures.

    python -m eval.lesson gallery --ckpts=out/lesson/ckpt-200.pt,out/lesson/ckpt-650.pt

The page needs no network. Its folder also gets the pictures of the masks, as SVG files.
"""

import base64
from html import escape
from pathlib import Path
from string import Template

from eval.lesson import explain
from model import attention_mask

ckpts = ("out/lesson/ckpt-200.pt", "out/lesson/ckpt-650.pt")  # whose guesses and attention; the first one's next batch
text = "If the file does not [MASK], an error is raised."  # the sentence for the guesses and the attention
figures = ("out/lesson/loss.png", "out/per_token.png", "out/switch.png")  # shown if they exist
out = "out/gallery"  # the folder to write

CELL = 22  # pixels of a square
SEEN = "#9db8d9"  # colors of the mask pictures
HIDDEN = "#e8b78a"
UNSEEN = "#ffffff"
# The page, with a part for each model between two lines.
BEFORE, MODEL, AFTER = Path(__file__).with_name("gallery.html").read_text(encoding="utf-8").split("<!-- models -->\n")


PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" \
font-family="monospace" font-size="11"><rect width="{width}" height="{height}" fill="white"/>\
<text x="4" y="16" font-size="14">{title}</text>
{parts}
</svg>"""
ABOVE = '<text transform="translate({} {}) rotate(-60)">{}</text>'
AT_LEFT = '<text x="{}" y="{}" text-anchor="end">{}</text>'
AT_RIGHT = '<text x="{}" y="{}">{}</text>'
SQUARE = '<rect x="{}" y="{}" width="{}" height="{}" fill="{}" stroke="#cccccc"/>'


def grid(title, labels, colors, targets):
    """Return an SVG picture: a row and a column for each label, a square for each of colors (T, T), targets at the right."""
    left = 100  # of the squares
    top = 110
    size = CELL * len(labels)
    right = left + size
    margin = 110 if any(targets) else 30
    parts = []
    for i, label in enumerate(labels):
        x = left + CELL * i
        y = top + CELL * i
        text = escape(label)
        target = f"→ {escape(targets[i])}" if targets[i] else ""
        parts.append(ABOVE.format(x + 14, top - 6, text))
        parts.append(AT_LEFT.format(left - 6, y + 15, text))
        parts.append(AT_RIGHT.format(right + 6, y + 15, target))
        for j, color in enumerate(colors[i]):
            x = left + CELL * j
            parts.append(SQUARE.format(x, y, CELL, CELL, color))
    return PICTURE.format(
        width=right + margin,
        height=top + size + 10,
        title=escape(title),
        parts="\n".join(parts),
    )


def mask_picture(name, inputs, targets):
    """Draw which inputs each position sees, and the target that it must predict, if it has one."""
    mask = attention_mask(len(inputs), explain.OBJECTIVES[name])
    color = [HIDDEN if token == "[MASK]" else SEEN for token in inputs]
    colors = []
    for row in mask.tolist():
        colors.append([color[j] if sees else UNSEEN for j, sees in enumerate(row)])
    return grid(f"{name}: what each position sees and predicts", inputs, colors, targets)


def attention_pictures(model, ids, labels):
    """Draw where each head of the last layer looks, under both objectives."""
    pictures = []
    for name, causal in explain.OBJECTIVES.items():
        last_layer = explain.attention_weights(model, ids, causal)[-1]  # (H, T, T)
        grays = (255 - 255 * last_layer.sqrt()).int()
        for number, head in enumerate(grays.tolist(), 1):
            colors = [[f"rgb({gray},{gray},{gray})" for gray in row] for row in head]
            pictures.append(grid(f"{name}: head {number}", labels, colors, [""] * len(labels)))
    return "".join(pictures)


def guess_table(name, labels, p, tokenizer):
    """Return an HTML table with the best guess for each token. p (T, V): what the model predicts of each."""
    rows = [f"<table><tr><th>{name}: token<th>best guess<th>its probability"]
    best, ids = p.max(-1)
    for label, q, i in zip(labels, best.tolist(), ids.tolist()):
        guess = explain.token_name(tokenizer, i)
        cell = escape(guess)
        if guess == label:
            cell = f"<b>{cell}</b>"
        rows.append(f"<tr><td>{escape(label)}<td>{cell}<td><meter value={q:.3f}></meter> {q:.0%}")
    rows.append("</table>")
    return "".join(rows)


def model_part(state, model, tokenizer, ids, clm, mlm):
    """Return the part of the page about one model. Arguments: what `explain.read` returns."""
    labels = [explain.token_name(tokenizer, i) for i in ids.tolist()]
    of_clm = guess_table("CLM", labels[1:], clm, tokenizer)
    of_mlm = guess_table("MLM", labels, mlm, tokenizer)
    attention = attention_pictures(model, ids, labels)
    return Template(MODEL).substitute(step=state["step"], guesses=of_clm + of_mlm, attention=attention)


def main(cfg):
    models = [explain.read(ckpt, cfg.text) for ckpt in cfg.ckpts]
    state = models[0][0]
    masks = {name: mask_picture(name, *rows) for name, rows in explain.example(state).items()}
    parts = [Template(BEFORE).substitute(step=state["step"], masks=masks["CLM"] + masks["MLM"])]
    for model in models:
        parts.append(model_part(*model))
    figures = ""
    for path in cfg.figures:
        if Path(path).exists():
            image = base64.b64encode(Path(path).read_bytes()).decode()
            figures += f'<img alt="" src="data:image/png;base64,{image}">'
    parts.append(Template(AFTER).substitute(figures=figures))

    folder = Path(cfg.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "clm.svg").write_text(masks["CLM"], encoding="utf-8")
    (folder / "mlm.svg").write_text(masks["MLM"], encoding="utf-8")
    (folder / "index.html").write_text("".join(parts), encoding="utf-8")
    print(f"open {cfg.out}/index.html in a browser")
