"""The model card of an exported model: README.md of its folder, in Markdown.

It names files and folders without their place on this machine. Its code is meant to be run beside the folder.
"""

import json
from pathlib import Path

from data.objective import describe, phases_of, title, validation_keys
from data.tokenizer import read_json


def read_parts(name):
    """Return {title: text} of a file in data/ whose parts begin with a line "=== title"."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return dict(part.split("\n", 1) for part in text.split("=== ")[1:])


# The card, its sentences on the training, and for each kind of model what it is and, after an empty line, how to use
# it. What stands in braces comes from the checkpoint's dict or from `model_card`.
PARTS = read_parts("card.txt")


def model_card(state, path, note="", **facts):
    """Return the text of the card.

    state, path: the checkpoint; its scores lie beside it. note: the part of card.txt that stands before the code, if
    any. facts: `title`, the folder's name; `tag`, see hub.CLASSES; `max_len`, in tokens; `parameters`, how many.
    """
    facts = state | facts | {"base": short(path), "objectives": describe(phases_of(state))}
    cfg = state["settings"]
    training = ["pretraining"] if cfg else ["weights of another"]  # of the hub
    part = facts["tag"]
    if cfg:
        names = [Path(source).name for source in cfg["data"].split(",")]  # of a mixture: texts:0.7
        facts["sources"] = ", ".join(f"`{name}`" for name in names)
        facts["begin"] = short(cfg["init_from"] or cfg["branch_from"])
        training += ["began with"] if facts["begin"] else []
    if "fine_tuned" in state:
        fine_tuned = state["fine_tuned"]
        training.append("fine-tuning")
        part = fine_tuned["family"]
        cfg = fine_tuned["settings"]
        task = fine_tuned["task"]
        facts["base"] = fine_tuned["done"]["checkpoint"]["name"]
        facts["name"] = Path(cfg["task"] or cfg["train"] or cfg["corpus"]).name
        facts["form"] = task["form"] or "\n".join(["{}"] * len(task["columns"] or "1"))
    facts["what"], _, code = PARTS[part].partition("\n\n")
    facts["training"] = "".join(PARTS[name].format(**facts) for name in training)
    facts["code"] = code.format(**facts)
    facts["note"] = PARTS.get(note, "").format(**facts)
    facts["scores"] = "".join(scores_beside(Path(path), state["step"])) or "Not measured.\n"
    return PARTS["card"].format(**facts)


def short(path):
    """Return the last two parts of a path, such as run/ckpt-650.pt. A name on the hub, hf:NAME/MODEL, stays whole."""
    return "/".join(Path(path).parts[-2:])


def scores_beside(path, step):
    """Yield lines on the scores beside a checkpoint: in a fine-tuning's result.json, or at a step in a run's log."""
    for split, scores in read_json(path.with_name("result.json")).get("metrics", {}).items():
        listed = ", ".join(f"{name} {score:.1f}" for name, score in scores.items())
        yield f"- {split}, in percent: {listed}\n"
    log = path.with_name("metrics.jsonl")
    for line in log.read_text().splitlines() if log.is_file() else ():
        if line.startswith(f'{{"step": {step},') and "val_" in line:
            values = json.loads(line)
            losses = []
            for name, key in validation_keys(values).items():
                losses.append(f"{values[key]:.3f} with {title(name)}")
            yield f"- Validation loss, in nats per predicted token: {', '.join(losses)}.\n"
