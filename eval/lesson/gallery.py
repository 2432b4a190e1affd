"""Write one HTML page for a class: a batch under both objectives, the guesses and the attention of a model, and figures.

    python -m eval.lesson gallery --run=out/demo

The page needs no network. Its folder also gets the pictures of the masks, as SVG files.
"""

import base64
from html import escape
from pathlib import Path

import configurator
from eval.lesson import explain
from eval.lesson.batch import example
from eval.lesson.per_token import check_runs
from model import attention_mask

run = "out/demo"  # the folder of a run; its newest checkpoint makes the guesses
text = "If the file does not [MASK], an error is raised."  # the sentence for the guesses and the attention
step = 200  # whose batch to show
figures = ("out/budgets.png", "out/demo/loss.png", "out/per_token.png", "out/switch.png")  # shown if they exist
out = "out/gallery"  # the folder to write

CELL = 22  # pixels of a square
SEEN, HIDDEN, UNSEEN = "#9db8d9", "#e8b78a", "#ffffff"  # colors of the mask pictures
PAGE = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>One flag, two objectives</title>
<style>body {{ font: 16px/1.5 sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em }}
.row {{ display: flex; flex-wrap: wrap; gap: 1em }} img {{ max-width: 100% }} table {{ border-spacing: 1em 0 }}</style>
<h1>One flag, two objectives</h1>
<h2>One batch, two questions</h2>
<p>The same tokens, from step {batch_step} of the run's own batches. A row is a position. Its colored squares are the
tokens that it sees: blue, or orange where the token is hidden. At the right is the target, if the position has one.</p>
<div class="row">{masks}</div>
<h2>What the model guesses at step {step}</h2>
<p>The same weights answer for each token under both objectives. Bold: the guess is correct.</p>
<div class="row">{guesses}</div>
<h2>Where the heads of the last layer look</h2>
<p>A row is the position that looks, a column the token that it looks at. The darker, the more attention (on a
square-root scale).</p>
<div class="row">{attention}</div>
<h2>Figures</h2>
<p>What the other tools of the lesson have drawn so far.</p>
<div class="row">{figures}</div></html>
"""


def grid(title, labels, colors, targets):
    """Return an SVG picture: a row and a column for each label, a square for each of colors (T, T), targets at the right."""
    x0, y0, size = 100, 110, CELL * len(labels)  # the squares begin at (x0, y0)
    frame = f'width="{x0 + size + 110}" height="{y0 + size + 10}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} font-family="monospace" font-size="11">',
        f'<rect {frame} fill="white"/><text x="4" y="16" font-size="14">{escape(title)}</text>',
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


def main(argv):
    cfg = configurator.load(__file__, argv, lambda cfg: check_runs([cfg.run]), "python -m eval.lesson gallery")
    masks = {name: mask_picture(name, *rows) for name, rows in example(cfg.run, cfg.step).items()}
    step, model, tokenizer, ids, clm, mlm = explain.read(cfg.run, cfg.text)
    labels = [explain.token_name(tokenizer, i) for i in ids.tolist()]
    guesses = [guess_table("CLM", labels[1:], clm, tokenizer), guess_table("MLM", labels, mlm, tokenizer)]
    images = [base64.b64encode(Path(path).read_bytes()).decode() for path in cfg.figures if Path(path).exists()]
    page = PAGE.format(
        batch_step=cfg.step,
        masks="".join(masks.values()),
        step=step,
        guesses="".join(guesses),
        attention="".join(attention_pictures(model, ids, labels)),
        figures="".join(f'<img alt="" src="data:image/png;base64,{image}">' for image in images),
    )
    Path(cfg.out).mkdir(parents=True, exist_ok=True)
    for name, text in {"index.html": page, "clm.svg": masks["CLM"], "mlm.svg": masks["MLM"]}.items():
        Path(cfg.out, name).write_text(text, encoding="utf-8")
    print(f"open {cfg.out}/index.html in a browser")
