"""Checkpoints and the other records of a run: config.json and metrics.jsonl.

A checkpoint is one file, out_dir/ckpt-<step>.pt: a dict of tensors and plain values that
torch.load opens with weights_only=True. On disk it is whole or absent. It is a zip archive
in which every record has a CRC-32. torch.load does not check those, so `load` does. Model
folders of the Hugging Face hub are read as checkpoints too, and a checkpoint can be exported
as one (data/hub.py):

    python checkpoint.py export out/demo exported/demo --as=eurobert
"""

import argparse
import json
import os
import platform
import re
import sys
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from configurator import convert
from data import hub
from data.files import MALFORMED, write_whole
from data.shards import check_shards, load_meta, shard_stamps
from data.tokenizer import Tokenizer
from errors import Damaged, DataError
from model import PRESETS, ModelConfig, Transformer
from runtime import RESUME_MAY_CHANGE, resolve_auto

ROOT = Path(__file__).resolve().parent


def path_of(out_dir, step):
    """Return the path of a run's checkpoint at a step."""
    return Path(out_dir) / f"ckpt-{step}.pt"


def steps(out_dir):
    """Return the steps of the checkpoints in out_dir, ascending. Opens none."""
    names = (re.fullmatch(r"ckpt-(0|[1-9][0-9]*)\.pt", p.name) for p in Path(out_dir).glob("ckpt-*.pt") if p.is_file())
    return sorted(int(m[1]) for m in names if m)


def save(path, state):
    """Write a dict of tensors and plain values, all of it or nothing. Raises OSError where the disk is full."""
    try:
        write_whole(path, lambda f: torch.save(state, f))
    except RuntimeError as error:  # torch's zip writer raises this on top of the file's own error
        raise error.__context__ or error


def header(path):
    """Return a checkpoint's dict with tensors that have a shape only. Raises Damaged if it cannot be opened."""
    try:
        state = torch.load(path, map_location="meta", mmap=True, weights_only=True)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a broken archive fails in many ways
        raise Damaged(f"{path} is damaged or not a checkpoint ({error})") from error
    if not (isinstance(state, dict) and {"step", "model", "config", "tokenizer"} <= state.keys()):
        raise Damaged(f"{path} is not a checkpoint of this project")
    return state


def verify(path):
    """Raise Damaged unless the file is a whole checkpoint. Computes the checksum of every record."""
    header(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            bad = archive.testzip() or next((name for name in names if names.count(name) > 1), None)
    except Exception as error:
        raise Damaged(f"{path} is damaged ({error})") from error
    if bad:
        raise Damaged(f"{path} is damaged: the checksum of its record {bad} is wrong, or it is there twice")


def load(path, verified=False, need_tokenizer=True, report=print, ours=True):
    """Return a checkpoint's dict with its tensors on the CPU. A hub folder gives the same, at step 0 and without settings.

    path: see `find`. verified: `verify` has just been called for this file. need_tokenizer: raise DataError, instead of
    leaving it out, if a hub folder has no tokenizer that can be used here. ours: refuse an encoder of the transformers
    library that finetune.py has kept. Raises Damaged or DataError.
    """
    found = find(path, report=report)
    if found.is_dir():
        return hub.load(found, need_tokenizer, report)
    if not verified and found == Path(path):  # `find` has verified the newest one of a folder
        verify(found)
    state = torch.load(found, map_location="cpu", mmap=True, weights_only=True)
    if ours and "hub" in state:
        why = "its encoder is a model of transformers, which can be neither pretrained nor exported here"
        raise DataError(f"{found}: {why}; only `python -m eval.tasks predict` uses it")
    return state


def find(path, files=("*.json", "model*.safetensors"), report=print):
    """Return the Path of a checkpoint file or of a hub folder.

    path: a checkpoint, the folder of a run (its newest checkpoint), a hub folder, or hf:ORGANIZATION/MODEL, of which
    `files` are then downloaded. Raises Damaged or DataError.
    """
    if str(path).startswith("hf:"):
        return hub.download(str(path), files)
    local = Path(path)
    if local.is_file() or hub.is_model(local):
        return local
    if ours := newest(local, report):
        return ours
    hint = "" if local.exists() else ": no such file; a model of the hub is hf:ORGANIZATION/NAME"
    hint = f"; give {local / 'model.pt'}" if (local / "model.pt").exists() else hint
    raise DataError(f"{path or 'an empty path'} is neither a checkpoint nor a folder with one{hint}")


def newest_header(out_dir):
    """Return the header of the newest checkpoint in out_dir that can be opened; None where there is none."""
    for step in reversed(steps(out_dir)):
        with suppress(Damaged):  # `newest` reports it
            return header(path_of(out_dir, step))
    return None


def shape(path):
    """Return the fields of the ModelConfig of what `find` finds. Reads no weights. Raises Damaged or DataError."""
    if state := newest_header(path):
        return state["config"]
    found = find(path, files=("config.json",))
    return hub.shape(found / "config.json") if found.is_dir() else header(found)["config"]


def model_config(settings, vocab_size):
    """Return the ModelConfig that train.py's settings describe.

    vocab_size: of the tokenizer. A larger one of the original model stays.
    """
    changed = {name: settings[name] for name in vars(ModelConfig()) if settings.get(name)}
    base = PRESETS.get(settings["model"])
    if base is None:  # "origin"
        base = shape(settings["out_dir"] if steps(settings["out_dir"]) else settings["init_from"])
    return ModelConfig(**{**base, "vocab_size": max(vocab_size, base.get("vocab_size", 0)), **changed})


def tokenizer_of(state):
    """Return the Tokenizer of a checkpoint's dict."""
    return Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])


def model_from(state):
    """Return the Transformer of a dict that `load` has returned; on the CPU, in fp32."""
    with torch.device("meta"):  # no memory, no initial weights: the state's tensors become the parameters
        model = Transformer(ModelConfig(**state["config"]))
    model.load_state_dict(state["model"], assign=True)
    if model.config.tie_embeddings:
        model.head.weight = model.embedding.weight
    return model


def load_model(path):
    """Return the Transformer of a checkpoint or a hub folder; see `find`. A hub folder needs no tokenizer here."""
    return model_from(load(path, need_tokenizer=False))


def problem(path):
    """Return why `shape` fails, or an empty string."""
    try:
        shape(path)
    except (Damaged, DataError) as error:
        return str(error)
    return ""


def newest(out_dir, report=print):
    """Return the path of the newest checkpoint that is whole, or None where there are no checkpoints.

    Damaged ones are reported. Raises Damaged where all are damaged.
    """
    error = None
    for step in reversed(steps(out_dir)):
        try:
            verify(path_of(out_dir, step))
            return path_of(out_dir, step)
        except Damaged as damaged:
            error = damaged
            report(f"{error}; trying the one before it.")
    if error:
        raise Damaged(f"no checkpoint in {out_dir} is whole; to start anew, remove the folder")
    return None


def prune(out_dir, step, keep_last, keep_steps):
    """Delete the checkpoints up to `step`, except the newest `keep_last` of them and those of `keep_steps`.

    Later ones stay: a run that resumed from `step` or earlier found them damaged.
    """
    for old in [s for s in steps(out_dir) if s <= step][:-keep_last]:
        if old not in keep_steps:
            path_of(out_dir, old).unlink()


def versions(device):
    """Return the versions and the device that a run uses, as a dict of strings for its records."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return dict(python=platform.python_version(), torch=str(torch.__version__), numpy=np.__version__, device=name)


def run_facts(cfg, config, meta, tokenizer, device):
    """Return what each checkpoint of a run holds beside step, weights and optimizer, as a dict of plain values."""
    facts = dict(config=vars(config), settings=dict(cfg), data=meta["fingerprint"], versions=versions(device))
    facts["shards"] = shard_stamps(cfg["data"], meta)
    return facts | dict(tokenizer=tokenizer.state(), tokenizer_ranks=tokenizer.file_bytes())


def open_records(facts, params, processes, resumed):
    """Write a run's config.json and return its MetricsLog. The caller holds the lock of out_dir.

    facts: what `run_facts` returns. resumed: the dict of the checkpoint with which the run goes on; None for a new run.
    """
    cfg, out = facts["settings"], Path(facts["settings"]["out_dir"])
    for partial in out.glob("*.partial"):  # of a process that was killed, because only the lock's holder writes them
        if re.fullmatch(r"(ckpt-\d+\.pt|config\.json|metrics\.jsonl)\.\d+\.partial", partial.name):
            partial.unlink()
    record = {
        "settings": cfg,
        "model": facts["config"],
        "parameters": sum(p.numel() for p in params),
        "processes": processes,
        "data_fingerprint": facts["data"],
        "versions": facts["versions"],
        "source": {file: (ROOT / file).read_text() for file in ("train.py", "model.py", "data/loader.py")},
    }
    step = resumed["step"] if resumed else -1
    if resumed:
        first = read_config(out) or record  # if it is missing or damaged: the checkpoint had the same settings
        record = first | {"resumed": [*first.get("resumed", []), {"step": step, **record}]}
    write_whole(out / "config.json", lambda f: f.write(json.dumps(record, indent=1).encode()))
    log = MetricsLog(out / "metrics.jsonl", step, cfg["wandb_project"], cfg)
    if resumed and resumed.get("log", log.checksum) != log.checksum:
        print(f"{out}/metrics.jsonl has changed since this run wrote it: do not trust it up to step {step}")
    return log


def read_config(out_dir):
    """Return a run's config.json as a dict; {} where it is missing or damaged."""
    try:
        record = json.loads((Path(out_dir) / "config.json").read_bytes())
        first_save(record["settings"])
        return record if isinstance(record.get("resumed", []), list) else {}
    except MALFORMED:
        return {}


def first_save(settings):
    """Return the step of a run's first checkpoint."""
    return min(settings["checkpoint_interval"], settings["max_steps"], *settings["keep_steps"])


def conflicts(cfg):
    """Yield why a run with these settings cannot use its out_dir, one sentence each."""
    out, state, logged = Path(cfg["out_dir"]), newest_header(cfg["out_dir"]), last_logged(cfg["out_dir"])
    if not cfg["resume"] and (steps(out) or any((out / name).exists() for name in ("config.json", "metrics.jsonl"))):
        yield f"{out} already holds a run: continue it with --resume=True, or give another --out_dir"
    elif state:
        fingerprint = None
        with suppress(DataError):  # where the data cannot be read, something else says so
            fingerprint = load_meta(cfg["data"])["fingerprint"]
        yield from changes(state, cfg, fingerprint, out)
    elif not steps(out) and logged > first_save(read_config(out).get("settings", cfg)):
        yield f"{out} has the log of a run to step {logged}, but its checkpoints are gone: put them back, or remove the folder"


def changes(state, cfg, fingerprint, path):
    """Yield what differs between the run of a checkpoint and one with these settings and data, one sentence each."""
    for name, value in resolve_auto(cfg).items():
        before = convert(state["settings"].get(name, value), value)  # a setting that has become a tuple
        if name not in RESUME_MAY_CHANGE and value != before:
            yield (
                f"{name}={value}, but the run in {path} has {name}={before}; to change what is learned, "
                "start another run with branch_from"
            )
    if fingerprint not in (None, state["data"]):
        yield f"the data are not those that the run in {path} was trained on"


def load_optimizers(optimizers, state, path):
    """Load optimizers, a dict of them by their names in a checkpoint, in place. They keep their own settings."""
    if optimizers.keys() != {"optimizer", "muon"} & state.keys():
        raise DataError(f"{path} was trained with another optimizer; init_from takes its weights only")
    for name, optimizer in optimizers.items():
        ours = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        optimizer.load_state_dict(state.pop(name))  # with the settings of the run that saved it
        optimizer.param_groups[0].update(ours)


def check_unchanged(state, cfg, meta, path):
    """Raise DataError if a checkpoint is of a run with other settings or data than this one, or if a shard has changed."""
    if different := list(changes(state, cfg, meta["fingerprint"], path)):
        raise DataError("; ".join(different))
    if "shards" in state:  # older checkpoints do not say
        check_shards(cfg["data"], meta, state["shards"])


def read_metrics(out_dir):
    """Return the whole lines of a run's metrics.jsonl, a dict each. Raises DataError if a line is something else."""
    path, lines = Path(out_dir) / "metrics.jsonl", []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):  # a process is writing it, or was killed
                break
            try:
                lines.append(json.loads(line))
                lines[-1]["step"] + 1
            except MALFORMED:
                expected = 'expected an object with a step, as {"step": 10, "loss": 5.1}; mend or delete this line'
                raise DataError(f"{path}, line {number}: {line[:60]!r}: {expected}") from None
    return lines


def last_logged(out_dir):
    """Return the last step in the whole lines of a run's metrics.jsonl; 0 without one."""
    path = Path(out_dir) / "metrics.jsonl"
    content = path.read_bytes() if path.is_file() else b""
    return max(map(int, re.findall(rb'"step": (\d{1,18}),.*\n', content)), default=0)


def match(state, config, tokenizer, path):
    """Raise DataError unless a checkpoint's model has this shape, a dict, and this Tokenizer.

    The tokenizer's name may differ. So may the mask token if the model is from the hub: the data's is used.
    """
    theirs, from_hub = tokenizer_of(state), not state["settings"]
    different = [
        f"{k} is {v}, here {config[k]}" for k, v in state["config"].items() if k != "seq_len" and v != config[k]
    ]
    if from_hub and config["seq_len"] > state["config"]["seq_len"]:
        different.append(f"seq_len is at most {state['config']['seq_len']}, here {config['seq_len']}")
    if different and from_hub:
        different.append("--model=origin takes its shape")
    same_ids = tokenizer.encodes_like(theirs) and tokenizer.eos_id == theirs.eos_id
    if not same_ids or not (from_hub or tokenizer.mask_id == theirs.mask_id):
        different.append(f"its tokenizer is {theirs.name}, here {tokenizer.name}")
    if different:
        raise DataError(f"{path}: not a checkpoint of this model: {'; '.join(different)}")


def budget_note(state, cfg):
    """Return a sentence that compares the tokens of continued pretraining with what the model has seen before.

    It also says if this begins with the same batches again. cfg: train.py's settings.
    """
    settings, tokens = state["settings"], cfg.max_steps * cfg.global_batch_tokens
    if not settings:
        return f"init_from: {tokens:,} tokens more, of an original budget that is not known"
    before = state["step"] * settings["global_batch_tokens"]
    again = (settings["data"], settings["seed"]) == (cfg.data, cfg.seed)
    hint = ". Its data and seed are the same, so its batches come again: give another --seed" * again
    return f"init_from: {tokens:,} tokens after {before:,}, {tokens / before:.1%} of the original budget{hint}"


class MetricsLog:
    """A run's metrics.jsonl: one JSON object per line, appended as the run goes.

    after: the step of the checkpoint from which the run continues. Lines about later steps are cut, because
    those steps will be done again. -1 starts a new log. With wandb_project the lines also go to
    Weights & Biases (the wandb package), with the settings. `checksum` is that of all lines so far: each checkpoint
    holds it, so that a change of the file is noticed.
    """

    def __init__(self, path, after=-1, wandb_project="", settings=None):
        path = Path(path)
        lines = read_metrics(path.parent) if after >= 0 and path.exists() else []
        kept = "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= after).encode()
        write_whole(path, lambda f: f.write(kept))
        self.file, self.wandb, self.checksum = open(path, "ab"), None, zlib.crc32(kept)
        if wandb_project:
            import wandb

            name = path.parent.name  # every start of a run is one run there; all are in one group
            self.wandb = wandb.init(project=wandb_project, name=name, group=name, config=settings)

    def write(self, **values):
        line = json.dumps(values).encode() + b"\n"
        self.file.write(line)
        self.file.flush()
        self.checksum = zlib.crc32(line, self.checksum)
        if self.wandb:
            self.wandb.log(values, step=values["step"])

    def sync(self):
        """Wait until all lines are on the disk, and return their checksum for the checkpoint that is written next."""
        os.fsync(self.file.fileno())
        return self.checksum


def export(path, folder, kind):
    """Write a checkpoint as a folder that transformers opens; see `data.hub.write_folder`."""
    if Path(folder).exists():
        raise DataError(f"{folder} is there already: give another folder")
    hub.check_kind(shape(path), kind, path)
    found = find(path)
    hub.write_folder(load(found), found, folder, kind)


def main():
    parser = argparse.ArgumentParser(description="Write a checkpoint as a model folder of the Hugging Face hub.")
    command = parser.add_subparsers(required=True, metavar="export").add_parser("export")
    command.add_argument("checkpoint", help="a checkpoint, the folder of a run, or a model folder")
    command.add_argument("folder", help="the folder to write, which must not be there")
    command.add_argument(
        "--as", dest="kind", choices=("eurobert", "llama", "qwen3"), required=True, help="an encoder, or a decoder"
    )
    args = parser.parse_args()
    try:
        export(args.checkpoint, args.folder, args.kind)
    except (Damaged, DataError, OSError) as error:
        sys.exit(str(error))
    print(f"wrote {args.folder}")


if __name__ == "__main__":
    main()
