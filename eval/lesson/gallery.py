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
SEEN, HIDDEN, UNSEEN = "#9db8d9", "#e8b78a", "#ffffff"  # colors of the mask pictures
# The page, with a part for each model between two lines.
BEFORE, MODEL, AFTER = Path(__file__).with_name("gallery.html").read_text(encoding="utf-8").split("<!-- models -->\n")


def grid(title, labels, colors, targets):
    """Return an SVG picture: a row and a column for each label, a square for each of colors (T, T), targets at the right."""
    x0, y0, size = 100, 110, CELL * len(labels)  # the squares begin at (x0, y0)
    width, height = x0 + size + (110 if any(targets) else 30), y0 + size + 10
    frame = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} viewBox="0 0 {width} {height}" font-family="monospace" '
        f'font-size="11"><rect {frame} fill="white"/><text x="4" y="16" font-size="14">{escape(title)}</text>'
    ]
    for i, (label, target, row) in enumerate(zip(labels, targets, colors)):
        x, y, text = x0 + CELL * i, y0 + CELL * i, escape(label)
        parts.append(f'<text transform="translate({x + 14} {y0 - 6}) rotate(-60)">{text}</text>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 15}" text-anchor="end">{text}</text>')
        parts.append(f'<text x="{x0 + size + 6}" y="{y + 15}">{escape(target and f"→ {target}")}</text>')
        for j, color in enumerate(row):
            square = f'x="{x0 + CELL * j}" y="{y}" width="{CELL}" height="{CELL}" fill="{color}" stroke="#cccccc"'
            parts.append(f"<rect {square}/>")
    return "\n".join([*parts, "</svg>"])


def mask_picture(name, inputs, targets):
    """Draw which inputs each position sees, and the target that it must predict, if it has one."""
    color = [HIDDEN if token == "[MASK]" else SEEN for token in inputs]
    mask = attention_mask(len(inputs), explain.OBJECTIVES[name]).tolist()
    colors = [[color[j] if sees else UNSEEN for j, sees in enumerate(row)] for row in mask]
    return grid(f"{name}: what each position sees and predicts", inputs, colors, targets)


def attention_pictures(model, ids, labels):
    """Draw where each head of the last layer looks, under both objectives."""
    for name, causal in explain.OBJECTIVES.items():
        levels = (255 - 255 * explain.attention_weights(model, ids, causal)[-1].sqrt()).int().tolist()  # (H, T, T)
        for number, head in enumerate(levels, 1):
            colors = [[f"rgb({level},{level},{level})" for level in row] for row in head]
            yield grid(f"{name}: head {number}", labels, colors, [""] * len(labels))


def guess_table(name, labels, p, tokenizer):
    """Return an HTML table with the best guess for each token. p (T, V): what the model predicts of each."""
    rows = []
    for label, probability, best in zip(labels, *p.max(-1)):
        guess = explain.token_name(tokenizer, best.item())
        cell = f"<b>{escape(guess)}</b>" if guess == label else escape(guess)
        rows.append(f"<tr><td>{escape(label)}<td>{cell}<td><meter value={probability:.3f}></meter> {probability:.0%}")
    return f"<table><tr><th>{name}: token<th>best guess<th>its probability{''.join(rows)}</table>"


def main(cfg):
    masks, models = {}, []
    for ckpt in cfg.ckpts:
        state, model, tokenizer, ids, clm, mlm = explain.read(ckpt, cfg.text)
        if not masks:
            first = state["step"]
            masks = {name: mask_picture(name, *rows) for name, rows in explain.example(state).items()}
        labels = [explain.token_name(tokenizer, i) for i in ids.tolist()]
        guesses = guess_table("CLM", labels[1:], clm, tokenizer) + guess_table("MLM", labels, mlm, tokenizer)
        attention = "".join(attention_pictures(model, ids, labels))
        models.append(Template(MODEL).substitute(step=state["step"], guesses=guesses, attention=attention))
    images = [base64.b64encode(Path(path).read_bytes()).decode() for path in cfg.figures if Path(path).exists()]
    figures = "".join(f'<img alt="" src="data:image/png;base64,{image}">' for image in images)
    before = Template(BEFORE).substitute(step=first, masks="".join(masks.values()))
    page = "".join([before, *models, Template(AFTER).substitute(figures=figures)])
    Path(cfg.out).mkdir(parents=True, exist_ok=True)
    for name, text in {"index.html": page, "clm.svg": masks["CLM"], "mlm.svg": masks["MLM"]}.items():
        Path(cfg.out, name).write_text(text, encoding="utf-8")
    print(f"open {cfg.out}/index.html in a browser")
