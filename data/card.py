"""The model card of an exported model: README.md of its folder, in Markdown.

It names files and folders without their place on this machine. Its code is meant to be run beside the folder.
"""

import json
from pathlib import Path

from data.files import MALFORMED
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
    facts = {"data": "unknown", **state, **facts}
    facts["base"] = short(path)
    facts["objectives"] = describe(phases_of(state))
    cfg = state["settings"]
    training = ["weights of another"]
    part = facts["tag"]
    if cfg:  # not a model of the hub
        training = ["pretraining"]
        names = [Path(source).name for source in cfg["data"].split(",")]  # of a mixture: texts:0.7
        facts["sources"] = ", ".join(f"`{name}`" for name in names)
        if begin := cfg["init_from"] or cfg["branch_from"]:
            training.append("began with")
            facts["begin"] = short(begin)
    if "fine_tuned" in state:
        fine_tuned = state["fine_tuned"]
        training.append("fine-tuning")
        part = fine_tuned["family"]
        cfg = fine_tuned["settings"]
        task = fine_tuned["task"]
        facts["base"] = fine_tuned["done"]["checkpoint"]["name"]
        facts["name"] = Path(cfg["task"] or cfg["train"] or cfg["corpus"]).name
        facts["form"] = task.get("form") or "\n".join(["{}"] * len(task.get("columns") or "1"))
    facts["what"], _, code = PARTS[part].partition("\n\n")
    facts["training"] = "".join(PARTS[name].format(**facts) for name in training)
    facts["code"] = code.format(**facts)
    facts["note"] = PARTS.get(note, "").format(**facts)
    facts["scores"] = "\n".join(scores_beside(Path(path), state["step"])) or "Not measured."
    return PARTS["card"].format(**facts)


def short(path):
    """Return the last two parts of a path, such as run/ckpt-650.pt. A name on the hub, hf:NAME/MODEL, stays whole."""
    return "/".join(Path(path).parts[-2:])


def scores_beside(path, step):
    """Return lines on the scores beside a checkpoint. A record that cannot be read is left out, with a message."""
    lines = []
    for name, scores_in in ("result.json", fine_tuned_scores), ("metrics.jsonl", validation_losses):
        try:
            lines += scores_in(path.with_name(name), step)
        except MALFORMED as error:
            file = path.with_name(name)
            print(f"{file}: left out of the model card, because it is not the record of a run: {error!r:.200}")
    return lines


def fine_tuned_scores(file, step):
    """Yield lines on the scores in the result.json of a fine-tuned model."""
    for split, scores in read_json(file).get("metrics", {}).items():
        listed = ", ".join(f"{name} {score:.1f}" for name, score in scores.items())
        yield f"- {split}, in percent: {listed}"


def validation_losses(file, step):
    """Yield a line on the validation losses at a step in the metrics.jsonl of a run."""
    for record in map(json.loads, file.read_text().splitlines() if file.exists() else ()):
        losses = ", ".join(f"{record[key]:.3f} with {title(name)}" for name, key in validation_keys(record).items())
        if record["step"] == step and losses:
            yield f"- Validation loss, in nats per predicted token: {losses}."
