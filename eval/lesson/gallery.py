"""Pictures for the lesson's HTML page: a batch under both objectives, and a model's attention."""

from html import escape
from unittest import mock

import torch

from model import attention, attention_mask

CAUSAL = {"CLM": True, "MLM": False}
CELL = 22  # width of a square in pixels
SEEN = "#9db8d9"  # these three are colors of the mask pictures
HIDDEN = "#e8b78a"
UNSEEN = "#ffffff"

PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" \
font-family="monospace" font-size="11"><rect width="{width}" height="{height}" fill="white"/>\
<text x="4" y="16" font-size="14">{title}</text>
{parts}
</svg>"""
LABELS = """\
<text transform="translate({x} 104) rotate(-60)">{label}</text>\
<text x="94" y="{y}" text-anchor="end">{label}</text><text x="{right}" y="{y}">{target}</text>"""
SQUARE = '<rect x="{}" y="{}" width="22" height="22" fill="{}" stroke="#cccccc"/>'


def grid(title, labels, colors, targets=()):
    """Return an SVG grid with a row and a column for each label, filled with colors (T, T); targets at the right."""
    left, top, size = 100, 110, CELL * len(labels)
    parts = []
    for i, label in enumerate(labels):
        target = f"→ {escape(targets[i])}" if targets and targets[i] else ""
        x = left + CELL * i
        y = top + CELL * i
        parts.append(LABELS.format(x=x + 14, y=y + 15, right=left + size + 6, label=escape(label), target=target))
        for j, color in enumerate(colors[i]):
            parts.append(SQUARE.format(left + CELL * j, y, color))
    return PICTURE.format(width=left + size + 110, height=top + size + 10, title=escape(title), parts="\n".join(parts))


def mask_picture(name, inputs, targets):
    """Return a picture of which inputs each position sees, and of the target that it predicts, if any."""
    of_token = [HIDDEN if token == "[MASK]" else SEEN for token in inputs]
    mask = attention_mask(len(inputs), CAUSAL[name]).tolist()
    colors = [[color if sees else UNSEEN for color, sees in zip(of_token, row)] for row in mask]
    return grid(f"{name}: what each position sees and predicts", inputs, colors, targets)


@torch.no_grad()
def attention_weights(model, ids, causal):
    """Return the attention weights of the last layer, fp32 (n_head, T, T): query i, key j. Rows sum to 1."""
    with mock.patch("model.attention", wraps=attention) as recorded:
        model(ids[None], causal)
    q, k, *_ = recorded.call_args.args  # of the last layer, (1, T, H or H_kv, D)
    one_hot = torch.eye(len(ids))[:, None].expand(-1, k.shape[2], -1)  # with these values, the output is the weights
    return attention(q, k, one_hot[None], causal, backend="reference")[0].transpose(0, 1)


def attention_pictures(model, ids, labels):
    """Return pictures of the attention of each head in the last layer, under both objectives."""
    pictures = ""
    for name, causal in CAUSAL.items():
        grays = 255 - 255 * attention_weights(model, ids, causal).sqrt()
        for number, head in enumerate(grays.int().tolist(), 1):
            colors = [[f"rgb({gray},{gray},{gray})" for gray in row] for row in head]
            pictures += grid(f"{name}: head {number}", labels, colors)
    return pictures
