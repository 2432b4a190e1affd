"""The class Run, which owns a run of train.py: it checks the settings, resumes, logs and saves checkpoints."""

import json
import math
import os
import platform
import re
import signal
import sys
import time
import warnings
import zlib
from copy import deepcopy
from functools import lru_cache, partial
from glob import glob
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import checkpoint
import model_checks
import runtime
from configurator import read_script, value_problems
from data import flops, validation
from data import objective as objectives
from data.files import MALFORMED, lock_folder, refuse_malformed, write_json, write_whole
from data.loader import make_batches, prefetch, to_device
from data.shards import CYCLE, EMBEDDED_FOLDER, changed_shard_in_background, draws_of, load_data, load_tokenizer
from errors import Damaged, DataError, progress, show, stop_signals
from model import PRESETS, ModelConfig, Transformer, triton, why_not_triton
from runtime import resolve_auto

ROOT = Path(__file__).resolve().parent
SOURCES = sorted(glob("*.py", root_dir=ROOT) + glob("data/*.py", root_dir=ROOT))  # a run keeps a copy of these

# Settings of train.py that may differ when a run is resumed, because they do not change what is learned.
RESUME_MAY_CHANGE = set(
    "resume out_dir data micro_batch log_interval eval_interval checkpoint_interval keep_last keep_steps "
    "verify_data device compile recompute deterministic shard".split()
)
NOT_TRAINED = set(  # the keys of a checkpoint that are not in `Run.trained`
    "step log model optimizer config settings data versions schedule source tokenizer tokenizer_ranks".split()
)
PATHS = "out_dir", "data", "branch_from", "init_from"  # settings that may differ between the processes of a run


def origin(cfg):
    """Return the setting that says what a run starts from (resume, branch_from or init_from), and its path.

    Both are empty for a run that starts from random weights.
    """
    if cfg["resume"] and checkpoint.steps(cfg["out_dir"]):
        return "resume", cfg["out_dir"]
    for setting in "branch_from", "init_from":
        if cfg[setting]:
            return setting, cfg[setting]
    return "", ""


def model_config(settings, vocab_size):
    """Return the ModelConfig that train.py's settings describe.

    vocab_size: the tokenizer's. If that of the original model is larger, it stays.
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


# ----------------------------------------------------------------------------
# What can be wrong with the settings

LIMITS = [
    ("at least", 1, "max_steps global_batch_tokens micro_batch eval_windows keep_last"),
    ("at least", 1, "log_interval eval_interval checkpoint_interval"),
    ("at least", 0, "switch_step warmup_steps decay_steps seed clm_windows mask_proportions vocab_size"),
    ("at least", 0, "beta1 beta2 weight_decay"),
    ("above", 0, "lr embedding_lr_scale eps grad_clip mask_ratio keep_steps"),  # eps = 0 divides by 0 for unseen tokens
    ("below", 1, "beta1 beta2 clm_windows mask_ratio"),
]
CHOICES = {
    "model": [*PRESETS, "origin"],
    "window_split": ["none", "random", "document"],
    "predict_from": ["mask", "before"],
    "loss": ["fused", "plain"],
    "optimizer": ["adamw", "muon"],
    "attention": ["auto", "triton", "sdpa", "reference"],
}


def check(cfg):
    """Yield what is wrong with a run of these settings, one sentence each.

    `found` carries results from one part to the next: `origin`, the path of a checkpoint that can be read, and
    `config`, the ModelConfig. They stay empty where something was wrong.
    """
    found = SimpleNamespace(origin="", config=None)
    for part in CHECKS:
        yield from part(cfg, found)


def check_settings(cfg, found):
    yield from runtime.device_problems(cfg)
    yield from value_problems(cfg, LIMITS, CHOICES)
    shown = cfg.mask_proportions
    if len(shown) != 3 or abs(sum(shown) - 1) > 1e-6:
        yield f"mask_proportions={shown}: must be 3 numbers with sum 1"
    needed = max(cfg.switch_step, cfg.warmup_steps + cfg.decay_steps)
    if needed > cfg.max_steps >= 1:
        yield (
            f"max_steps={cfg.max_steps}: the schedule has {needed} steps; give more, or a smaller --switch_step, "
            "--warmup_steps or --decay_steps"
        )
    if cfg.loss == "fused" and any(map(model_checks.loss_is_edited, (True, False))):
        yield "loss=fused: it differs from --loss=plain. Edit only `plain_loss` or `logits`, and give --loss=plain"
    if cfg.branch_from and cfg.init_from:
        yield "branch_from and init_from: give one of them"


def check_shape(cfg, found):
    _, path = origin(cfg)
    why = checkpoint.problem(path) if path else ""
    if why:
        yield why
    else:
        found.origin = path
    if cfg.model == "origin" and not path:
        yield "model=origin: give init_from or branch_from, which it takes the shape of"
    if cfg.model in PRESETS or (cfg.model == "origin" and found.origin):
        found.config = config = model_config(cfg, vocab_size=128)
        yield from config.problems()
        if cfg.attention != "reference" and model_checks.attention_is_edited(config.seq_len):
            yield f"attention={cfg.attention}: `attention_mask` in model.py is edited: give --attention=reference"
        if cfg.attention == "triton":
            machine = resolve_auto(cfg)
            if why := why_not_triton(machine.device, config.head_dim, getattr(torch, machine.dtype, None)):
                yield f"attention=triton: {why}"


def check_data(cfg, found):
    if not found.config:
        return
    T = found.config.seq_len
    if T < 2:
        yield f"seq_len={T}: must be at least 2, as CLM does not predict the first token of a window"
        return
    windows = cfg.global_batch_tokens // T
    if cfg.global_batch_tokens % T:
        yield f"global_batch_tokens={cfg.global_batch_tokens}: must be a multiple of seq_len = {T}"
    if round(cfg.mask_ratio * T) == 0:
        yield f"mask_ratio={cfg.mask_ratio}: masks none of the {T} tokens of a window"
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
        for split, needed, unit in (
            ("train", drawn * T, "batch: give more text or a smaller --global_batch_tokens"),
            ("val", T, "window: give a smaller --seq_len, or prepare the text with a larger --val_fraction"),
        ):
            tokens = meta["splits"][split]["tokens"]
            if tokens < needed:
                yield f"{folder}: {tokens} {split} tokens are fewer than the {needed} of one {unit}"


def check_folder(cfg, found):
    """Yield why out_dir cannot hold this run: it holds another one, or something that no run wrote."""
    out = Path(cfg.out_dir)
    config = out / "config.json"
    begun = checkpoint.steps(out)
    if not cfg.resume:
        if begun or config.exists() or (out / "metrics.jsonl").exists():
            yield f"{out} already holds a run: continue it with --resume=True, or give another --out_dir"
        return
    try:
        if begun:
            _, state = checkpoint.open_newest(out, weights=False)
            yield from run_differences(state, cfg, out)
            return
        interval = cfg.checkpoint_interval
        if config.exists():
            with refuse_malformed(f"{config} is not from a run of train.py: give another --out_dir"):
                interval = json.loads(config.read_bytes())["settings"]["checkpoint_interval"]
        log = read_metrics(out)
        if log and log[-1]["step"] - log[0]["step"] > interval:  # it must have had a checkpoint
            yield f"{out} has the log of a run whose checkpoints are gone: put them back, or give another --out_dir"
    except DataError as error:
        yield str(error)


def check_start(cfg, found):
    """Yield why a new run cannot start from its checkpoint. Reads no weights; `restore` compares the tokenizers."""
    setting, path = origin(cfg)
    if setting not in ("branch_from", "init_from") or not (found.config and found.origin):
        return
    _, state = checkpoint.open_newest(path, weights=False)
    theirs = state["config"]
    different, _ = shape_differences(theirs, vars(found.config) | {"vocab_size": theirs["vocab_size"]})
    if different:
        yield f"{path}: {'; '.join(different)}"
    if setting == "branch_from":
        step = state.get("step", 0)
        optimizer = state.get("settings", {}).get("optimizer")
        if step > cfg.max_steps:
            yield f"max_steps={cfg.max_steps}: {path} is at step {step}"
        if optimizer != cfg.optimizer:
            yield f"optimizer={cfg.optimizer}: that of {path} is {optimizer}. Use init_from to take its weights only"


CHECKS = check_settings, check_shape, check_data, check_folder, check_start


# ----------------------------------------------------------------------------
# Is it the same run?


def run_differences(state, cfg, path):
    """Yield a sentence if a checkpoint is of a run with other data or other settings that decide what is learned."""
    before = state["settings"]
    now = resolve_auto(cfg)
    defaults, _ = read_script(ROOT / "train.py")  # a setting that is newer than the run had its default effect
    different = []
    for name, value in now.items():
        earlier = before.get(name, defaults.get(name))
        if name not in RESUME_MAY_CHANGE and value != earlier:
            different.append(f"{name}={value}, but the run in {path} has {name}={earlier}")
    for name in sorted(before.keys() - now.keys()):
        different.append(f"the run in {path} has {name}={before[name]}, which is not a setting of train.py now")
    if all(os.path.exists(folder) for folder in draws_of(cfg["data"])):
        if load_data(cfg["data"]).fingerprint != state["data"]:
            different.append(f"the data are not those that the run in {path} was trained on")
    if different:
        yield f"{'; '.join(different)}. To change what is learned, start another run with branch_from"


def shape_differences(theirs, ours):
    """Return two lists of sentences on how two shapes (dicts) differ: in what must be equal, and in the context."""
    different = []
    context = []
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
    if state["settings"]:  # a model of the hub has none
        same_ids &= tokenizer.mask_id == theirs.mask_id
    if not same_ids:
        different.append(
            f"its tokenizer is {theirs.name}, here {tokenizer.name}: prepare the text with that of the checkpoint"
        )
    if different:
        raise DataError(f"{path}: not a checkpoint of this model: {'; '.join(different)}")


# ----------------------------------------------------------------------------
# The run


class Run:
    """A run of train.py on one of its processes: the machine, the data, the records, and what has been trained so far.

    `first`: how many steps were done when this process started. `step`: how many are done now. `is_complete`: weights,
    counts and log are at the same step, so a checkpoint may be saved. `last`, `switches`, `stopping`: the newest step
    ends the run, ends a phase, or is the last one because a signal came.
    `trained` goes into each checkpoint: `phases` (see `data.objective.add_step`), `tokens`, `seconds` and `flops` of
    all steps, and `verified`, the step up to which the data are known to be as they were prepared.
    """

    def __init__(self, cfg, objective):
        """Set up this process, lock out_dir and open the data. Rank 0 prepares the embedded data if missing."""
        self.cfg = cfg
        self.out = Path(cfg.out_dir)
        self.device, self.rank, self.world_size = runtime.set_up(cfg.device, cfg.deterministic)
        self.sharded = cfg.shard and self.world_size > 1
        problems = []
        if self.rank == 0:
            try:
                self.lock = lock_folder(cfg.out_dir)
                if cfg.data == EMBEDDED_FOLDER:
                    from data.prepare import prepare_embedded  # here, because few runs prepare text

                    prepare_embedded(cfg.data)
                problems += check(cfg)  # again: the folder is locked now, and the data are there
            except (DataError, OSError) as error:
                problems.append(str(error))
        if problems := runtime.decision_of_rank_0(problems):
            runtime.refuse_together("; ".join(problems))
        self.data = load_data(cfg.data)
        self.tokenizer = load_tokenizer(self.data)
        self.config = model_config(cfg, self.tokenizer.vocab_size)
        self.versions = versions(self.device)
        self.source = {file: (ROOT / file).read_text(encoding="utf-8") for file in SOURCES}
        self.compare_settings()
        self.train_batches, self.val_batches = make_batches(cfg, self.data, self.tokenizer, self.config.seq_len)
        groups_of = partial(objectives.group_windows, objective, cfg, self.train_batches.windows_per_step)
        self.groups_of = lru_cache(8)(groups_of)
        self.sampled, self.predict_from = objectives.look_ahead(groups_of, cfg.max_steps, self.train_batches)
        self.schedule = objectives.checksum_of(self.sampled)  # differs between processes if it uses hash("a text")
        compare_processes({"what `objective` in train.py returns": self.schedule})

    def compare_settings(self):
        """Raise DataError unless all processes have the same settings, data, code and versions.

        Paths may differ. `restore` compares the content of the checkpoints.
        """
        facts = {name: value for name, value in self.cfg.items() if name not in PATHS}
        facts |= {f"{name} is given": bool(self.cfg[name]) for name in PATHS}
        facts |= {name: self.versions[name] for name in ("torch", "numpy", "triton")}
        facts["the fingerprint of the data"] = self.data.fingerprint[:12]
        for file, text in self.source.items():
            facts[f"the checksum of {file}"] = f"{zlib.crc32(text.encode()):08x}"
        compare_processes(facts)

    # What a step trains. groups_of(step) is {objective: the numbers of its windows}.

    def parts_of(self, step):
        return objectives.micro_batches(self.groups_of(step), self.cfg.micro_batch, self.rank, self.world_size)

    def names_of(self, step):
        return objectives.names_of(self.groups_of(step))

    def phase_of(self, step):
        return objectives.phase_of(self.groups_of(step))

    def next_batch(self):
        return to_device(next(self.batches), self.device)

    # ------------------------------------------------------------------------
    # The start

    def start(self, transformer, loss_module, optimizers):
        """Load what the run starts from, prepare its first batches, and open its records."""
        cfg = self.cfg
        self.transformer = transformer
        self.optimizers = optimizers
        self.optimizer_settings = {name: deepcopy(opt.state_dict()["param_groups"]) for name, opt in optimizers.items()}
        self.restore()
        if self.device.type == "cuda" and cfg.attention == "auto":
            model_checks.set_attention(transformer, self.device, self.versions, self.resumed)
        steps = range(self.first, cfg.max_steps)
        work = ((step, part.windows) for step in steps for part in self.parts_of(step))
        self.batches = prefetch(self.train_batches.micro_batch, work)
        self.ddp_loss = loss_module
        if self.world_size > 1 and not self.sharded and steps:
            part = self.parts_of(self.first)[0]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*broadcast_buffers")  # torch 2.13 has another name for it
                options = dict(broadcast_buffers=False, gradient_as_bucket_view=True)
                self.ddp_loss = DistributedDataParallel(loss_module, **options)
            # DDP rearranges its buckets after its first backward pass, which changes the order of its sums. A pass
            # whose gradient is thrown away does this now, so a resumed run sums in the same order as one that never
            # stopped.
            batch = to_device(self.train_batches.micro_batch(self.first, part.windows), self.device)
            self.ddp_loss(batch, part.causal)[0].backward()
            self.ddp_loss.zero_grad(set_to_none=False)
        self.checksums = None  # a Future: the first damaged shard of the data, or None
        paths = [os.path.realpath(folder) for folder in self.data.sources]
        elsewhere = paths != runtime.decision_of_rank_0(paths)
        if cfg.verify_data and (elsewhere or not runtime.local_rank()):  # once for each node and path
            self.checksums = changed_shard_in_background(self.data)
        if self.rank == 0:
            self.open_records()
        self.received = stop_signals()
        self.step = self.first
        self.is_complete = True
        self.phase, self.stopping, self.last, self.switches = "", False, not steps, False
        self.compiled = set()  # the phases that have begun

    def restore(self):
        """Load the newest checkpoint in out_dir with resume, else that of branch_from, else the weights of init_from.

        With shards, only rank 0 reads the file, or draws the weights if there is none. The paths may differ between
        processes, but the content must be the same.
        """
        transformer = self.transformer
        state = self.resumed = None
        self.first = 0
        self.trained = dict(phases=[], tokens=0, seconds=0.0, flops=0.0, verified=0)
        setting, path = origin(self.cfg)
        if self.rank == 0 and path:
            found, state = checkpoint.open_newest(path)
            path = str(found) if setting == "resume" else path
        setting, path_of_rank_0 = runtime.decision_of_rank_0((setting, path))
        if not setting:
            if self.sharded:
                torch.manual_seed(self.cfg.seed)
                drawn = Transformer(self.config) if self.rank == 0 else transformer
                runtime.scatter_weights(transformer, drawn.state_dict())
            return
        print0 = print if self.rank == 0 else lambda _: None
        path = path_of_rank_0 if setting == "resume" else self.cfg[setting]
        if self.rank > 0 and (not self.sharded or path != path_of_rank_0):
            _, state = checkpoint.open_newest(path, report=print0)
        if self.world_size > 1:
            compare_processes({f"the content of {setting}": state and f"{checkpoint.checksum(state):08x}"})
        if self.sharded:
            state = runtime.from_rank_0(state)
        check_same_model(state, vars(self.config), self.tokenizer, path, print0)
        checkpoint.check_weights(transformer, state, path)
        load = runtime.scatter_weights if self.sharded else Transformer.load_state_dict
        load(transformer, state.pop("model"))
        if setting == "init_from":
            return
        load_optimizers(self.optimizers, state, path, print0)
        self.first = state["step"]
        self.trained |= {name: value for name, value in state.items() if name not in NOT_TRAINED}
        self.resumed = state if setting == "resume" else None
        earlier = state.get("schedule", self.schedule)
        if self.resumed and earlier != self.schedule and state["source"] == self.source:
            raise DataError(
                f"{path}: when it was made, `objective` in train.py returned something else. It must depend on its "
                "arguments only: for a random choice take data.loader.hashed(cfg.seed, step, window), not "
                'hash("a text")'
            )

    def open_records(self):
        """Write config.json and source/, and open the log. Only rank 0 calls this."""
        cfg, out, resumed = self.cfg, self.out, self.resumed
        remove_partial_files(out)
        record = dict(
            settings=dict(cfg),
            model=vars(self.config),
            parameters=sum(p.numel() for p in self.transformer.parameters()),
            processes=self.world_size,
            data_fingerprint=self.data.fingerprint,
            versions=self.versions,
        )
        write_json(out / "config.json", record)
        for name, text in self.source.items():
            path = out / "source" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lambda file: file.write(text.encode()))
        self.log = MetricsLog(out / "metrics.jsonl", resumed["step"] if resumed else -1)
        if resumed:
            if resumed["log"] != self.log.checksum:
                print(
                    f"{out}/metrics.jsonl has changed since this run wrote it: do not trust it up to step {self.first}"
                )
            changed = [file for file in SOURCES if resumed["source"].get(file) != self.source[file]]
            if changed:
                print(f"{', '.join(changed)}: changed since step {self.first} of this run")

    # ------------------------------------------------------------------------
    # The steps

    def steps(self):
        """Yield the number of each step that is left, until a signal asks to stop."""
        first = self.first
        total = self.cfg.max_steps
        self.bar = progress(total=total, initial=first, unit="steps", mininterval=0.5, disable=self.rank > 0)
        if first == total:  # a finished run also notices changed data
            self.poll()
        for step in range(first, total):
            self.last = step + 1 == total
            self.started = time.perf_counter()
            yield step
            self.bar.update()
            if self.stopping:
                return

    def finish_step(self, step):
        """Add a step to the totals in `trained`, and set `step`, `phase`, `switches` and `stopping`."""
        cfg, trained, groups = self.cfg, self.trained, self.groups_of(step)
        self.poll()  # with several GPUs, this waits for the update
        objectives.add_step(trained["phases"], groups)
        trained["tokens"] += sum(map(len, groups.values())) * self.config.seq_len
        trained["seconds"] += time.perf_counter() - self.started
        trained["flops"] += flops.step_flops(self.transformer, groups, cfg.window_split)
        self.step = step + 1
        self.phase = self.phase_of(step)
        if self.phase not in self.compiled:
            self.compiled.add(self.phase)
            self.before = dict(trained)  # the throughput leaves out the first step of a phase, which compiles
        # Phases may also alternate from step to step, so only the first four changes count as switches.
        self.switches = len(trained["phases"]) < 5 and not self.last and self.phase_of(step + 1) != self.phase

    def poll(self):
        """Set `stopping` if any process got a signal. Raise Damaged on all if any has found a damaged shard.

        At the end of the run, wait until all checksums are computed, or until a signal comes.
        """
        checksums = self.checksums
        if self.last and checksums and not checksums.done():
            print("waiting for the checksums of the data")
            while not checksums.done() and not self.received:
                time.sleep(1)
        has_read = checksums is None or checksums.done()
        damaged = checksums.result() if checksums and has_read else None
        unknown = not (self.cfg.verify_data and has_read)
        self.stopping, any_damaged, any_unknown = runtime.any_process((self.received, damaged, unknown), self.device)
        if any_damaged:
            (path, *_) = filter(None, runtime.from_all(damaged and f"{damaged} on {platform.node()}"))
            self.ddp_loss = None  # before its process group
            runtime.refuse_together(
                f"{path} has changed since it was prepared: restore it, or prepare the data again. Remove the "
                f"checkpoints that it may have spoiled, those after step {self.trained['verified']}, then resume",
                Damaged,
            )
        if not any_unknown:  # all shards are intact, so they were in every step before this start
            self.trained["verified"] = self.first

    def is_due(self, interval):
        return self.step % interval == 0 or self.last

    # ------------------------------------------------------------------------
    # The log and the checkpoints

    def throughput(self, loss):
        """Return the tokens per second since the last call, for the log, and show them in the progress bar."""
        seconds, tokens, count = (self.trained[name] - self.before[name] for name in ("seconds", "tokens", "flops"))
        self.before = dict(self.trained)
        speed = round(tokens / seconds) if seconds else None
        mfu = flops.utilization(self.cfg.dtype, count / self.world_size, seconds, self.device)
        self.bar.set_postfix(phase=self.phase, loss=f"{loss:.3f}", tok_s=f"{speed or 0:,}", **mfu, refresh=False)
        return {"tokens_per_s": speed}

    def losses(self, step, sums):
        """Return the mask ratio of a step and, if it has several objectives, the loss of each. sums: see train.py."""
        values = {}
        names = self.names_of(step)
        if ratio := max(objective.mask_ratio for objective in self.groups_of(step)):
            values["mask_ratio"] = ratio
        if len(names) > 1:
            for name, (loss_sum, count) in zip(names, sums.tolist()):
                values[f"{name.replace(' ', '_')}_loss"] = loss_sum / (count or 1.0)
        return values

    def evaluate(self, loss_module):
        """Return the validation losses; see data/validation.py."""
        return validation.evaluate(loss_module, self.val_batches, self.predict_from, self.cfg.micro_batch, self.device)

    def write(self, values):
        """Write the line of the last step to the log, if there are values for it."""
        if self.rank == 0 and values:
            trained = self.trained
            totals = dict(tokens=trained["tokens"], seconds=round(trained["seconds"], 2), flops=trained["flops"])
            phase = self.phase or self.phase_of(min(self.step, self.cfg.max_steps - 1))
            self.log.write(step=self.step, phase=phase, **totals, **values)

    def save(self):
        """Write a checkpoint, then delete those that need not be kept. With shards, all processes call this.

        Raises DataError, and saves nothing, if a weight or a value of an optimizer is not finite.
        """
        if self.rank > 0 and not self.sharded:
            return
        cfg, step, transformer = self.cfg, self.step, self.transformer
        optimizers = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        model, optimizers, trained = runtime.whole((transformer.state_dict(), optimizers, self.trained))
        if self.rank > 0:
            return
        for name, leaf in checkpoint.leaves({"model": model, "optimizer": optimizers, **trained}):
            if isinstance(leaf, torch.Tensor) and not leaf.isfinite().all():
                self.is_complete = False
                raise DataError(f"step {step}: {name} is not finite, so it is not saved. {self.restart_advice()}")
        if self.config.tie_embeddings:
            model["head.weight"] = model["embedding.weight"]
        for name, optimizer in optimizers.items():
            optimizer["settings"] = self.optimizer_settings[name]
        state = dict(
            **trained,  # a second value for one of the names below is a TypeError
            step=step,
            log=self.log.sync(),
            model=model,
            optimizer=optimizers,
            config=vars(self.config),
            settings=dict(cfg),
            data=self.data.fingerprint,
            versions=self.versions,
            schedule=self.schedule,
            source=self.source,
            tokenizer=self.tokenizer.state(),
            tokenizer_ranks=self.tokenizer.content,
        )
        checkpoint.save(checkpoint.path_of(cfg.out_dir, step), state)
        keep = cfg.keep_last if step == cfg.max_steps else max(2, cfg.keep_last)  # the next step might diverge
        checkpoint.prune(cfg.out_dir, step, keep, (*cfg.keep_steps, cfg.switch_step))

    def restart_advice(self):
        """Return how to go on after the loss diverged. A checkpoint is only saved if all its numbers are finite."""
        if saved := checkpoint.steps(self.out):
            return f"Branch off the checkpoint of step {saved[-1]}, which is finite; a lower lr often helps."
        return "Start again; a lower lr often helps."

    # ------------------------------------------------------------------------
    # The end

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """If an error ends the loop, save the newest step if it is complete. After damaged data, save nothing."""
        lost = isinstance(error, Exception) and not isinstance(error, Damaged)
        if lost and self.rank == 0 and self.is_complete and self.step > self.first and not self.sharded:
            show(self.save)

    def end(self):
        """Leave the process group. After a signal, exit as a shell expects, so that Ctrl-C also ends a shell's loop."""
        del self.ddp_loss  # before its process group: the other order can deadlock in gloo's destructor
        if self.world_size > 1:
            dist.barrier()
            dist.destroy_process_group()
        if signal.SIGINT in self.received:
            raise KeyboardInterrupt
        if self.stopping:
            sys.exit(128 + (self.received[-1] if self.received else signal.SIGTERM))


def compare_processes(facts):
    """Raise DataError on all processes unless their `facts`, a dict by name, are equal. All of them must call this.

    The value None means that a process does not know a fact.
    """
    everyone = runtime.from_all(facts)
    different = []
    for name, value in everyone[0].items():
        ranks = [rank for rank, theirs in enumerate(everyone) if theirs.get(name) not in (value, None)]
        if ranks:
            other = everyone[ranks[0]][name]
            different.append(f"{name}: {value} on process 0, {other} on process {', '.join(map(str, ranks))}")
    if different:
        runtime.refuse_together(f"the processes of a run must be equal, but they differ in {'; '.join(different)}")


def load_optimizers(optimizers, state, path, report):
    """Load a dict of optimizers by name from a checkpoint's dict, in place.

    Options of a group, such as weight_decay, stay as `make_optimizers` gives them, and a difference is reported. What
    the optimizer itself has changed while training, such as a count of steps, comes from the checkpoint.
    """
    saved = state.pop("optimizer", {})
    if saved.keys() != optimizers.keys():
        raise DataError(
            f"{path} has other optimizers: {', '.join(saved)}; here they are {', '.join(optimizers)}. Use init_from to "
            "take its weights only"
        )
    for name, optimizer in optimizers.items():
        groups = optimizer.state_dict()["param_groups"]
        theirs = saved[name]["param_groups"]
        if [group["params"] for group in groups] != [group["params"] for group in theirs]:
            raise DataError(f"{path}: {name} has other parameter groups here. Use init_from to take its weights only")
        given = saved[name].get("settings", theirs)
        for number, group in enumerate(groups):
            for key, value in theirs[number].items():
                if key == "lr":  # the schedule sets it in each step
                    continue
                if plain(value) != plain(given[number].get(key)):
                    group[key] = value
                elif plain(value) != plain(group.get(key)):
                    report(f"{path}: {key} of {name}, group {number}, was {value} and is now {group.get(key)}")
        runtime.scatter_optimizer(optimizer, saved[name])
        optimizer.load_state_dict({"state": saved[name]["state"], "param_groups": groups})


def plain(x):
    """Return a tensor as numbers, and anything else as it is, so that two of them can be compared."""
    return x.tolist() if isinstance(x, torch.Tensor) else x


# ----------------------------------------------------------------------------
# Records


def versions(device):
    """Return the versions and the device that a run uses, as a dict of strings for its records."""
    return dict(
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=np.__version__,
        triton=getattr(triton, "__version__", "none"),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
    )


def remove_partial_files(out):
    """Remove files that a killed process had begun to write. Call this with the folder's lock held."""
    for path in [*out.glob("*.partial"), *out.glob("source/**/*.partial")]:
        if re.fullmatch(r"[\w-]+\.(pt|json|jsonl|npz|py)\.\d+\.partial", path.name):
            path.unlink()


def read_metrics(out_dir):
    """Return the complete lines of a run's metrics.jsonl, a dict each; [] if there is no file.

    Raises DataError if a line is not an object with a step.
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
                raise DataError(
                    f"{path}, line {number}: {line[:60]!r}: expected an object with a step, as "
                    '{"step": 10, "loss": 5.1}; fix or delete this line'
                ) from None
            lines.append(values)
    return lines


def last_logged(out_dir):
    """Return the last step in a run's metrics.jsonl; 0 without one."""
    return max((line["step"] for line in read_metrics(out_dir)), default=0)


class MetricsLog:
    """A run's metrics.jsonl: one JSON object per line, appended as the run goes.

    after: the step of the checkpoint from which the run continues; -1 starts a new log. Lines of later steps are
    removed, because those steps will run again. `checksum` is that of all lines so far. Each checkpoint holds it,
    so that a change of the file is noticed.
    """

    def __init__(self, path, after=-1):
        lines = read_metrics(path.parent) if after >= 0 else []
        kept = "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= after).encode()
        write_whole(path, lambda file: file.write(kept))
        self.file = open(path, "ab")
        self.checksum = zlib.crc32(kept)

    def write(self, **values):
        line = json.dumps(values).encode() + b"\n"
        self.file.write(line)
        self.file.flush()
        self.checksum = zlib.crc32(line, self.checksum)

    def sync(self):
        """Wait until all lines are on the disk, and return their checksum for the checkpoint that is written next."""
        os.fsync(self.file.fileno())
        return self.checksum
