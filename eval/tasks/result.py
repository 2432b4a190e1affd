"""The files that fine-tuning writes: model.pt, predictions.jsonl, instances.npz and result.json."""

import json
import zlib
from itertools import chain
from pathlib import Path

import numpy as np
import torch

import checkpoint
import configurator
from data import hub
from data.files import write_json, write_whole
from data.objective import clm_steps, largest_mask_ratio, phases_of
from errors import DataError
from eval.tasks import hub_encoder, metrics
from eval.tasks.baselines import baselines
from eval.tasks.families import FAMILIES, Item
from eval.tasks.model import TaskModel, predict
from eval.tasks.readers import Query
from eval.tasks.registry import Task
from eval.tasks.retriever import STUDY, choose
from eval.tasks.splits import Dataset
from model_checks import set_attention
from run import ROOT, versions

READ = "columns label names form metric outside".split()  # fields of a Task that the readers need
NO_PART = ("out_dir", "save_model")  # settings that do not affect the scores
FILES = [ROOT / "finetune.py", ROOT / "model.py", *sorted(ROOT.glob("eval/tasks/[a-z]*.*"))]
CODE = zlib.crc32(b"".join(map(Path.read_bytes, FILES)))  # a report does not mix results of different code


def build(cfg, dataset, state, random_weights=False):
    """Build a TaskModel from a checkpoint's dict; see `hub_encoder.open_newest`.

    Returns the Family of the task and the TaskModel, which is on `cfg.device`.
    """
    torch.manual_seed(state["settings"].get("seed", cfg.seed))  # random weights are the initial ones of pretraining
    protocol = choose(cfg, state) if dataset.family == "ir" else STUDY
    encoder = hub_encoder.encoder_of(state, random_weights, protocol)
    encoder.compute_dtype = getattr(torch, cfg.dtype)
    torch.manual_seed(cfg.seed)  # for the head and dropout
    if cfg.device == "cuda" and getattr(encoder, "attention_backend", "") == "auto":
        device = torch.device(cfg.device)
        checked = state if state["settings"].get("dtype") == cfg.dtype else None  # pretraining checked its kernels
        set_attention(encoder, device, versions(device), checked)
    tokenizer = checkpoint.tokenizer_of(state)
    max_len = min(cfg.max_len, protocol.max_len, encoder.config.seq_len)
    task = FAMILIES[dataset.family](dataset, tokenizer, max_len, cfg.temperature, protocol)
    model = TaskModel(encoder, dataset.family, task.n_outputs, cfg.causal or protocol.causal, cfg.dropout, protocol)
    return task, model.to(cfg.device)


def save_model(cfg, dataset, task, model, state):
    """Write the fine-tuned model to model.pt: a checkpoint's dict without the optimizer, with the entry fine_tuned."""
    fine_tuned = dict(
        family=dataset.family,
        labels=dataset.labels,
        head=model.head.state_dict(),
        settings=dict(cfg),
        may_be_none=task.may_be_none,
        threshold=task.threshold,
        prompts={"query": task.protocol.query, "document": task.protocol.document},
        task={name: getattr(dataset.task, name) for name in READ},
    )
    kept = state | {"model": model.encoder.state_dict(), "fine_tuned": fine_tuned}
    kept.pop("optimizer", None)
    _, copy = rebuild(kept)
    tokens = hub.random_tokens(task.tokenizer.vocab_size, task.max_len)
    (output,) = predict(copy, [Item(tokens.tolist(), None)])
    fine_tuned["sample"] = tokens, torch.from_numpy(output)  # an export must give the same output
    checkpoint.save(Path(cfg.out_dir, "model.pt"), kept)


def load(path, device="cpu", dtype="float32"):
    """Load a file of `save_model`. Returns its dict, the Family and the TaskModel. Raises DataError or Damaged."""
    _, state = hub_encoder.open_newest(path)
    if "fine_tuned" not in state:
        raise DataError(f"{path} is not a model that finetune.py --save_model=True kept")
    with checkpoint.refuse_damage(path):
        return state, *rebuild(state, device, dtype)


def rebuild(state, device="cpu", dtype="float32"):
    """Return the Family and the TaskModel from the dict of a model.pt. Its weights may be on a GPU."""
    saved = state["fine_tuned"]
    weights = {name: x.cpu() for name, x in state["model"].items()}
    settings = configurator.Settings(saved["settings"] | {"device": device, "dtype": dtype})
    family = saved["family"]
    dataset = Dataset("", family, saved["labels"], [], [], [], {}, {}, Task(family, **saved["task"]))
    task, model = build(settings, dataset, state | {"model": weights})
    model.head.load_state_dict(saved["head"])
    task.may_be_none = saved["may_be_none"]
    task.threshold = saved["threshold"]
    return task, model


def evaluate(task, model, examples, split=None):
    """Score examples. Returns {metric: percentage}, {metric: instances} (see eval/tasks/metrics.py) and the Answers.

    task: a Family. model: its TaskModel. split: "validation" or "test"; None to validate during training.
    """
    answers = task.predict(lambda items: predict(model, items), examples, split)
    instances = task.metrics(answers, examples)
    return {name: metrics.score(x) for name, x in instances.items()}, instances, answers


def write_result(cfg, dataset, task, model, run, state):
    """Score validation and test, and write all files to cfg.out_dir, result.json last. Returns its content.

    cfg: settings of finetune.py. run: what result.json says about the training: steps, lr, seed, checkpoint.
    state: the dict of the checkpoint.
    """
    validation, *_ = evaluate(task, model, dataset.validation, "validation")  # also sets task.threshold
    if cfg.save_model:
        save_model(cfg, dataset, task, model, state)
    test, instances, answers = evaluate(task, model, dataset.test, "test")
    corpora = map(dict.items, dataset.corpora.values())
    result = dict(
        task=dataset.name,
        family=dataset.family,
        labels=dataset.labels,
        main=dataset.main,
        baselines=baselines(dataset),
        counts=dataset.counts,
        test_set=data_id(dataset.test),
        **run,
        zero_shot=run["steps"] == 0,
        metrics={"validation": validation, "test": test},
        examples=dataset.sizes,
        settings={name: value for name, value in cfg.items() if name not in NO_PART}
        | {"code": CODE, "data": data_id(dataset.train, dataset.validation, *corpora), "protocol": task.protocol.name},
        versions=versions(torch.device(cfg.device)),
    )
    out = Path(cfg.out_dir)
    write_whole(out / "predictions.jsonl", lambda f: f.writelines(prediction_lines(answers, dataset.test)))
    arrays = {name: x.astype(np.float32) for name, x in instances.items()}
    write_whole(out / "instances.npz", lambda f: np.savez_compressed(f, **arrays))
    write_json(out / "result.json", result)
    return result


def prediction_lines(answers, examples):
    """Yield a line of predictions.jsonl, as bytes, for each example. An example without an id gets its number."""
    for number, (answer, example) in enumerate(zip(answers, examples), 1):
        id = metrics.in_set(getattr(example, "set", ""), getattr(example, "id", number))
        score = answer.score
        if score is not None:
            score = np.round(np.float64(score), 6).tolist()
        line = dict(id=id, gold=example.gold, predicted=answer.predicted, score=score)
        # UTF-8 cannot encode half a surrogate pair, so it is escaped.
        yield (json.dumps(line, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def table(result):
    """Return the scores of a result.json as text: a row for each metric, a column for each split and baseline."""
    columns = {split: result["metrics"][split] for split in ("test", "validation")}
    for name, scores in result["baselines"].items():
        columns[f"{name} (baseline)"] = scores
    row = "{:24}" + "{:>23}" * len(columns)
    lines = [row.format("in percent", *columns)]
    main = metrics.main_of(result["main"])
    for metric in columns["test"]:
        cells = [f"{metrics.rounded(its[metric], 2):.2f}" if metric in its else "" for its in columns.values()]
        lines.append(row.format(metric + " (main)" * (metric in main), *cells))
    if result["family"] == "ir":
        lines.append(f"zero-shot: {result['zero_shot']}; vectors are by {result['settings']['protocol']} protocol")
    return "\n".join(lines)


def data_id(*parts):
    """Return a checksum of examples and documents. It does not depend on where their files are."""
    value = 0
    for x in chain(*parts):
        value = zlib.crc32(repr(x[:3] if isinstance(x, Query) else x).encode(), value)  # without the corpus's path
    return f"{value:08x}"


def origin(state, path, given, random_weights):
    """Return what result.json says about the checkpoint that a run started from, as a dict.

    state, path: the checkpoint. given: the setting init_from, which names a model of the hub better than its folder.

    In the dict, `phases` says what was trained. `mask_ratio` is the largest of all phases, 0 for pure CLM. `data` is
    the fingerprint of the prepared data. For a model of the hub, whose training is unknown, they are empty.
    """
    phases = phases_of(state)
    settings = state["settings"]  # of train.py; {} for a model of the hub
    return dict(
        name=checkpoint.label(path if settings else given),
        path=str(path),
        revision=state.get("revision", ""),  # commit of a model of the hub
        step=state["step"],
        seed=settings.get("seed", 0),
        init_from=settings.get("init_from", ""),
        phases=phases,
        tokens=state.get("tokens", 0),
        flops=state.get("flops", 0.0),
        clm_steps=clm_steps(phases),
        mask_ratio=largest_mask_ratio(phases),
        untrained=random_weights,
        model=state["config"],
        settings=dict(settings),
        data=state.get("data", ""),
        parameters=sum(x.numel() for part, x in state["model"].items() if part != "head.weight"),  # of pretraining
    )
