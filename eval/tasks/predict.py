"""Use a fine-tuned model on new text: classify, tag, answer questions, search.

    python -m eval.tasks predict out/topics/model.pt new.csv --out=topics.jsonl
    python -m eval.tasks predict out/topics/model.pt < new.jsonl > topics.jsonl

The model is one that `finetune.py --save_model=True` kept. The input is a .csv, .tsv or .jsonl table, or a .txt file
with a text on each line. Standard input is JSON lines, or with --plain=True lines of text. The output has a line of JSON for
each row or line, in their order: `id` (that of the row if it has one, else its number), `predicted` and `score`.

What a row must have, by family (labels are not read):
    sc  the columns of the training data; the model's form is applied
    tc  a list of words in the column "tokens", or that of the training data; plain text is split into words at spaces
    qa  "question" and "context"
    ir  "text", a query; --corpus names the documents to search
Input of any length takes little memory, except that ir holds the vectors of the corpus. A row that cannot be read stops
the command with its line and exit code 1. A file given by --out is there only when it is complete.
"""

import signal
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from tqdm import tqdm

import checkpoint
import configurator
from data.files import write_whole
from data.hub import saved_model
from errors import Damaged, DataError
from eval.tasks import readers
from eval.tasks import model as task_model
from eval.tasks.examples import Dataset, Question, Sentence, Text
from eval.tasks.families import nearest_documents, ranking, record
from eval.tasks.registry import Task
from eval.tasks.result import json_line, restore
from runtime import resolve_auto, use_determinism

out = ""  # the file to write; empty: standard output
plain = False  # the input has a text on each line, as a .txt file has
columns = ""  # names of the columns to read; empty: those of the training data
corpus = ""  # ir: the documents to search, a .jsonl with "_id", "text" and maybe "title"
top_k = 10  # ir: documents to find for each query
device = "auto"  # cpu, cuda; auto = cuda if there is a GPU
dtype = "auto"  # of activations: float32, bfloat16; auto = bfloat16 if the device has it

USAGE = "python -m eval.tasks predict MODEL [INPUT]"
NEW = "new texts"  # the name of this split in Family.counts
CHUNK = 4096  # rows in memory at a time; texts of similar length among them share a batch
COLUMNS = {"sc": ("text",), "tc": ("tokens",), "qa": ("question", "context"), "ir": ("text",)}  # by default


def check(cfg):
    choices = dict(device=["auto", "cpu", "cuda"], dtype=["auto", "float32", "bfloat16"])
    yield from configurator.outside_limits(cfg, ["top_k"], choices=choices)


def load(path, cfg):
    """Return the task, its TaskModel, and the Task that says which columns the training data had and in which form."""
    path = Path(path, "model.pt") if Path(path).is_dir() else path
    state = checkpoint.load(path, report=partial(print, file=sys.stderr))
    saved = saved_model(state, path)
    family = saved["family"]
    settings = configurator.Settings(saved["settings"] | dict(device=cfg.device, dtype=cfg.dtype))
    task, model = restore(settings, Dataset("", family, saved["labels"], [], {}, {}, {}, {}), state)
    spec = Task(**saved["task"])
    known = [name for name in spec.columns if not name.isdecimal()] if family in ("sc", "tc") else ()
    names = tuple(cfg.columns.split(",") if cfg.columns else known or COLUMNS[family])
    if len(names) != len(COLUMNS[family]) and family != "sc":
        raise DataError(f"columns={cfg.columns}: expected names for {','.join(COLUMNS[family])}")
    return task, model, Task(family, columns=names, form=spec.form)


def read(path, spec, plain):
    """Yield (id, example) for each row of a table or line of text. The example of ir is the query's text."""
    kind = list if spec.family == "tc" else str
    if plain or readers.file_format(path) == "txt":
        if len(spec.columns) > 1:
            raise DataError(f"{path}: lines of text, but this model reads the columns {', '.join(spec.columns)}")
        texts = ((f"{path}, line {number}", text) for number, text in readers.lines(path))
        found = ((at, {spec.columns[0]: text.split() if kind is list else text}) for at, text in texts)
    elif path == "/dev/stdin":
        found = readers.with_columns(path, readers.json_rows(path), dict.fromkeys(spec.columns, kind))
    else:
        found = readers.rows(path, dict.fromkeys(spec.columns, kind))
    for number, (location, row) in enumerate(found, 1):
        values = [row[column] for column in spec.columns]
        match spec.family:
            case "sc":
                example = Text(readers.fill(spec, values), 0)  # the label is not used
            case "tc" if all(isinstance(word, str) for word in values[0]):
                example = Sentence(*values, ["O"] * len(values[0]))  # the tags are not used
            case "tc":
                raise DataError(f"{location}: expected a list of words, got {values[0]!r}")
            case "qa":
                example = Question("", *values, [])
            case "ir":
                example = values[0]
        yield row.get("id", row.get("_id", number)), example


def predict(task, model, examples, corpus=None, top_k=10, chunk=CHUNK):
    """Yield the prediction for each (id, example), as plain values. corpus: ir: {id: text}."""
    examples = iter(examples)
    forward = partial(task_model.predict, model)
    vectors = task.embed(forward, corpus, NEW) if corpus else None
    while some := [*islice(examples, chunk)]:
        ids, texts = zip(*some)
        if corpus:
            queries = np.stack(forward([task.query(text, NEW) for text in texts]))
            found = nearest_documents(queries, vectors, range(len(texts)), [*corpus], top_k)
            answers = [ranking(found[i], top_k) for i in range(len(texts))]
        else:
            answers = task.predict(forward, texts, NEW)
        yield from map(record, ids, answers)


def run(path, source, cfg):
    """Predict all of the input and write it."""
    task, model, spec = load(path, cfg)
    documents = readers.read_texts_by_id(cfg.corpus)[0] if cfg.corpus else {}
    if (spec.family == "ir") != bool(documents):
        found = f"corpus={cfg.corpus!r}: {len(documents)} documents, but this model is for {spec.family}"
        raise DataError(f"{found}. A model for retrieval (ir) needs documents to search, any other takes none")
    records = predict(task, model, read(source, spec, cfg.plain), documents, cfg.top_k)
    lines = map(json_line, tqdm(records, "predicting", unit=" texts", unit_scale=True, disable=None))
    if cfg.out:
        write_whole(cfg.out, lambda file: file.writelines(lines))
    else:
        sys.stdout.buffer.writelines(lines)
    for rule, count in task.counts.items():
        print(f"{rule}: {count}", file=sys.stderr)


def main(argv):
    paths = [arg for arg in argv if not arg.startswith("-")]
    cfg = configurator.load(__file__, [arg for arg in argv if arg.startswith("-")], check, USAGE)
    if len(paths) not in (1, 2):
        sys.exit(f"usage: {USAGE} [--key=value ...]    (--help lists the settings)")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the command without an error
    use_determinism()
    try:
        run(paths[0], [*paths, "/dev/stdin"][1], resolve_auto(cfg))
    except (Damaged, DataError, OSError) as error:
        hint = " (--plain=True reads lines of text)" if "not JSON" in str(error) else ""
        sys.exit(f"{error}{hint}\nstopped: {cfg.out or 'the output'} is not complete")
