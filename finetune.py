"""Fine-tune a checkpoint: one checkpoint, one task, one learning rate, one seed -> one result.json.

    python finetune.py --task=embedded-sc --init_from=out/demo --lr=1e-3 --seed=1 --out_dir=out/finetune
    python finetune.py --family=sc --train=train.csv --test=test.csv --columns=title,body --label=topic ...

The protocol's defaults are those of "Should We Still Pretrain Encoders with Masked Language Modeling?"
(arXiv 2507.00994). Four families: sequence classification (sc), token classification (tc), extractive question
answering (qa), retrieval (ir). The settings are the assignments below; config files and --key=value change them.
"""

import json
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from tqdm import tqdm

import checkpoint
import configurator
from data.loader import to_device
from data.files import write_whole
from data.tokenizer import Tokenizer
from errors import Damaged, DataError
from eval.tasks import metrics
from eval.tasks.baselines import baselines
from eval.tasks.families import FAMILIES, at_most
from eval.tasks.model import TaskModel, outputs, packed
from eval.tasks.registry import load
from model import ModelConfig, Transformer
from runtime import RESUME_MAY_CHANGE, resolve_auto, use_determinism

# --- what ---
init_from = "out/demo"  # a checkpoint of train.py, the folder of a run (its newest one), or a model of the hub
task = ""  # a data set by its name (python -m eval.tasks lists them), or empty for one of your own, see below
out_dir = "out/finetune"  # where result.json and the rest go
random_weights = False  # the checkpoint's shape and tokenizer with random weights: what fine-tuning alone can do
test_only = False  # no training: init_from is a model.pt that save_model kept
save_model = False  # also keep the fine-tuned model, as model.pt
# --- data of your own ---
family = ""  # sc, tc, qa or ir
train = ""  # training data: a file, or for ir a folder in the BEIR layout
validation = ""  # empty: a part of train
test = ""  # test data
corpus = ""  # ir: the folder in the BEIR layout to search; empty: that of train
columns = ""  # names of the text columns of a table: title,body
label = ""  # name of the label column of a table; empty: label
form = ""  # how the columns become one text, such as "Premise: {}\nHypothesis: {}"
tasks_dir = "data/tasks"  # where the named data sets lie
# --- training ---
max_steps = 1000  # optimizer steps, at most
epochs = 1  # passes over the training data, at most
batch_size = 32  # examples a step
lr = 1e-4  # peak learning rate
warmup_share = 0.1  # of the steps: linear warmup; then linear decay to 0
beta1 = 0.9  # AdamW
beta2 = 0.95  # AdamW
eps = 1e-5  # AdamW
weight_decay = 0.1  # AdamW, on all parameters
grad_clip = 1.0  # largest norm of the gradient
seed = 1  # of the head, the order of the examples and dropout
freeze = False  # train the head alone
# --- model ---
causal = False  # the attention mask; False whatever the pretraining was
pooling = "mean"  # sc and ir: mean of the hidden states, or the last one
dropout = 0.1  # before the head of tc and qa
temperature = 0.05  # ir: the cosines are divided by it
max_len = 2028  # tokens of a text, at most; the model's seq_len if that is less
# --- evaluation ---
eval_interval = 100  # steps between validations
eval_examples = 1000  # of the validation set in those
test_examples = 0  # of validation and of test that are scored at the end, spread evenly over each; 0 = all
patience = 0  # stop after so many validations without a new best, and return to the best; 0 = never
baseline = True  # also score the task's trivial and lexical baselines
full_corpus = True  # ir: search all documents; False: those that a judgement names, for the paper's metric alone
# --- machine ---
device = "auto"  # cuda where there is one, else cpu
dtype = "auto"  # of activations: float32, bfloat16, float16; auto = bfloat16 where the device has it


def check(s):
    """What does not fit in the settings s, a sentence each."""
    found = []

    def need(fits, sentence):
        if not fits:
            found.append(sentence)

    lowest = dict(max_steps=1, epochs=1, batch_size=1, seed=0, eval_interval=1, eval_examples=1, test_examples=0,
                  patience=0, max_len=8, eps=0, weight_decay=0)  # fmt: skip
    for name, low in lowest.items():
        need(s[name] >= low, f"{name}={s[name]}: must be at least {low}")
    for name in ("lr", "grad_clip", "temperature"):
        need(s[name] > 0, f"{name}={s[name]}: must be above 0")
    for name in ("beta1", "beta2", "dropout", "warmup_share"):
        need(0 <= s[name] < 1, f"{name}={s[name]}: must be at least 0 and below 1")
    choices = dict(device=["auto", "cpu", "cuda"], dtype=["auto", "float32", "bfloat16", "float16"],
                   pooling=["mean", "last"])  # fmt: skip
    for name, values in choices.items():
        need(s[name] in values, f"{name}={s[name]}: must be one of {', '.join(values)}")
    need(s["device"] != "cuda" or torch.cuda.is_available(), "device=cuda: there is no GPU")
    need(bool(s["task"]) != bool(s["family"]), "give a task by name (python -m eval.tasks lists them), or a family with "
         "the paths of your own data")  # fmt: skip
    need(not s["family"] or s["family"] in FAMILIES, f"family={s['family']}: must be one of {', '.join(FAMILIES)}")
    why = checkpoint.problem(s["init_from"])
    need(not why, f"init_from: {why}")
    need(not (s["test_only"] and s["random_weights"]), "test_only and random_weights: give one of them")
    need(not Path(s["out_dir"], "result.json").exists(), f"{s['out_dir']} already holds a result: give another --out_dir")
    return found


# What test_only takes from the command line; the rest is as it was in training.
HERE = {"init_from", "task", "test_only", "family", "train", "validation", "test", "corpus", "columns", "label", "form",
        "tasks_dir", "eval_examples", "test_examples", "full_corpus", "device", "dtype"}  # fmt: skip


# ----------------------------------------------------------------------------
# The run


def main():
    settings = resolve_auto(configurator.load(__file__, sys.argv[1:], check))
    try:
        fine_tune(settings)
    except (Damaged, DataError) as error:
        sys.exit(str(error))


def learning_rate(step, steps):
    """Of step number `step`, from 0: linear warmup, then linear decay to 0."""
    warmup = int(warmup_share * steps)
    return lr * min((step + 1) / max(1, warmup), (steps - step) / (steps - warmup))


def origin(state, path):
    """What a result says of the checkpoint that it began with; of a model of the hub, not how it was trained.

    `recipe` is a checksum of the data and of all settings that alter what is learned, but for the seed and what the
    other facts say: checkpoints that differ in it are not one model with several pretraining seeds.
    """
    unknown = dict(max_steps=0, switch_step=0, mask_ratio=0.0, seed=0, init_from="", lr=0.0)
    s, step, real = state["settings"] or unknown, state["step"], Path(path).resolve()
    apart = {"seed", "init_from", "branch_from", "max_steps", "switch_step", "mask_ratio", "lr"}
    rest = {name: value for name, value in s.items() if name not in RESUME_MAY_CHANGE | apart}
    return dict(name=f"{real.parent.name}-{step}" if state["settings"] else Path(init_from).name, path=str(path), step=step,
                max_steps=s["max_steps"], clm_steps=min(step, s["switch_step"]), mask_ratio=s["mask_ratio"],
                seed=s["seed"], init_from=s["init_from"], peak_lr=s["lr"], untrained=random_weights, model=state["config"],
                recipe=f"{zlib.crc32(json.dumps([rest, state.get('data')], sort_keys=True).encode()):08x}",
                parameters=sum(weights.numel() for weights in state["model"].values()))  # fmt: skip


def gold(test):
    """What decides which test set it is: all of it, but of a retrieval set the judgements."""
    return test if isinstance(test, list) else {name: part.qrels for name, part in test.items()}


def fine_tune(settings):
    globals().update(settings)
    use_determinism()
    where = torch.device(device)

    # The checkpoint, its tokenizer, the task.
    path = checkpoint.find(init_from)
    state = checkpoint.load(path)
    tokenizer = Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])
    config = ModelConfig(**state["config"])
    if tokenizer.vocab_size > config.vocab_size:
        raise DataError(f"{path}: its tokenizer has {tokenizer.vocab_size} ids, its model {config.vocab_size}")
    own = dict(family=family, train=train, validation=validation, test=test, corpus=corpus,
               columns=tuple(columns.split(",")) if columns else (), label=label, form=form, full_corpus=full_corpus)  # fmt: skip
    dataset = load(task, folder=tasks_dir, **own)
    for split in ("validation", "test"):
        setattr(dataset, split, at_most(getattr(dataset, split), test_examples or sys.maxsize))

    saved = state.get("fine_tuned")
    if test_only and (not saved or saved["family"] != dataset.family):
        raise DataError(f"test_only: {path} is not a model fine-tuned for {dataset.family}; --save_model=True keeps one")
    if saved and not test_only:
        raise DataError(f"{path} is fine-tuned already: give the pretrained checkpoint, or --test_only=True")
    if test_only:
        unknown = {example.label for example in dataset.test} - {*saved["labels"]} if dataset.family == "sc" else ()
        if unknown:
            raise DataError(f"test_only: {path} does not know the labels {', '.join(sorted(unknown))}, but "
                            f"{', '.join(saved['labels'])}")  # fmt: skip
        dataset.labels = saved["labels"]
        globals().update(
            {name: saved["settings"][name] for name in ("causal", "pooling", "dropout", "max_len", "temperature")}
        )
    if freeze and dataset.family == "ir":
        raise DataError("freeze: retrieval has no head of its own to train")

    torch.manual_seed(seed)
    encoder = Transformer(config) if random_weights else checkpoint.model_from(state)
    encoder.compute_dtype = getattr(torch, dtype)
    encoder.requires_grad_(not freeze)
    kind = FAMILIES[dataset.family](dataset, tokenizer, min(max_len, config.seq_len), temperature, full_corpus)
    model = TaskModel(encoder, dataset.family, kind.n_outputs, causal, pooling, dropout).to(where)
    if test_only:
        model.head.load_state_dict(saved["head"])
        kind.may_be_none = saved["may_be_none"]
    params = [p for name, p in model.named_parameters() if p.requires_grad and name != "encoder.head.weight"]
    optimizer = torch.optim.AdamW(params, lr, (beta1, beta2), eps, weight_decay, fused=True)
    capacity = config.seq_len if where.type == "cuda" else min(64, config.seq_len)  # see `packed`

    def evaluate(examples, split=None):
        return kind.score(predict, examples, split)

    def predict(items):
        return outputs(model, items, capacity)

    # Train.
    n, best, since_best, loss_sum, n_tokens = len(dataset.train), (-1.0, None), 0, 0.0, 0
    per_epoch = -(-n // batch_size)
    steps = 0 if test_only else min(max_steps, epochs * per_epoch)
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    log = None if test_only else checkpoint.MetricsLog(out / "metrics.jsonl")
    small, began, validating = at_most(dataset.validation, eval_examples, judged_only=True), time.perf_counter(), 0.0
    bar = tqdm(range(steps), desc=dataset.name, mininterval=1, disable=not steps)
    for step in bar:
        epoch, i = divmod(step, per_epoch)
        if i == 0:
            order = np.random.default_rng([seed, epoch]).permutation(n)
        items = [item for j in order[i * batch_size : (i + 1) * batch_size]
                 for item in kind.items(dataset.train[j], "train" if epoch == 0 else None)]  # fmt: skip
        batch = packed([item.ids for item in items], capacity)
        n_tokens += len(batch["at"])
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps)
        loss = kind.loss(model(**to_device(batch, where)), items)
        loss.backward()
        nn.utils.clip_grad_norm_(params, grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        loss_sum += loss.detach()
        if (step + 1) % eval_interval == 0 or step + 1 == steps:
            started, since = time.perf_counter(), step % eval_interval + 1
            if not torch.isfinite(loss_sum):
                sys.exit(f"the loss is {loss_sum.item()} by step {step + 1}: no result. A smaller --lr may help")
            scores = {}
            if patience or step + 1 < steps:  # at the end all of the validation set is scored, below
                scores = {name: metrics.score(x) for name, x in evaluate(small).items()}
                score = np.mean([scores[name] for name in dataset.main["field"] or dataset.main["paper"]])
                bar.set_postfix(loss=f"{loss_sum.item() / since:.3f}", validation=f"{score:.1f}")
            log.write(step=step + 1, loss=loss_sum.item() / since, lr=learning_rate(step, steps), **scores)
            loss_sum, since_best = 0.0, since_best + 1
            if patience and score > best[0]:
                best, since_best = (score, step + 1), 0
                kept = {name: value.clone() for name, value in model.state_dict().items()}
            validating += time.perf_counter() - started
            if patience and since_best == patience:
                steps = step + 1
                break
    if patience and steps:
        model.load_state_dict(kept)
    seconds = time.perf_counter() - began - validating

    # Score, and write all of it or nothing.
    found = {split: evaluate(getattr(dataset, split), split) for split in ("validation", "test")}
    scores = {split: {name: metrics.score(x) for name, x in instances.items()} for split, instances in found.items()}
    beside = baselines(dataset) if baseline and not test_only else {}
    sizes = {split: sum(len(s.qrels) for s in part.values()) if isinstance(part, dict) else len(part)
             for split, part in (("train", dataset.train), ("validation", dataset.validation), ("test", dataset.test))}  # fmt: skip
    done = dict(steps=steps, best_step=best[1] if patience else steps, lr=lr, seed=seed, checkpoint=origin(state, path))
    done = saved["done"] if test_only else done
    used = saved["settings"] | {name: settings[name] for name in HERE} if test_only else settings
    used = {name: value for name, value in used.items() if name not in ("out_dir", "save_model", "baseline")}
    result = dict(task=dataset.name, family=dataset.family, metrics=scores, main=dataset.main, baselines=beside,
                  counts=dataset.counts | kind.counts, examples=sizes,
                  test_set=f"{zlib.crc32(repr(gold(dataset.test)).encode()):08x}", **done, settings=used,
                  versions=checkpoint.versions(where))  # fmt: skip
    arrays = {name: x.astype(np.float32) for name, x in found["test"].items()}
    write_whole(out / "instances.npz", lambda f: np.savez_compressed(f, **arrays))
    if save_model:
        facts = dict(family=dataset.family, labels=dataset.labels, head=model.head.state_dict(), settings=dict(settings),
                     may_be_none=kind.may_be_none, done=done)  # fmt: skip
        whole = {k: v for k, v in state.items() if k != "optimizer"} | {"model": encoder.state_dict(), "fine_tuned": facts}
        checkpoint.save(out / "model.pt", whole)
    write_whole(out / "result.json", lambda f: f.write(json.dumps(result, indent=1).encode()))

    print(f"{dataset.name}: lr {lr:g}, seed {seed}, {steps} steps in {seconds:.1f} s", end="")
    print(f" ({n_tokens / seconds:,.0f} tokens/s)" if steps else "")
    rows = {"validation": scores["validation"], "test": scores["test"]} | {f"  {k} (test)": v for k, v in beside.items()}
    width = max(map(len, rows))
    print(" " * width, *(f"{name:>18}" for name in scores["test"]))
    for name, row in rows.items():
        print(name.ljust(width), *(f"{row[k]:>18.2f}" if k in row else " " * 18 for k in scores["test"]))
    for rule, times in result["counts"].items():
        print(f"  {rule}: {times}")
    print(f"wrote {out}/result.json")


if __name__ == "__main__":
    main()
