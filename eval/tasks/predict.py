"""Use a fine-tuned model on new text: classify, tag, answer questions. (For retrieval, export it: docs/hub.md.)

    python -m eval.tasks predict out/topics/model.pt new.csv --out=topics.jsonl
    python -m eval.tasks predict out/topics/model.pt < new.jsonl > topics.jsonl

The model is one that `finetune.py --save_model=True` kept. The input is a .csv, .tsv or .jsonl table, for tc also a
file in CoNLL columns, and for qa one in SQuAD's layout. Standard input is JSON lines. The output has a line of JSON for
each row, in their order: `id` (its number, from 1, or for qa that of the question), `predicted` and `score`.

What a row must have, by family:
    sc  the columns of the training data; the model's form is applied
    tc  a list of words, in "tokens" or the column of the training data
    qa  "question" and "context"
If all rows have their labels, as in training, the scores are printed at the end. A model for retrieval (ir) gives
neither predictions nor scores here: export it, and search with sentence-transformers.
A row that cannot be read stops the command with its line and exit code 1, and leaves no file for --out.
"""

import os
import sys
from functools import partial
from itertools import islice

import checkpoint
import configurator
from data.files import write_whole
from errors import Damaged, DataError, progress
from eval.tasks import hub_encoder, metrics
from eval.tasks import model as task_model
from eval.tasks.readers import READERS, STDIN
from eval.tasks.registry import Task
from eval.tasks.result import build
from eval.tasks.splits import Dataset
from runtime import device_problems, resolve_auto, use_determinism

out = ""  # the file to write; empty: standard output
device = "auto"  # cpu, cuda; auto = cuda if there is a GPU
dtype = "auto"  # of activations: float32, bfloat16; auto = bfloat16 if the device has it

USAGE = "python -m eval.tasks predict MODEL [INPUT]"
READ = "columns label names form metric outside".split()  # what of a Task the readers need
CHUNK = 4096  # rows in memory at a time; texts of similar length among them share a batch


def load(path, device, dtype):
    """Return the dict, the Family and the TaskModel that `finetune.py --save_model=True` kept. Raises DataError."""
    state = hub_encoder.load(path, report=partial(print, file=sys.stderr))
    if "fine_tuned" not in state:
        raise DataError(f"{path} is not a model that finetune.py --save_model=True kept")
    saved = state["fine_tuned"]
    with checkpoint.refuse_damage(path):
        settings = configurator.Settings(saved["settings"] | {"device": device, "dtype": dtype})
        spec = Task(saved["family"], **{name: saved["task"][name] for name in READ})
        dataset = Dataset("", saved["family"], saved["labels"], [], [], [], {}, {}, spec)
        task, model = build(settings, dataset, state)
        model.head.load_state_dict(saved["head"])
        task.may_be_none, task.threshold = saved["may_be_none"], saved["threshold"]
    return state, task, model


def predict(task, model, examples, chunk=CHUNK):
    """Yield (example, Answer) for each example."""
    examples, forward = iter(examples), partial(task_model.predict, model)
    while some := [*islice(examples, chunk)]:
        yield from zip(some, task.predict(forward, some, "test"))


def run(path, source, cfg):
    """Predict all of the input and write it. Print the scores if all rows have labels."""
    _, task, model = load(path, cfg.device, cfg.dtype)
    spec = task.dataset.task
    if spec.family == "ir":
        raise DataError(f"{path} is for retrieval: export it, and search with sentence-transformers (docs/hub.md)")
    labeled = []  # (example, Answer), or None for a row without labels

    def lines():
        pairs = predict(task, model, READERS[spec.family](source, spec, unlabeled=True))
        for example, answer in progress(pairs, "predicting", unit=" texts", unit_scale=True):
            labeled.append(None if example.gold is None else (example, answer))
            yield answer.line(example, len(labeled))

    if cfg.out:
        write_whole(cfg.out, lambda file: file.writelines(lines()))
    else:
        sys.stdout.buffer.writelines(lines())
    if labeled and all(labeled):
        examples, answers = zip(*labeled)
        found = task.metrics(answers, examples)
        scores = [f"{name} {metrics.rounded(metrics.score(x), 2):.2f}" for name, x in found.items()]
        file = sys.stdout if cfg.out else sys.stderr
        print(f"scores of {len(examples):,} examples: {'   '.join(scores)}", file=file)


def main(argv):
    paths = [arg for arg in argv if not arg.startswith("-")]
    cfg = configurator.load(__file__, [arg for arg in argv if arg.startswith("-")], device_problems, USAGE)
    if len(paths) not in (1, 2):
        print(f"usage: {USAGE} [--key=value ...]    (--help lists the settings)", file=sys.stderr)
        sys.exit(2)
    for path in paths:
        if os.path.isfile(cfg.out) and os.path.exists(path) and os.path.samefile(cfg.out, path):
            sys.exit(f"--out={cfg.out} is {path}, which would be overwritten: give another file")
    use_determinism()
    try:
        run(paths[0], [*paths, STDIN][1], resolve_auto(cfg))
    except (Damaged, DataError, OSError, KeyboardInterrupt) as error:
        outcome = f"nothing was written to {cfg.out}" if cfg.out else "the output is not complete"
        sys.exit(f"{error}\nstopped: {outcome}")
