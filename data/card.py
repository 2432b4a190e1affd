"""The model card of an exported model: README.md of its folder, in Markdown.

It names files and folders without their place on this machine. Its code is meant to be run beside the folder.
"""

import json
import re
from contextlib import suppress
from pathlib import Path
from string import Template

from data.files import MALFORMED
from data.objective import describe, phases_of
from data.tokenizer import read_json

# card.txt has the text of the card, and for each kind of model what it is and, after an empty line, how to use it.
_, *PARTS = re.split(r"^=== (.+)\n", Path(__file__).with_name("card.txt").read_text(encoding="utf-8"), flags=re.M)
PARTS = dict(zip(PARTS[::2], PARTS[1::2]))


def model_card(title, tag, state, path, max_len, parameters, qwen3_encoder):
    """Return the text of the card.

    title: the folder's name. tag: see hub.CLASSES. state, path: the checkpoint; its scores lie beside it.
    max_len: in tokens. qwen3_encoder: whether older versions of transformers would run the model as a decoder.
    """
    fine_tuned, cfg, lines = state.get("fine_tuned"), state["settings"], []
    what, _, code = PARTS[fine_tuned["family"] if fine_tuned else tag].partition("\n\n")
    facts = {"title": title, "tag": tag, **state["config"], "max_len": f"{max_len:,}", "parameters": f"{parameters:,}"}
    facts |= {"what": what, "note": Template(PARTS["check"]).substitute(title=title) if qwen3_encoder else ""}
    if cfg:
        begin = cfg["init_from"] or cfg["branch_from"]
        lines += [f"Pretraining: {state['step']:,} steps of {cfg['global_batch_tokens']:,} tokens."]
        lines += [f"Objectives: {describe(phases_of(state))}."]
        lines += [f"It began with the weights of `{short(begin)}`."] if begin else []
        sources = ", ".join(f"`{Path(source).name}`" for source in cfg["data"].split(","))  # of a mixture: `texts:0.7`
        lines += [f"Data: {sources}, fingerprint {state.get('data', 'unknown')[:12]}."]
        lines += [f"Tokenizer: `{state['tokenizer']['name']}`. `lr={cfg['lr']}`, `seed={cfg['seed']}`."]
    else:
        base = fine_tuned["done"]["checkpoint"]["name"] if fine_tuned else short(path)
        lines += [f"The weights of the pretrained model are those of `{base}`, whose own card says how it was trained."]
    if fine_tuned:
        its, task = fine_tuned["settings"], fine_tuned["task"]
        data = Path(its["task"] or its["train"] or its["corpus"]).name
        lines += [f"Fine-tuning: {fine_tuned['done']['steps']:,} steps on `{data}`, `lr={its['lr']}`."]
        facts["form"] = repr(task.get("form") or "\n".join("{}" for _ in task.get("columns", ())) or "{}")
        facts |= {name: fine_tuned[name] for name in ("threshold", "may_be_none")}
    facts["training"] = "".join(f"- {line}\n" for line in lines)
    facts["scores"] = "\n".join(scores_beside(Path(path), state["step"])) or "Not measured."
    return Template(PARTS["card"]).substitute(facts, code=Template(code).substitute(facts))


def short(path):
    """Return the last two parts of a path, such as run/ckpt-650.pt. A name on the hub, hf:NAME/MODEL, stays whole."""
    return "/".join(Path(path).parts[-2:])


def scores_beside(path, step):
    """Yield lines on the scores in the result.json beside a fine-tuned model, or in the log beside a checkpoint."""
    for split, scores in read_json(path.with_name("result.json")).get("metrics", {}).items():
        yield f"- {split}, in percent: " + ", ".join(f"{name} {score:.1f}" for name, score in scores.items())
    with suppress(*MALFORMED):  # no such file, or a last line that is being written
        for line in map(json.loads, path.with_name("metrics.jsonl").read_text().splitlines()):
            if line["step"] == step and "val_clm_loss" in line:
                losses = f"{line['val_clm_loss']:.3f} with CLM, {line['val_mlm_loss']:.3f} with MLM"
                yield f"- Validation loss, in nats per predicted token: {losses}."
