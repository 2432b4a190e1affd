"""The model card of an exported model: README.md of its folder, in Markdown.

It names files and folders without their place on this machine. Its code is meant to be run beside the folder.
"""

import csv
import json
from contextlib import suppress
from pathlib import Path
from string import Template

from data.files import MALFORMED
from data.objective import describe, phases_of
from data.tokenizer import read_json

# Of each pipeline tag of a pretrained model, and of each family of tasks: what it is, and how to use it.
WHAT = {
    "fill-mask": "A text encoder with bidirectional attention, to be fine-tuned.",
    "text-generation": "A decoder, which continues texts.",
    "sc": "It gives each text a label.",
    "regression": "It gives each text a number.",
    "tc": "It gives each word of a sentence a label.",
    "qa": "It finds the answer to a question in a text.",
    "ir": "It embeds queries and documents: the cosine of two says how well they fit.",
}
USAGE = {
    "fill-mask": """\
```python
from transformers import pipeline

fill = pipeline("fill-mask", "$folder")
print(fill(f"Return the {fill.tokenizer.mask_token} of the list."))
```

`SentenceTransformer("$folder")` of sentence-transformers gives the mean of a text's last hidden states.""",
    "text-generation": """\
```python
from transformers import pipeline

generate = pipeline("text-generation", "$folder")
print(generate("Return the list of", max_new_tokens=20))
```""",
    "sc": """\
```python
from transformers import pipeline

model = pipeline("text-classification", "$folder")
form = $form  # each text of the training had this form
print(model(form.replace("{}", "A text."), truncation=True))
```""",
    "tc": """\
A word gets the label of most of its tokens. The tokenizer puts a space before each word, the first included, as in
training.

```python
from collections import Counter

import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("$folder")
model = AutoModelForTokenClassification.from_pretrained("$folder")

words = "The method returns a list .".split()
batch = tokenizer(words, is_split_into_words=True, truncation=True, return_tensors="pt")
with torch.no_grad():
    labels = model(**batch).logits[0].argmax(-1).tolist()
votes = [Counter() for word in words]
for word, label in zip(batch.word_ids(), labels):
    if word is not None:  # the end-of-sequence token
        votes[word][label] += 1
tags = [model.config.id2label[vote.most_common(1)[0][0]] if vote else "O" for vote in votes]
print(list(zip(words, tags)))
```""",
    "qa": """\
The head says of each token whether it is in the answer. The answer is the span with the largest sum of log-odds, each
less a threshold that was chosen on validation data. A `question-answering` pipeline computes something else.

```python
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("$folder")
model = AutoModelForTokenClassification.from_pretrained("$folder")
threshold, may_be_none = $threshold, $may_be_none


def answer(question, context):
    prompt = tokenizer(f"Question: {question}\\nContext: ", add_special_tokens=False).input_ids
    prompt = prompt[: tokenizer.model_max_length // 2]
    text = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    room, odds = tokenizer.model_max_length - len(prompt) - 1, torch.empty(0)
    for begin in range(0, max(1, len(text.input_ids) - room + room // 2), room // 2):  # windows that overlap by half
        ids = prompt + text.input_ids[begin : begin + room] + [tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, len(prompt) : -1]
        middle = (begin + len(odds)) // 2  # of the overlap
        odds = torch.cat([odds[:middle], (logits[:, 1] - logits[:, 0])[middle - begin :]])
    total = torch.cat([torch.zeros(1), (odds - threshold).cumsum(0)])
    gain = total[1:] - total[:-1].cummin(0).values  # of the best span that ends at each token
    last = gain.argmax()
    first = total[: last + 1].argmin()
    if may_be_none and gain[last] <= 0:
        return ""
    return context[text.offset_mapping[first][0] : text.offset_mapping[last][1]].strip()


print(answer("What does it return?", "The method returns a list."))
```""",
    "ir": """\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("$folder")
queries = model.encode_query(["how to sort a list"])
documents = model.encode_document(["Return a new sorted list.", "Open a file."])
print(model.similarity(queries, documents))
```

`encode_query` and `encode_document` put `Query: ` and `Document: ` before a text, as in training. `encode` does not.""",
}

PRETRAINING = "optimizer lr warmup_steps decay_steps weight_decay window_split seed dtype".split()
FINE_TUNING = "lr batch_size warmup_fraction weight_decay seed dtype".split()


def model_card(title, tag, state, path, max_len, parameters):
    """Return the text of the card.

    title: the folder's name. tag: see hub.CLASSES. state, path: the checkpoint; its scores lie beside it.
    max_len: in tokens.
    """
    fine_tuned, config, cfg = state.get("fine_tuned"), state["config"], state["settings"]
    kind, values, labels, limits = tag, {}, "", ""
    if fine_tuned:
        kind, columns = fine_tuned["family"], fine_tuned["task"].get("columns", ())
        form = fine_tuned["task"].get("form") or "\n".join("{}" for _ in columns) or "{}"
        values = {"form": repr(form), "threshold": fine_tuned["threshold"], "may_be_none": fine_tuned["may_be_none"]}
        labels = ", ".join(f"`{label}`" for label in fine_tuned["labels"])
    what = WHAT["regression" if kind == "sc" and not labels else kind]
    if kind != "text-generation":
        limits += "- Every text of its training ended in the end-of-sequence token. The tokenizer adds it.\n"
    if kind == "fill-mask" and cfg and all(its["phase"] == "clm" for its in phases_of(state)):
        limits += "- It has never seen a mask in training, so what it fills in means nothing.\n"
    return f"""\
---
library_name: {"sentence-transformers" if kind == "ir" else "transformers"}
pipeline_tag: {tag}
tags: [nanoencoder]
---
# {title}

{what} {parameters:,} parameters: {config["n_layer"]} layers of width {config["d_model"]}. \
Texts have at most {max_len:,} tokens.{labels and f" Its labels: {labels}."}

## How to use it

{Template(USAGE[kind]).substitute(folder=title, **values)}

## Training

{pretraining(state, path)}
{fine_tuning(fine_tuned) if fine_tuned else ""}
## Scores

{fine_tuned_scores(path) if fine_tuned else validation_losses(path, state["step"])}

## Limits

{limits}- It knows no more than its training data and was tested on nothing else. Test it on your own before you use it.
- This card names no license. The terms of the training data may limit the use of the model.
"""


def pretraining(state, path):
    cfg, step, fine_tuned = state["settings"], state["step"], state.get("fine_tuned")
    if not cfg:
        base = fine_tuned["done"]["checkpoint"]["name"] if fine_tuned else short(path)
        return f"The weights of the pretrained model are those of `{base}`, whose own card says how it was trained.\n"
    begin = cfg["init_from"] or cfg["branch_from"]
    return f"""\
Pretraining with nanoencoder: {step:,} steps of {cfg["global_batch_tokens"]:,} tokens, with causal (CLM) or masked \
language modeling (MLM).

- objective: {describe(phases_of(state))}
- began with {f"the weights of `{short(begin)}`" if begin else "random weights"}
- data: `{Path(cfg["data"]).name}`, fingerprint {state.get("data", "unknown")[:12]}
- tokenizer: `{state["tokenizer"]["name"]}`
- settings: {listed(cfg, PRETRAINING)}
"""


def fine_tuning(fine_tuned):
    cfg = fine_tuned["settings"]
    return f"""\
Fine-tuning: {fine_tuned["done"]["steps"]:,} steps.

- data: `{Path(cfg["task"] or cfg["train"] or cfg["corpus"]).name}`
- settings: {listed(cfg, FINE_TUNING)}
"""


def listed(settings, names):
    return ", ".join(f"`{name}={settings[name]}`" for name in names if name in settings)


def short(path):
    """Return the last two parts of a path, such as run/ckpt-650.pt. A name on the hub, hf:NAME/MODEL, stays whole."""
    return "/".join(Path(path).parts[-2:])


def validation_losses(path, step):
    """Describe the validation losses of a checkpoint, from its run's log."""
    try:
        log = map(json.loads, Path(path).with_name("metrics.jsonl").read_text().splitlines())
        line = next(line for line in log if line["step"] == step and "val_clm_loss" in line)
        losses = f"{line['val_clm_loss']:.3f} with causal and {line['val_mlm_loss']:.3f} with masked language modeling"
    except (StopIteration, *MALFORMED):
        return "Not measured."
    return f"Validation loss, in nats per predicted token: {losses}."


def fine_tuned_scores(path):
    """Describe the scores in the result.json beside a fine-tuned model, and the mean over seeds if a report has it."""
    result = read_json(Path(path).with_name("result.json"))
    if not result:
        return "Not known: the model was exported without its result.json."
    text = "In percent:\n\n"
    for split, scores in result["metrics"].items():
        numbers = ", ".join(f"{name} {score:.1f}" for name, score in scores.items())
        text += f"- {split}, {result['examples'][split]:,} examples: {numbers}\n"
    main = ", ".join(f"`{name}`" for name in result["main"]["field"] or result["main"]["paper"])
    text += f"\nThe main metric is {main}."
    if mean := mean_over_seeds(Path(path).resolve().parent):
        text += f" On test, the mean over seeds ± half of its 95 % interval is {mean}."
    return text


def mean_over_seeds(job):
    """Return the main score of a fine-tuning's folder in a report above it; an empty string without a report."""
    for parent in job.parents:
        for file in parent / "results.csv", parent / "report" / "results.csv":
            with suppress(OSError, ValueError, csv.Error), open(file, newline="", encoding="utf-8") as lines:
                rows = [row for row in csv.DictReader(lines) if str(job).endswith(f"/{row.get('folder')}")]
                scores = [row.get("field_score") for row in rows]  # one for each set of retrieval
                if scores and all(scores):
                    return ", ".join(scores)
    return ""
