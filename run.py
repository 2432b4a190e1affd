"""What a run of train.py is: how it starts and resumes, and its records config.json and metrics.jsonl."""

import json
import math
import os
import platform
import re
import time
import zlib
from glob import glob
from pathlib import Path

import numpy as np
import torch

import checkpoint
import runtime
from configurator import read_script
from data.files import MALFORMED, refuse_malformed, write_json, write_whole
from data.prepare import EMBEDDED_FOLDER
from data.shards import CYCLE, draws_of, load_data
from errors import Damaged, DataError
from model import PRESETS, ModelConfig, Transformer
from runtime import resolve_auto, show

ROOT = Path(__file__).resolve().parent
SOURCES = sorted(glob("*.py", root_dir=ROOT) + glob("data/*.py", root_dir=ROOT))  # a run keeps a copy of these

# Settings of train.py that may differ when a run is resumed, because they do not change what is learned.
RESUME_MAY_CHANGE = set(
    "resume out_dir data micro_batch log_interval eval_interval checkpoint_interval keep_last keep_steps wandb_project "
    "verify_data device compile recompute deterministic shard".split()
)


def origin(cfg):
    """Return (setting, path) of what a run starts from: resume, branch_from or init_from, or two empty strings."""
    if cfg["resume"] and checkpoint.steps(cfg["out_dir"]):
        return "resume", cfg["out_dir"]
    for setting in "branch_from", "init_from":
        if cfg[setting]:
            return setting, cfg[setting]
    return "", ""


def model_config(settings, vocab_size):
    """Return the ModelConfig that train.py's settings describe.

    vocab_size: of the tokenizer. A larger one of the original model stays.
    """
    base = PRESETS.get(settings["model"])
    if base is None:  # "origin"
        _, path = origin(settings)
        base = checkpoint.shape(path)
    fields = {**base, "vocab_size": max(vocab_size, base.get("vocab_size", 0))}
    for name in vars(ModelConfig()):
        if settings.get(name):
            fields[name] = settings[name]
    return ModelConfig(**fields)


def batch_problems(cfg, T):
    """Yield what does not fit between train.py's settings, windows of T tokens and the data, one sentence each."""
    if T < 2:
        yield f"seq_len={T}: must be at least 2, as CLM does not predict the first token of a window"
        return
    windows = cfg.global_batch_tokens // T
    if cfg.global_batch_tokens % T:
        yield f"global_batch_tokens={cfg.global_batch_tokens}: must be a multiple of seq_len = {T}"
    if round(cfg.mask_ratio * T) == 0:
        yield f"mask_ratio={cfg.mask_ratio}: masks not one token of {T}"
    if cfg.clm_windows and not 0 < round(cfg.clm_windows * windows) < windows:
        yield f"clm_windows={cfg.clm_windows}: of the {windows} windows of a step, at least one must be CLM and one MLM"
    if cfg.window_split == "random" and T < 24:
        yield f"window_split=random: needs seq_len of at least 24, got {T}"
    if cfg.data == EMBEDDED_FOLDER and not Path(cfg.data).exists():  # train.py prepares it
        return
    try:
        data = load_data(cfg.data)
    except DataError as error:
        yield str(error)
        return
    vocab = next(iter(data.sources.values()))["tokenizer"]["vocab_size"]
    if 0 < cfg.vocab_size < vocab:
        yield f"vocab_size={cfg.vocab_size}: the tokenizer of {cfg.data} needs {vocab}"
    for folder, meta in data.sources.items():
        drawn = math.ceil(windows * data.draws[folder] / CYCLE)  # windows of a step, at most
        for split, needed in (("train", drawn * T), ("val", T)):
            tokens = meta["splits"][split]["tokens"]
            if tokens < needed:
                yield f"{folder}: {tokens} {split} tokens are fewer than the {needed} of one batch"


def start_problems(cfg, config):
    """Yield why a new run with this ModelConfig cannot start from its checkpoint, one sentence each. Reads no weights.

    `restore` compares the tokenizers, whose sizes may differ here.
    """
    setting, path = origin(cfg)
    if setting not in ("branch_from", "init_from"):
        return
    _, state = checkpoint.open_newest(path, weights=False)
    different, _ = shape_differences(state["config"], vars(config) | {"vocab_size": state["config"]["vocab_size"]})
    if different:
        yield f"{path}: {'; '.join(different)}"
    if setting == "branch_from":
        step, optimizer = state.get("step", 0), state.get("settings", {}).get("optimizer")
        if step > cfg.max_steps:
            yield f"max_steps={cfg.max_steps}: {path} is at step {step}"
        if optimizer != cfg.optimizer:
            yield f"optimizer={cfg.optimizer}: that of {path} is {optimizer}. init_from takes its weights only"


# ----------------------------------------------------------------------------
# Is it the same run?


def conflicts(cfg):
    """Yield why a run with these settings cannot use its out_dir, one sentence each."""
    out = Path(cfg["out_dir"])
    config = out / "config.json"
    records = [path for path in (config, out / "metrics.jsonl") if path.exists()]
    if odd := [path for path in records if not path.is_file()]:  # opening a pipe would wait for ever
        yield f"{odd[0]} is no regular file: move it away, or give another --out_dir"
        return
    begun = checkpoint.steps(out)
    if not cfg["resume"]:
        if begun or records:
            yield f"{out} already holds a run: continue it with --resume=True, or give another --out_dir"
        return
    try:
        if begun:
            _, state = checkpoint.open_newest(out, weights=False)
            check_same_run(state, cfg, out)
            return
        interval = cfg["checkpoint_interval"]
        if config.exists():
            with refuse_malformed(f"{config} is not of a run of train.py: give another --out_dir"):
                interval = json.loads(config.read_bytes())["settings"]["checkpoint_interval"]
        log = read_metrics(out)
        if log and log[-1]["step"] - log[0]["step"] > interval:  # it must have had a checkpoint
            yield f"{out} has the log of a run whose checkpoints are gone: put them back, or give another --out_dir"
    except DataError as error:
        yield str(error)


def check_same_run(state, cfg, path):
    """Raise DataError if a checkpoint is of a run with other data or other settings that decide what is learned."""
    before, now = state["settings"], resolve_auto(cfg)
    defaults, _ = read_script(ROOT / "train.py")  # a setting that the run does not know had no effect then
    different = []
    for name, value in now.items():
        earlier = before.get(name, defaults.get(name))
        if name not in RESUME_MAY_CHANGE and value != earlier:
            different.append(f"{name}={value}, but the run in {path} has {name}={earlier}")
    if all(os.path.exists(folder) for folder in draws_of(cfg["data"])):
        if load_data(cfg["data"]).fingerprint != state["data"]:
            different.append(f"the data are not those that the run in {path} was trained on")
    if different:
        raise DataError(f"{'; '.join(different)}. To change what is learned, start another run with branch_from")


def shape_differences(theirs, ours):
    """Return what differs between two shapes, dicts, as two lists of sentences: what must be equal, and the context."""
    different, context = [], []
    for name, value in theirs.items():
        if value != ours.get(name):
            sentences = context if name in ("seq_len", "rope_theta") else different
            sentences.append(f"{name} is {value}, here {ours.get(name)}")
    if different:
        different[-1] += " (--model=origin takes the shape of what the run starts from)"
    return different, context


def check_same_model(state, config, tokenizer, path, report):
    """Raise DataError unless a checkpoint's model has this shape, a dict, and this Tokenizer.

    The tokenizer's name may differ. So may the mask token if the model is from the hub: the data's is used. The context
    and its rotary positions may change, which is reported.
    """
    different, context = shape_differences(state["config"], config)
    if context:
        report(f"{path}: {'; '.join(context)}")
    theirs = checkpoint.tokenizer_of(state, path)
    same_ids = tokenizer.encodes_like(theirs) and tokenizer.eos_id == theirs.eos_id
    from_hub = not state["settings"]
    if not same_ids or not (from_hub or tokenizer.mask_id == theirs.mask_id):
        why = f"its tokenizer is {theirs.name}, here {tokenizer.name}"
        different.append(f"{why}: prepare the text with that of the checkpoint")
    if different:
        raise DataError(f"{path}: not a checkpoint of this model: {'; '.join(different)}")


# ----------------------------------------------------------------------------
# Start


def restore(cfg, transformer, optimizers, tokenizer, rank, world_size, sharded):
    """Load what the run starts from, in place.

    Returns (step, what was trained so far, the checkpoint if it is resumed or None). What was trained is a dict:
    `phases` (see `data.objective.add_step`), `tokens`, the `seconds` that its steps took, their `flops`, and
    `verified`, up to which step the data are known to have been as they were prepared.

    In this order: the newest checkpoint in out_dir with resume, else branch_from, else init_from, else nothing.
    sharded: only rank 0 reads the file, or draws the weights if there is none.
    """
    setting, path = origin(cfg)
    state = None
    print0 = print if rank == 0 else lambda _: None
    nothing = dict(phases=[], tokens=0, seconds=0.0, flops=0.0, verified=0)
    if rank == 0 and path:
        found, state = checkpoint.open_newest(path)
        if not path.startswith("hf:"):  # another node has a hub model elsewhere
            path = found
    setting, path = runtime.decision_of_rank_0((setting, path))
    if not path:
        if sharded:
            torch.manual_seed(cfg.seed)
            drawn = Transformer(transformer.config) if rank == 0 else transformer
            runtime.scatter_weights(transformer, drawn.state_dict())
        return 0, nothing, None
    if sharded:
        state = runtime.from_rank_0(state)
    elif rank > 0:
        state = checkpoint.load(path, report=print0)
    check_same_model(state, vars(transformer.config), tokenizer, path, print0)
    checkpoint.check_weights(transformer, state, path)
    load = runtime.scatter_weights if sharded else Transformer.load_state_dict
    load(transformer, state.pop("model"))
    if setting == "init_from":
        return 0, nothing, None
    load_optimizers(optimizers, state, path)
    trained = {name: state[name] for name in nothing}
    return state["step"], trained, state if setting == "resume" else None


def load_optimizers(optimizers, state, path):
    """Load a dict of optimizers by name from a checkpoint's dict, in place. Their groups keep their own settings."""
    saved = state.pop("optimizer", {})
    if saved.keys() != optimizers.keys():
        names = f"{', '.join(saved)}; here they are {', '.join(optimizers)}"
        raise DataError(f"{path} has other optimizers: {names}. init_from takes its weights only")
    for name, optimizer in optimizers.items():
        groups = optimizer.state_dict()["param_groups"]
        members = [group["params"] for group in groups]
        if members != [group["params"] for group in saved[name]["param_groups"]]:
            raise DataError(f"{path}: {name} has other groups of parameters here. init_from takes its weights only")
        runtime.scatter_optimizer(optimizer, saved[name])
        optimizer.load_state_dict({"state": saved[name]["state"], "param_groups": groups})


# ----------------------------------------------------------------------------
# Records


def versions(device):
    """Return the versions and the device that a run uses, as a dict of strings for its records."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return dict(python=platform.python_version(), torch=str(torch.__version__), numpy=np.__version__, device=name)


def run_facts(cfg, config, data, tokenizer, device):
    """Return what each checkpoint of a run holds beside step, weights and optimizers, as a dict of plain values."""
    return dict(
        config=vars(config),
        settings=dict(cfg),
        data=data.fingerprint,
        versions=versions(device),
        source={file: (ROOT / file).read_text(encoding="utf-8") for file in SOURCES},
        tokenizer=tokenizer.state(),
        tokenizer_ranks=tokenizer.content,
    )


def open_records(facts, params, processes, resumed):
    """Write config.json and source/ about this start of a run, and return its MetricsLog.

    The caller holds the lock of out_dir. facts: what `run_facts` returns. resumed: the dict of the checkpoint with
    which the run goes on; None for a new run.
    """
    cfg = facts["settings"]
    out = Path(cfg["out_dir"])
    remove_partial_files(out)
    record = dict(
        settings=cfg,
        model=facts["config"],
        parameters=sum(p.numel() for p in params),
        processes=processes,
        data_fingerprint=facts["data"],
        versions=facts["versions"],
    )
    write_json(out / "config.json", record)
    for name, text in facts["source"].items():
        path = out / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(text.encode()))
    step = resumed["step"] if resumed else -1
    log = MetricsLog(out / "metrics.jsonl", step, cfg["wandb_project"], cfg)
    if resumed:
        if resumed["log"] != log.checksum:
            print(f"{out}/metrics.jsonl has changed since this run wrote it: do not trust it up to step {step}")
        changed = [file for file in SOURCES if resumed["source"].get(file) != facts["source"][file]]
        if changed:
            print(f"{', '.join(changed)}: changed since step {step} of this run")
    return log


def remove_partial_files(out):
    """Remove what a process that was killed had begun to write. Only the lock's holder writes such files."""
    for path in [*out.glob("*.partial"), *out.glob("source/**/*.partial")]:
        if re.fullmatch(r"[\w-]+\.(pt|json|jsonl|npz|py)\.\d+\.partial", path.name):
            path.unlink()


def read_metrics(out_dir):
    """Return the whole lines of a run's metrics.jsonl, a dict each; [] if there is none.

    Raises DataError if a line is something else.
    """
    path = Path(out_dir) / "metrics.jsonl"
    if not path.is_file():
        return []
    lines = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):  # a process is writing it, or was killed
                break
            try:
                values = json.loads(line)
                values["step"] + 1
            except MALFORMED:
                expected = 'expected an object with a step, as {"step": 10, "loss": 5.1}; mend or delete this line'
                raise DataError(f"{path}, line {number}: {line[:60]!r}: {expected}") from None
            lines.append(values)
    return lines


def last_logged(out_dir):
    """Return the last step in a run's metrics.jsonl; 0 without one."""
    return max((line["step"] for line in read_metrics(out_dir)), default=0)


class MetricsLog:
    """A run's metrics.jsonl: one JSON object per line, appended as the run goes.

    after: the step of the checkpoint from which the run continues. Lines about later steps are cut, because
    those steps will be done again. -1 starts a new log. With wandb_project the lines also go to
    Weights & Biases (the wandb package), with the settings. `checksum` is that of all lines so far: each checkpoint
    holds it, so that a change of the file is noticed.
    """

    def __init__(self, path, after=-1, wandb_project="", settings=None):
        lines = read_metrics(path.parent) if after >= 0 else []
        kept = "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= after).encode()
        write_whole(path, lambda file: file.write(kept))
        self.file = open(path, "ab")
        self.checksum = zlib.crc32(kept)
        self.wandb = None
        if wandb_project:
            show(self.start_wandb, wandb_project, path.parent.name, settings)

    def start_wandb(self, project, name, settings):
        import wandb

        # Every start of a run is one run there; all are in one group.
        self.wandb = wandb.init(project=project, name=name, group=name, config=settings)

    def write(self, **values):
        line = json.dumps(values).encode() + b"\n"
        self.file.write(line)
        self.file.flush()
        self.checksum = zlib.crc32(line, self.checksum)
        if self.wandb:
            show(self.wandb.log, values, values["step"])

    def sync(self):
        """Wait until all lines are on the disk, and return their checksum for the checkpoint that is written next."""
        os.fsync(self.file.fileno())
        return self.checksum


# ----------------------------------------------------------------------------
# The data may change while a run trains


def check_data(changed, trained, first, wait=False, received=()):
    """Raise Damaged if the background thread has found a shard that has changed. If it found none, note `first`.

    changed: the Future of `changed_shard_in_background`, or None. trained: see `restore`. first: the step at which this
    process began. What is whole now was whole then. wait: until all data are read, or a signal to stop is in the list
    `received`.
    """
    if wait and changed and not changed.done():
        print("waiting for the checksums of the data")
        while not changed.done() and not received:
            time.sleep(1)
    if not changed or not changed.done():
        return
    if changed.result():
        what = f"{changed.result()} has changed since it was prepared: restore it, or prepare the data again"
        spoiled = f"those after step {trained['verified']}"
        raise Damaged(f"{what}. Remove the checkpoints that it may have spoiled, {spoiled}, then resume")
    trained["verified"] = first
