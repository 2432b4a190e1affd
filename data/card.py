"""The model card of an exported model: README.md of its folder, in Markdown.

It names files and folders without their place on this machine. Its code is meant to be run beside the folder.
"""

import json
import re
from pathlib import Path

from data.files import MALFORMED
from data.objective import describe, phases_of
from data.tokenizer import read_json

# The parts of card.txt: the card, its sentences on the training, and for each kind of model what it is and, after an
# empty line, how to use it. What stands in braces comes from the checkpoint's dict or from `model_card`.
_, *PARTS = re.split(r"^=== (.+)\n", Path(__file__).with_name("card.txt").read_text(encoding="utf-8"), flags=re.M)
PARTS = dict(zip(PARTS[::2], PARTS[1::2]))


def model_card(title, tag, state, path, max_len, parameters, note=""):
    """Return the text of the card.

    title: the folder's name. tag: see hub.CLASSES. state, path: the checkpoint; its scores lie beside it.
    max_len: in tokens. note: the part of card.txt that stands before the code, if any.
    """
    fine_tuned = state.get("fine_tuned")
    facts = {"data": "unknown", **state, "title": title, "tag": tag, "max_len": max_len, "parameters": parameters}
    training = pretraining(state, path, facts)
    if fine_tuned:
        training.append("fine-tuning")
        cfg = fine_tuned["settings"]
        facts["task"] = Path(cfg["task"] or cfg["train"] or cfg["corpus"]).name
        columns = fine_tuned["task"].get("columns") or ["text"]
        facts["form"] = fine_tuned["task"].get("form") or "\n".join("{}" for _ in columns)
    what, _, code = PARTS[fine_tuned["family"] if fine_tuned else tag].partition("\n\n")
    facts["what"] = what
    facts["code"] = code.format(**facts)
    facts["note"] = PARTS[note].format(**facts) if note else ""
    facts["training"] = "".join(PARTS[name].format(**facts) for name in training)
    facts["scores"] = "\n".join(scores_beside(Path(path), state["step"])) or "Not measured."
    return PARTS["card"].format(**facts)


def pretraining(state, path, facts):
    """Return the names of the parts of card.txt on the pretraining, and add what they need to `facts`."""
    cfg = state["settings"]
    if not cfg:  # a model of the hub
        fine_tuned = state.get("fine_tuned")
        facts["base"] = fine_tuned["done"]["checkpoint"]["name"] if fine_tuned else short(path)
        return ["weights of another"]
    facts["objectives"] = describe(phases_of(state))
    sources = cfg["data"].split(",")  # of a mixture: texts:0.7
    facts["sources"] = ", ".join(f"`{Path(source).name}`" for source in sources)
    begin = cfg["init_from"] or cfg["branch_from"]
    if not begin:
        return ["pretraining"]
    facts["begin"] = short(begin)
    return ["pretraining", "began with"]


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
            print(f"{file}: left out of the model card from here on, where it is no record of a run: {error!r:.200}")
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
        if record["step"] == step and "val_clm_loss" in record:
            losses = f"{record['val_clm_loss']:.3f} with CLM, {record['val_mlm_loss']:.3f} with MLM"
            yield f"- Validation loss, in nats per predicted token: {losses}."
