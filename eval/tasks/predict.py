"""Use a fine-tuned model on new text: classify, tag, answer questions.

    python -m eval.tasks predict out/topics/model.pt new.csv --out=topics.jsonl
    python -m eval.tasks predict out/topics/model.pt < new.jsonl > topics.jsonl

The model is one that `finetune.py --save_model=True` kept. The input is a .csv, .tsv or .jsonl table, for tc also a
file in CoNLL columns, and for qa one in SQuAD's layout. Standard input is JSON lines. The output has a line of JSON for
each row, in their order: `id` (that of the row if it has one, else its number), `predicted` and `score`.

What a row must have, by family:
    sc  the columns of the training data; the model's form is applied
    tc  a list of words, in "tokens" or the column of the training data
    qa  "question" and "context"
A model for retrieval (ir) is exported instead, and sentence-transformers searches with it: docs/hub.md.
If all rows have their labels, as in training, the scores are printed at the end.
A row that cannot be read stops the command with its line and exit code 1, and leaves no file for --out.
"""

import sys
from collections import Counter
from functools import partial
from itertools import islice

import checkpoint
import configurator
from data.files import write_whole
from data.hub import saved_model
from errors import Damaged, DataError, progress
from eval.tasks import hub_encoder, metrics, readers
from eval.tasks import model as task_model
from eval.tasks.examples import Dataset, Question, Text
from eval.tasks.registry import Task
from eval.tasks.result import build
from runtime import resolve_auto, use_determinism

out = ""  # the file to write; empty: standard output
device = "auto"  # cpu, cuda; auto = cuda if there is a GPU
dtype = "auto"  # of activations: float32, bfloat16; auto = bfloat16 if the device has it

USAGE = "python -m eval.tasks predict MODEL [INPUT]"
STDIN = "/dev/stdin"
CHUNK = 4096  # rows in memory at a time; texts of similar length among them share a batch


def check(cfg):
    choices = dict(device=["auto", "cpu", "cuda"], dtype=["auto", "float32", "bfloat16"])
    yield from configurator.outside_limits(cfg, choices=choices)


def load(path, cfg):
    """Return the task, its TaskModel, and the Task that says which columns the training data had and in which form."""
    state = hub_encoder.load(path, report=partial(print, file=sys.stderr))
    saved = saved_model(state, path)
    with checkpoint.trusting(path):
        settings = configurator.Settings(saved["settings"] | dict(device=cfg.device, dtype=cfg.dtype))
        task, model = build(settings, Dataset("", saved["family"], saved["labels"], [], {}, {}, {}, {}), state)
        model.head.load_state_dict(saved["head"])
        task.may_be_none, task.threshold = saved["may_be_none"], saved["threshold"]
        return task, model, Task(**saved["task"])


def read(path, spec):
    """Yield (id, example, whether it has labels) for each row of the input."""
    kind = "jsonl" if path == STDIN else readers.file_format(path)
    if (spec.family == "tc" and kind != "jsonl") or (spec.family == "qa" and kind == "json"):  # no table
        reader = {"tc": readers.read_sentences, "qa": readers.read_questions}[spec.family]
        for number, example in enumerate(reader(path, spec, "test", Counter()), 1):
            yield getattr(example, "id", number), example, True
        return
    label = "answers" if spec.family == "qa" else spec.label or "label"
    names = {
        "sc": spec.columns or ("text",),
        "tc": [name for name in spec.columns if not name.isdecimal()] or ["tokens"],  # CoNLL columns have numbers
        "qa": ("question", "context"),
    }[spec.family]
    columns = dict.fromkeys(names, list if spec.family == "tc" else str)
    for number, (location, row) in enumerate(readers.rows(path, columns, kind=kind), 1):
        values, given = [row[name] for name in names], row.get(label)
        given = None if given in ("", [], {}) else given
        match spec.family:
            case "sc":
                target = 0 if given is None else readers.read_label(given, spec, location)
                example = Text(readers.fill(spec, values), target)
            case "tc":
                example = readers.to_sentence(*values, given or ["O"] * len(values[0]), spec, location)
            case "qa":
                found = [] if given is None else readers.table_answers(given, location)
                answers = [(answer, readers.find_answer(answer, start, values[1])) for answer, start in found]
                example = Question("", *values, answers)
        yield row.get("id", number), example, given is not None


def predict(task, model, rows, chunk=CHUNK):
    """Yield (id, example, ..., Answer) for each (id, example, ...)."""
    rows, forward = iter(rows), partial(task_model.predict, model)
    while some := [*islice(rows, chunk)]:
        answers = task.predict(forward, [example for _, example, *_ in some], "test")
        yield from ((*row, answer) for row, answer in zip(some, answers))


def run(path, source, cfg):
    """Predict all of the input and write it. Print the scores if all rows have labels."""
    task, model, spec = load(path, cfg)
    if spec.family == "ir":
        raise DataError(f"{path} is a model for retrieval (ir): export it, and search with sentence-transformers")
    labeled = []  # (example, Answer), or nothing for a row without labels

    def lines():
        rows = predict(task, model, read(source, spec))
        for id, example, has_labels, answer in progress(rows, "predicting", unit=" texts", unit_scale=True):
            labeled.append((example, answer) if has_labels else None)
            yield answer.line(id)

    if cfg.out:
        write_whole(cfg.out, lambda file: file.writelines(lines()))
    else:
        sys.stdout.buffer.writelines(lines())
    if labeled and all(labeled):
        examples, answers = zip(*labeled)
        scores = task.metrics(answers, examples).items()
        text = "   ".join(f"{name} {metrics.rounded(metrics.score(x), 2):.2f}" for name, x in scores)
        print(f"scores of {len(examples):,} examples: {text}", file=sys.stdout if cfg.out else sys.stderr)


def main(argv):
    paths = [arg for arg in argv if not arg.startswith("-")]
    cfg = configurator.load(__file__, [arg for arg in argv if arg.startswith("-")], check, USAGE)
    if len(paths) not in (1, 2):
        print(f"usage: {USAGE} [--key=value ...]    (--help lists the settings)", file=sys.stderr)
        sys.exit(2)
    use_determinism()
    try:
        run(paths[0], [*paths, STDIN][1], resolve_auto(cfg))
    except (Damaged, DataError, OSError, KeyboardInterrupt) as error:
        outcome = f"nothing was written to {cfg.out}" if cfg.out else "the output is not complete"
        sys.exit(f"{error}\nstopped: {outcome}")
