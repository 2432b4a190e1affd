"""Fine-tune a checkpoint: one checkpoint, one task, one learning rate, one seed -> one result.json.

    python finetune.py --task=embedded-sc --init_from=out/demo --lr=1e-3 --seed=1 --out_dir=out/finetune
    python finetune.py --family=sc --train=train.csv --test=test.csv --columns=title,body --label=topic ...
    python finetune.py --task=topics.py ...     # the same, with the family, paths and columns in a file

The defaults are the protocol of "Should We Still Pretrain Encoders with Masked Language Modeling?" (arXiv 2507.00994).
There are four families: sequence classification (sc), token classification (tc), extractive question answering (qa) and
retrieval (ir). The settings are the assignments below; config files and --key=value change them.
"""

import sys
from pathlib import Path

from errors import DataError, exit_with_message, progress, show  # first: it says what to install

# isort: split
import numpy as np
import torch
import torch.nn as nn

import configurator
from data.files import lock_folder
from data.loader import to_device
from eval.tasks import hub_encoder
from eval.tasks.families import subsample
from eval.tasks.model import pack_texts
from eval.tasks.registry import FIELDS, find_task, missing
from eval.tasks.result import build, evaluate, origin, table, write_result
from eval.tasks.splits import read
from run import MetricsLog, remove_partial_files
from runtime import device_problems, resolve_auto, use_determinism

# --- what ---
init_from = "out/demo"  # a checkpoint of train.py, the folder of a run (its newest one), or a model of the hub
task = ""  # a data set by its name in eval/tasks/datasets.ini; for your own data a task file, or see below
out_dir = "out/finetune"  # where result.json and the rest go
random_weights = False  # keep the checkpoint's shape and tokenizer, but start from random weights, as a baseline
save_model = False  # also keep the fine-tuned model, as model.pt
# --- your own data: here, or the same settings in a task file, with paths relative to its folder ---
family = ""  # sc, tc, qa or ir
train = ""  # training data: a file, or for ir a folder in the BEIR layout
validation = ""  # empty: a part of train
test = ""  # test data
corpus = ""  # ir: the folder in the BEIR layout to search; empty: that of train
columns = ""  # names of the text columns of a table: title,body
label = ""  # name of the label column of a table; empty: label
form = ""  # how the columns become one text, such as "Premise: {}\nHypothesis: {}"
metric = ""  # the main one, such as f1; with pearson or spearman, sc predicts numbers; empty: the family's or task's
tasks_dir = "data/tasks"  # where the files of the named data sets are
# --- training ---
max_steps = 1000  # optimizer steps, at most; 0: score the model as it is (zero-shot; ir only)
epochs = 1  # passes over the training data, at most
batch_size = 32  # examples per step
lr = 1e-4  # peak learning rate
warmup_fraction = 0.1  # fraction of the steps with linear warmup; linear decay to 0 follows
beta1 = 0.9  # AdamW
beta2 = 0.95  # AdamW
eps = 1e-5  # AdamW
weight_decay = 0.1  # AdamW, on all parameters
grad_clip = 1.0  # largest norm of the gradient
seed = 1  # for the head's weights, the order of the examples and dropout
freeze = False  # train only the head
# --- model ---
causal = False  # True: fine-tune with the causal mask, whatever the mask was in pretraining
dropout = 0.1  # before the head of tc and qa
temperature = 0.05  # ir: cosines are divided by it
max_len = 2028  # largest number of tokens of a text; the model's seq_len if that is smaller
# --- evaluation ---
eval_interval = 100  # steps between validations
eval_examples = 1000  # examples in each of those validations
test_examples = 0  # examples of validation and of test that are scored at the end, evenly spread; 0 = all
protocol = "auto"  # ir, how texts become vectors: study, own (a hub model's own way), or auto (own if zero-shot)
full_corpus = True  # ir: search all documents; False: only the judged ones, which the paper's metric needs
# --- machine ---
device = "auto"  # cpu, cuda; auto = cuda if there is a GPU
dtype = "auto"  # of activations: float32, bfloat16; auto = bfloat16 if the device has it

LIMITS = [
    ("at least", 8, "max_len"),
    ("at least", 1, "epochs batch_size eval_interval eval_examples"),
    ("at least", 0, "max_steps seed test_examples eps weight_decay beta1 beta2 dropout warmup_fraction"),
    ("below", 1, "beta1 beta2 dropout warmup_fraction"),
    ("above", 0, "lr grad_clip temperature"),
]


def describe_task(cfg):
    """Return the Task that the settings name or describe. Raises DataError."""
    return find_task(cfg.task, cfg.tasks_dir, zero_shot=cfg.max_steps == 0, **{name: cfg[name] for name in FIELDS})


def check(cfg, needs_checkpoint=True, reads_data="--check" in sys.argv):
    """Yield what is wrong with the settings, and with the data, a sentence each.

    needs_checkpoint: False if init_from may not be there yet, as when a study plans what it will do.
    reads_data: whether to read all data, which a run does at its start anyway.
    """
    yield from configurator.value_problems(cfg, LIMITS, {"protocol": ["auto", "study", "own"]})
    yield from device_problems(cfg)
    try:
        task = describe_task(cfg)
        if task.family == "ir" and cfg.freeze:
            yield "freeze: retrieval has no head to train"
        if task.family == "ir" and cfg.batch_size == 1:
            yield "batch_size=1: retrieval learns from the other documents of a batch: give 2 or more"
        if absent := missing(task):
            yield absent
        elif reads_data:
            read(task, cfg.full_corpus)
    except DataError as error:
        yield str(error)
    if needs_checkpoint and (why := hub_encoder.problem(cfg.init_from, cfg.causal)):
        yield f"init_from: {why}"


# ----------------------------------------------------------------------------
# The run


def learning_rate(cfg, step, steps):
    """Return the learning rate of step number `step`, from 0: linear warmup, then linear decay to 0."""
    warmup = int(cfg.warmup_fraction * steps)
    return cfg.lr * min((step + 1) / max(1, warmup), (steps - step) / (steps - warmup))


def fine_tune(cfg):
    """Fine-tune a pretrained checkpoint and write its result."""
    path, state = hub_encoder.open_newest(cfg.init_from)
    dataset = read(describe_task(cfg), cfg.full_corpus)
    if cfg.test_examples:
        dataset.validation = subsample(dataset.validation, cfg.test_examples)
        dataset.test = subsample(dataset.test, cfg.test_examples)
    if "fine_tuned" in state:
        raise DataError(f"{path} is fine-tuned already: give the pretrained checkpoint")

    task, model = build(cfg, dataset, state, cfg.random_weights)
    task.count_too_long()
    show(print, dataset.summary())
    if cfg.freeze:
        model.encoder.requires_grad_(False)
    params = [*model.parameters()]
    optimizer = torch.optim.AdamW(params, cfg.lr, (cfg.beta1, cfg.beta2), cfg.eps, cfg.weight_decay, fused=True)

    for group in optimizer.param_groups:  # all follow the schedule, also one with a rate of its own
        group.setdefault("lr_scale", group["lr"] / cfg.lr)

    log = MetricsLog(Path(cfg.out_dir, "metrics.jsonl"))
    steps_per_epoch = -(-len(dataset.train) // cfg.batch_size)
    steps = min(cfg.max_steps, cfg.epochs * steps_per_epoch)
    eval_set = subsample(dataset.validation, cfg.eval_examples)
    loss_sum = 0.0  # of the steps since the last validation
    model.train()

    bar = progress(total=steps, desc=dataset.name, unit="steps", mininterval=1)
    for step in range(steps):
        # The batch: the next examples of this epoch, as texts packed into rows.
        epoch, i = divmod(step, steps_per_epoch)
        if i == 0:
            order = np.random.default_rng([cfg.seed, epoch]).permutation(len(dataset.train))
        items = []
        for j in order[i * cfg.batch_size : (i + 1) * cfg.batch_size]:
            items += task.items(dataset.train[j], "train")
        batch = pack_texts([item.ids for item in items], model.capacity)

        # Forward, backward, update.
        lr = learning_rate(cfg, step, steps)
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        loss = task.loss(model(**to_device(batch, model.encoder.device)), items)
        loss.backward()
        nn.utils.clip_grad_norm_(params, cfg.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        loss_sum += loss.detach()
        bar.update()

        # Validate and log.
        last = step + 1 == steps
        if (step + 1) % cfg.eval_interval and not last:
            continue
        mean_loss = loss_sum.item() / (step % cfg.eval_interval + 1)
        loss_sum = 0.0
        if not np.isfinite(mean_loss):
            sys.exit(f"the loss is {mean_loss} by step {step + 1}: no result. A smaller --lr may help")
        scores = {}
        if not last:  # after the last step all of the validation set is scored, below
            scores, *_ = evaluate(task, model, eval_set)
            bar.set_postfix(loss=mean_loss, **scores)
        log.write(step=step + 1, loss=mean_loss, lr=lr, **scores)

    bar.close()
    task.finish(model)
    run = dict(steps=steps, lr=cfg.lr, seed=cfg.seed)
    run["checkpoint"] = origin(state, path, cfg.init_from, cfg.random_weights)
    result = write_result(cfg, dataset, task, model, run, state)
    show(print, table(result))
    show(print, f"{steps:,} steps; wrote {cfg.out_dir}/result.json")


@exit_with_message()
def main():
    cfg = resolve_auto(configurator.load(__file__, sys.argv[1:], check))
    use_determinism()
    lock = lock_folder(cfg.out_dir)  # noqa: F841  held until this process ends
    for file, what in ("result.json", "a result"), ("config.json", "a model"):
        if Path(cfg.out_dir, file).exists():
            raise DataError(f"{cfg.out_dir} already holds {what}: give another --out_dir")
    remove_partial_files(Path(cfg.out_dir))
    fine_tune(cfg)


if __name__ == "__main__":
    main()
