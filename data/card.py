"""The model card of an exported model: README.md of its folder, in Markdown.

It names files and folders without their place on this machine. Its code is meant to be run beside the folder.
"""

import csv
import json
from contextlib import suppress
from pathlib import Path
from string import Template

from data.tokenizer import read_json

CARD = Template("""\
---
library_name: $library
pipeline_tag: $tag
tags: [$tags]
---
# $title

$what

## How to use it

$usage

## Training

$training

## Scores

$scores

## Limits

$limits
""")

# Of each kind of model, and of each family of tasks: the library that opens it, what it is, and how to use it.
KINDS = {
    "eurobert": ("transformers", "A text encoder with bidirectional attention, to be fine-tuned."),
    "llama": ("transformers", "A decoder, which continues texts."),
    "sc": ("transformers", "It gives each text a label, or a number if it has no labels."),
    "tc": ("transformers", "It gives each word of a sentence a label."),
    "qa": ("transformers", "It finds the answer to a question in a text."),
    "ir": ("sentence-transformers", "It embeds queries and documents: the cosine of two says how well they fit."),
}
USAGE = {
    "eurobert": """\
```python
from transformers import pipeline

fill = pipeline("fill-mask", "$folder")
print(fill(f"Return the {fill.tokenizer.mask_token} of the list."))
```

`SentenceTransformer("$folder")` of sentence-transformers gives the mean of a text's last hidden states.""",
    "llama": """\
```python
from transformers import pipeline

generate = pipeline("text-generation", "$folder")
print(generate("Return the list of", max_new_tokens=20))
```""",
    "sc": """\
$form```python
from transformers import pipeline

classify = pipeline("text-classification", "$folder")
print(classify($text, truncation=True))
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


def answer(question, context):
    prompt = tokenizer(f"Question: {question}\\nContext:", add_special_tokens=False).input_ids
    prompt, context = prompt[: tokenizer.model_max_length // 2], " " + context
    text = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    room, odds = tokenizer.model_max_length - len(prompt) - 1, torch.empty(0)
    for begin in range(0, max(1, len(text.input_ids) - room + room // 2), room // 2):  # windows that overlap by half
        ids = prompt + text.input_ids[begin : begin + room] + [tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, len(prompt) : -1]
        middle = (begin + len(odds)) // 2  # of the overlap
        odds = torch.cat([odds[:middle], (logits[:, 1] - logits[:, 0])[middle - begin :]])
    total = torch.cat([torch.zeros(1), (odds - $threshold).cumsum(0)])
    gain = total[1:] - total[:-1].cummin(0).values  # of the best span that ends at each token
    last = gain.argmax()
    first = total[: last + 1].argmin()$no_answer
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

PRETRAINING = "lr warmup_steps decay_steps weight_decay window_split mask_ratio seed dtype".split()
FINE_TUNING = "lr batch_size warmup_fraction weight_decay seed dtype".split()


def model_card(title, kind, tag, state, path, max_len, parameters):
    """Return the text of the card.

    title: the folder's name. kind, tag: see hub.CLASSES. state, path: the checkpoint. Scores are those of files beside
    it: result.json of a fine-tuned model, and the report that it is in; else metrics.jsonl. max_len: in tokens.
    """
    fine_tuned, c, more = state.get("fine_tuned"), state["config"], {}
    subject = fine_tuned["family"] if fine_tuned else kind
    library, what = KINDS[subject]
    what += f" {parameters:,} parameters: {c['n_layer']} layers of width {c['d_model']}."
    what += f" Texts have at most {max_len:,} tokens."
    if fine_tuned and fine_tuned["labels"]:
        what += f" Its labels: {', '.join(f'`{label}`' for label in fine_tuned['labels'])}."
    if subject == "sc":
        more = form_of(**fine_tuned["task"])
    if subject == "qa":
        no_answer = '\n    if gain[last] <= 0:\n        return ""' if fine_tuned["may_be_none"] else ""
        more = {"threshold": fine_tuned["threshold"], "no_answer": no_answer}
    return CARD.substitute(
        library=library,
        tag=tag,
        tags="nanoencoder, question-answering" if subject == "qa" else "nanoencoder",
        title=title,
        what=what,
        usage=Template(USAGE[subject]).substitute(folder=title, **more),
        training="\n".join(training(state, path)),
        scores=fine_tuned_scores(path) if fine_tuned else losses(path, state["step"]),
        limits="\n".join(f"- {limit}" for limit in limits(state, subject)),
    )


def form_of(form="", columns=(), **_):
    """Return what the usage of a classifier says about the form of its texts, and a text of that form as code."""
    form = form or "\n".join("{}" for _ in columns) or "{}"
    pieces, text = form.split("{}"), "The text to classify."
    if len(pieces) > 2:
        text = pieces[0] + "".join(f"Text {i}.{piece}" for i, piece in enumerate(pieces[1:], 1))
    shown = f"Each text of its training had this form:\n\n```\n{form}\n```\n\n" if form != "{}" else ""
    return {"form": shown, "text": json.dumps(text, ensure_ascii=False)}


def name_of(path):
    """Return what to call a file or folder: its name; of a checkpoint also its folder's. Names on the hub stay whole."""
    if str(path).startswith("hf:"):
        return str(path)
    return "/".join(Path(path).parts[-2:]) if Path(path).suffix == ".pt" else Path(path).name


def training(state, path):
    """Yield what is known about the training, in lines of Markdown."""
    cfg, fine_tuned, step = state["settings"], state.get("fine_tuned"), state["step"]
    if cfg:
        clm = min(step, cfg["switch_step"])
        yield (
            f"Pretraining with nanoencoder: {step:,} steps of {cfg['global_batch_tokens']:,} tokens, {clm:,} of causal "
            f"language modeling, then {step - clm:,} of masked language modeling.\n"
        )
        if begin := cfg["init_from"] or cfg["branch_from"]:
            yield f"- began with the weights of `{name_of(begin)}`"
        yield f"- data: `{name_of(cfg['data'])}`, fingerprint {state.get('data', 'unknown')[:12]}"
        yield f"- tokenizer: `{state['tokenizer']['name']}`"
        yield f"- settings: {listed(cfg, PRETRAINING)}"
    else:
        base = fine_tuned["done"]["checkpoint"]["name"] if fine_tuned else name_of(path)
        yield f"The weights of the pretrained model are those of `{base}`, whose own card says how it was trained."
    if fine_tuned:
        cfg = fine_tuned["settings"]
        yield f"\nFine-tuning: {fine_tuned['done']['steps']:,} steps.\n"
        yield f"- data: `{name_of(cfg['task'] or cfg['train'] or cfg['corpus'])}`"
        yield f"- settings: {listed(cfg, FINE_TUNING)}"


def listed(settings, names):
    return ", ".join(f"`{name}={settings[name]}`" for name in names if name in settings)


def fine_tuned_scores(path):
    """Return a table of a fine-tuned model's scores, with the mean over seeds if a report has it."""
    result = read_json(Path(path).with_name("result.json"))
    if not result:
        return "Not known: the model was exported without its result.json."
    names, examples = [*result["metrics"]["test"]], result["examples"]
    rows = [(f"{split}, {examples[split]:,} examples", scores) for split, scores in result["metrics"].items()]
    rows += [(f"baseline on test: {name}", scores) for name, scores in result["baselines"].items()]
    lines = [["", *names], ["---"] * (len(names) + 1)]
    lines += [[name, *(f"{scores[m]:.1f}" if m in scores else "" for m in names)] for name, scores in rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    main = ", ".join(f"`{name}`" for name in result["main"]["field"] or result["main"]["paper"])
    text = f"The main metric is {main}."
    if mean := report_row(Path(path).resolve().parent).get("main_score"):
        text += f" On test, the mean over seeds ± half of its 95 % interval is {mean}."
    return f"In percent:\n\n{table}\n\n{text}"


def report_row(job):
    """Return the row about the folder of a fine-tuning in the results.csv of a report above it; {} without a report."""
    for root in [*job.parents][:6]:
        for file in root / "results.csv", root / "report/results.csv":
            with suppress(OSError, ValueError, csv.Error), open(file, newline="", encoding="utf-8") as lines:
                for row in csv.DictReader(lines):
                    if (folder := Path(row.get("folder") or "").parts) == job.parts[-len(folder) :]:
                        return row
    return {}


def losses(path, step):
    """Return the validation losses of a pretrained model, from its run's log."""
    found = {}
    with suppress(OSError, ValueError, TypeError, LookupError):
        for line in map(json.loads, Path(path).with_name("metrics.jsonl").read_text().splitlines()):
            if line["step"] == step and "val_clm_loss" in line:
                found = line
    if not found:
        return "Not measured."
    return (
        f"Validation loss, in nats per predicted token: {found['val_clm_loss']:.3f} with causal and "
        f"{found['val_mlm_loss']:.3f} with masked language modeling."
    )


def limits(state, subject):
    """Yield what a user must know, a sentence or two each."""
    cfg = state["settings"]
    if subject != "llama":
        yield "Every text of its training ended in the end-of-sequence token. The tokenizer adds it."
    if cfg and state["step"] <= cfg["switch_step"] and subject == "eurobert":
        yield "It has never seen a mask in training, so what it fills in means nothing."
    yield "Names of special tokens in a text become these tokens. In training they were text."
    yield "It knows no more than its training data and was tested on nothing else. Test it on your own before you use it."
    yield "This card names no license. The terms of the training data may limit the use of the model."
