"""The model card of an exported model: README.md of its folder, in Markdown.

It names files and folders without their place on this machine. Its code is meant to be run beside the folder.
"""

import json
from pathlib import Path

from data.files import MALFORMED
from data.objective import describe, phases_of, title, validation_keys
from data.tokenizer import read_json

# The parts of card.txt: the card, its sentences on the training, and for each kind of model what it is and, after an
# empty line, how to use it. What stands in braces comes from the checkpoint's dict or from `model_card`.
CARD = Path(__file__).with_name("card.txt").read_text(encoding="utf-8")
PARTS = dict(part.split("\n", 1) for part in CARD.split("=== ")[1:])


def model_card(title, tag, state, path, max_len, parameters, note=""):
    """Return the text of the card.

    title: the folder's name. tag: see hub.CLASSES. state, path: the checkpoint; its scores lie beside it.
    max_len: in tokens. note: the part of card.txt that stands before the code, if any.
    """
    fine_tuned = state.get("fine_tuned")
    part = PARTS[fine_tuned["family"] if fine_tuned else tag]
    what, _, code = part.partition("\n\n")
    facts = {**state, "title": title, "tag": tag, "what": what, "max_len": max_len, "parameters": parameters}
    facts["training"] = pretraining(state, path)
    if fine_tuned:
        facts["training"] += fine_tuning(fine_tuned)
        facts["form"] = form_of(fine_tuned["task"])
    facts["code"] = code.format(**facts)
    facts["note"] = PARTS[note].format(**facts) if note else ""
    facts["scores"] = "\n".join(scores_beside(Path(path), state["step"])) or "Not measured."
    return PARTS["card"].format(**facts)


def pretraining(state, path):
    """Return the lines on the pretraining of a checkpoint, or of the model that it fine-tunes."""
    cfg = state["settings"]
    if not cfg:  # a model of the hub
        fine_tuned = state.get("fine_tuned")
        base = fine_tuned["done"]["checkpoint"]["name"] if fine_tuned else short(path)
        return PARTS["weights of another"].format(base=base)
    names = [Path(source).name for source in cfg["data"].split(",")]  # of a mixture: texts:0.7
    facts = {"data": "unknown", **state}
    facts["sources"] = ", ".join(f"`{name}`" for name in names)
    facts["objectives"] = describe(phases_of(state))
    lines = PARTS["pretraining"].format(**facts)
    begin = cfg["init_from"] or cfg["branch_from"]
    if begin:
        lines += PARTS["began with"].format(begin=short(begin))
    return lines


def fine_tuning(fine_tuned):
    """Return the line on the fine-tuning."""
    cfg = fine_tuned["settings"]
    path = cfg["task"] or cfg["train"] or cfg["corpus"]
    return PARTS["fine-tuning"].format(name=Path(path).name, **fine_tuned)


def form_of(task):
    """Return the form of a task's texts, such as "Title: {}"; by default a line for each column."""
    columns = task.get("columns") or ["text"]
    return task.get("form") or "\n".join("{}" for _ in columns)


def short(path):
    """Return the last two parts of a path, such as run/ckpt-650.pt. A name on the hub, hf:NAME/MODEL, stays whole."""
    return "/".join(Path(path).parts[-2:])


# ----------------------------------------------------------------------------
# Scores


def scores_beside(path, step):
    """Return lines on the scores beside a checkpoint. A record that cannot be read is left out, with a message."""
    result, log = path.with_name("result.json"), path.with_name("metrics.jsonl")
    lines = []
    for file, found in (result, fine_tuned_scores(result)), (log, validation_losses(log, step)):
        try:
            lines += found
        except MALFORMED as error:
            print(f"{file}: left out of the model card, because it is not the record of a run: {error!r:.200}")
    return lines


def fine_tuned_scores(file):
    """Yield lines on the scores in the result.json of a fine-tuned model."""
    for split, scores in read_json(file).get("metrics", {}).items():
        listed = ", ".join(f"{name} {score:.1f}" for name, score in scores.items())
        yield f"- {split}, in percent: {listed}"


def validation_losses(file, step):
    """Yield a line on the validation losses at a step in the metrics.jsonl of a run."""
    for line in file.read_text().splitlines() if file.exists() else ():
        record = json.loads(line)
        losses = ", ".join(f"{record[key]:.3f} with {title(name)}" for name, key in validation_keys(record).items())
        if record["step"] == step and losses:
            yield f"- Validation loss, in nats per predicted token: {losses}."
