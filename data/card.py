"""The model card of an exported model: README.md of its folder, in Markdown.

It names files and folders without their place on this machine. Its code is meant to be run beside the folder.
"""

import json
from contextlib import suppress
from pathlib import Path
from string import Template

from data.files import MALFORMED
from data.objective import describe, phases_of
from data.tokenizer import read_json

CARD = Template("""\
---
library_name: transformers
pipeline_tag: $tag
tags: [nanoencoder]
---
# $title

$what $parameters parameters: $n_layer layers of width $d_model. Texts have at most $max_len tokens.

## How to use it

$note```python
$code
```

## Training

$training
## Scores

$scores

## Limits

- It knows no more than its training data and was tested on nothing else. Test it on your own before you use it.
- This card names no license. The terms of the training data may limit the use of the model.
""")

# Of each kind of model: what it is, and how to use it.
PIPELINE = 'from transformers import pipeline\n\nmodel = pipeline("$tag", "$title")\n'
EMBED = 'from sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer("$title")\n'
USAGE = {
    "fill-mask": (
        "A text encoder with bidirectional attention, to be fine-tuned.",
        PIPELINE + 'print(model(f"Return the {model.tokenizer.mask_token} of the list."))',
    ),
    "feature-extraction": (
        "A text encoder with bidirectional attention, to be fine-tuned. It has no head that fills in masks.",
        EMBED + 'print(model.encode(["Return the list."]))  # the mean of the last hidden states',
    ),
    "text-generation": (
        "A decoder, which continues texts.",
        PIPELINE + 'print(model("Return the list of", max_new_tokens=20))',
    ),
    "sc": (
        "It gives each text a label, or a number.",
        PIPELINE + "form = $form  # each text of the training had this form\n"
        'print(model(form.replace("{}", "A text."), truncation=True))',
    ),
    "tc": (
        "It labels the tokens of a sentence. The label of a word is that of most of its tokens.",
        PIPELINE + 'print(model("The method returns a list .", ignore_labels=[]))  # spaces between all words',
    ),
    "qa": (
        "It finds the answer to a question in a text. Its head says of each token whether it is in the answer.",
        """\
from transformers import AutoModelForTokenClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("$title")
model = AutoModelForTokenClassification.from_pretrained("$title")
# answer() is in docs/hub.md of nanoencoder. A question-answering pipeline computes something else.
print(answer(tokenizer, model, "What does it return?", "The method returns a list.", $threshold, $may_be_none))""",
    ),
    "ir": (
        "It embeds queries and documents: the cosine of two says how well they fit.",
        EMBED + 'queries = model.encode_query(["how to sort a list"])  # puts "Query: " before a text, as in training\n'
        'documents = model.encode_document(["Return a new sorted list.", "Open a file."])\n'
        "print(model.similarity(queries, documents))",
    ),
}
CHECK = """\
This is Qwen 3 with `is_causal: false` in config.json. The oldest transformers that we saw use it is 5.2.0; older ones \
ignore it and run a decoder. This takes a second and fails there:

```python
import torch
from transformers import AutoModel

first, other = AutoModel.from_pretrained("$title")(torch.tensor([[1, 2, 3], [1, 2, 4]])).last_hidden_state[:, 0]
assert not torch.equal(first, other), "the first output does not depend on the last token: update transformers"
```

"""


def model_card(title, tag, state, path, max_len, parameters, qwen3_encoder):
    """Return the text of the card.

    title: the folder's name. tag: see hub.CLASSES. state, path: the checkpoint; its scores lie beside it.
    max_len: in tokens. qwen3_encoder: whether older versions of transformers would run the model as a decoder.
    """
    fine_tuned, cfg, lines = state.get("fine_tuned"), state["settings"], []
    what, code = USAGE[fine_tuned["family"] if fine_tuned else tag]
    facts = {"title": title, "tag": tag, **state["config"], "max_len": f"{max_len:,}", "parameters": f"{parameters:,}"}
    facts |= {"what": what, "note": Template(CHECK).substitute(title=title) if qwen3_encoder else ""}
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
    if merged := state.get("merged"):
        parts = [f"{its['weight']:g} * `{short(its['path'])}`" for its in merged]
        lines += [f"The weights are merged: {' + '.join(parts)}."]
    if fine_tuned:
        its, task = fine_tuned["settings"], fine_tuned["task"]
        data = Path(its["task"] or its["train"] or its["corpus"]).name
        lines += [f"Fine-tuning: {fine_tuned['done']['steps']:,} steps on `{data}`, `lr={its['lr']}`."]
        facts["form"] = repr(task.get("form") or "\n".join("{}" for _ in task.get("columns", ())) or "{}")
        facts |= {name: fine_tuned[name] for name in ("threshold", "may_be_none")}
    facts["training"] = "".join(f"- {line}\n" for line in lines)
    facts["scores"] = "\n".join(scores_beside(Path(path), state["step"])) or "Not measured."
    return CARD.substitute(facts, code=Template(code).substitute(facts))


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
