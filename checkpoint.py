"""Checkpoints: on disk whole or absent, checked when they are read.

A checkpoint is one file, out_dir/ckpt-<step>.pt: a dict of tensors and plain values that
torch.load opens with weights_only=True. It is a zip archive whose every record carries a
CRC-32; torch.load does not look at those, so `load` does. The model folders of the Hugging Face
hub are read as checkpoints too, and a checkpoint is exported as one (data/hub.py):

    python checkpoint.py export out/demo exported/demo --as=eurobert
"""

import argparse
import json
import os
import platform
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch

from data import hub
from data.files import write_whole
from data.tokenizer import Tokenizer
from errors import Damaged, DataError
from model import PRESETS, ModelConfig, Transformer


def path_of(out_dir, step):
    return Path(out_dir) / f"ckpt-{step}.pt"


def steps(out_dir):
    """The steps of the checkpoints in out_dir, ascending. Only names are read."""
    names = (re.fullmatch(r"ckpt-(\d+)\.pt", p.name) for p in Path(out_dir).glob("ckpt-*.pt"))
    return sorted(int(m[1]) for m in names if m)


def save(path, state):
    """Writes a dict of tensors and plain values. OSError where the disk is full."""
    try:
        write_whole(path, lambda f: torch.save(state, f))
    except RuntimeError as error:  # torch's zip writer raises this on top of the file's own error
        raise error.__context__ or error


def verify(path):
    """Raises Damaged where the file is not a whole checkpoint: every record's checksum is computed."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
        state = torch.load(path, map_location="meta", mmap=True, weights_only=True)  # reads no tensor
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a broken archive shows itself in many ways
        raise Damaged(f"{path} is damaged or not a checkpoint ({error})") from error
    if bad:
        raise Damaged(f"{path} is damaged: the checksum of its record {bad} is wrong")
    if not (isinstance(state, dict) and {"step", "model", "config", "tokenizer"} <= state.keys()):
        raise Damaged(f"{path} is not a checkpoint of this project")


def load(path, verified=False, need_tokenizer=True, report=print):
    """The dict that `save` wrote, its tensors on the CPU; of a hub folder the same, at step 0 and without settings.

    path: see `find`. verified: `verify` has just been called, here or by another process; not again. need_tokenizer:
    DataError, instead of None, where a hub folder has no tokenizer that can be used here. Raises Damaged or DataError.
    """
    found = find(path, report=report)
    if found.is_dir():
        return hub.load(found, need_tokenizer, report)
    if not verified and found == Path(path):  # else `find` has
        verify(found)
    return torch.load(found, map_location="cpu", mmap=True, weights_only=True)


def find(path, files=("*.json", "model*.safetensors"), report=print):
    """The Path of what a person calls a checkpoint: a file, or a folder in the hub's format.

    path: a checkpoint, the folder of a run (its newest one), a folder in the hub's format, or hf:ORGANISATION/MODEL,
    one on the hub, of which `files` are then downloaded. Raises DataError, or Damaged.
    """
    if str(path).startswith("hf:"):
        return hub.download(str(path), files)
    local = Path(path)
    if local.is_file() or hub.is_model(local):
        return local
    if ours := newest(local, report):
        return ours
    missing = "" if local.exists() else ": no such file"
    raise DataError(f"{path or 'an empty path'} is neither a checkpoint nor a folder with one{missing}")


def shape(path):
    """The fields of a ModelConfig of what `find` finds. Reads, or downloads, no weights. Raises DataError, or Damaged."""
    files = [path_of(path, step) for step in reversed(steps(path))] or [find(path, files=("config.json",))]
    if files[0].is_dir():
        return hub.shape(files[0] / "config.json")
    for file in files:
        try:
            return torch.load(file, map_location="meta", mmap=True, weights_only=True)["config"]
        except Exception as error:
            fault = Damaged(f"{file} is damaged or not a checkpoint ({error})")
    raise fault


def model_config(settings, vocab_size):
    """The ModelConfig that train.py's settings describe.

    vocab_size: of the tokenizer; a larger one of the model that is gone on from stays.
    """
    changed = {name: settings[name] for name in vars(ModelConfig()) if settings.get(name)}
    base = PRESETS.get(settings["model"])
    if base is None:  # "origin"
        base = shape(settings["out_dir"] if steps(settings["out_dir"]) else settings["init_from"])
    return ModelConfig(**{**base, "vocab_size": max(vocab_size, base.get("vocab_size", 0)), **changed})


def tokenizer_of(state):
    """The Tokenizer of a checkpoint's dict."""
    return Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])


def model_from(state):
    """The Transformer of a checkpoint's dict, as `load` returns it; on the CPU, in fp32."""
    with torch.device("meta"):  # no memory, no initial weights: the state's tensors become the parameters
        model = Transformer(ModelConfig(**state["config"]))
    model.load_state_dict(state["model"], assign=True)
    if model.config.tie_embeddings:
        model.head.weight = model.embedding.weight
    return model


def load_model(path):
    """The Transformer of a checkpoint, or of a hub folder with or without a tokenizer; see `load`."""
    return model_from(load(path, need_tokenizer=False))


def problem(path):
    """Why `shape` fails, or an empty string."""
    try:
        shape(path)
    except (Damaged, DataError) as error:
        return str(error)
    return ""


def newest(out_dir, report=print):
    """The path of the newest checkpoint that is whole; None where there are none.

    Damaged ones are reported; Damaged is raised where there are only such.
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
        raise Damaged(f"no checkpoint in {out_dir} is whole; to begin anew, remove the folder")
    return None


def prune(out_dir, step, keep_last, keep_steps):
    """Deletes the checkpoints before `step` but for `keep_steps` and the newest `keep_last`, with that of `step`.

    Those after it stay: a run that resumed from `step` or earlier found them damaged.
    """
    for old in [s for s in steps(out_dir) if s <= step][:-keep_last]:
        if old not in keep_steps:
            path_of(out_dir, old).unlink()


def versions(device):
    """What a run was made with, for its records."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__, "device": name}


def record(path, facts, resumed_at=None):
    """Writes a run's config.json; where the run is resumed at a step, adds to what is there."""
    if resumed_at is not None:
        first = json.loads(path.read_text())
        facts = first | {"resumed": [*first.get("resumed", []), {"step": resumed_at, **facts}]}
    write_whole(path, lambda f: f.write(json.dumps(facts, indent=1).encode()))


def conflicts(out_dir, settings, fingerprint):
    """Yields why a run with these settings cannot use out_dir, a sentence each.

    settings: those that must be the same for the run in out_dir to be resumed; None if it is
    not to be. fingerprint: of the data at hand, or None where there are none yet.
    """
    facts = Path(out_dir) / "config.json"
    if not facts.exists():
        return
    if settings is None:
        yield f"{out_dir} already holds a run: --resume=True goes on with it, another --out_dir begins anew"
        return
    try:
        old = json.loads(facts.read_text())
    except ValueError as error:
        yield f"{facts} is damaged ({error})"
        return
    for name, value in json.loads(json.dumps(settings)).items():  # tuples as lists, as they are in the file
        if name in old["settings"] and value != old["settings"][name]:
            yield (f"{name}={value}, but the run in {out_dir} has {name}={old['settings'][name]}; "
                   "to change what is learned, begin another run with branch_from")  # fmt: skip
    if fingerprint not in (None, old["data_fingerprint"]):
        yield f"the data are not those that the run in {out_dir} was trained on"


def match(state, config, tokenizer, ranks, path):
    """SystemExit unless a checkpoint's model has the shape and the tokenizer that are asked for.

    Names may differ, and so may the mask where the model is the hub's: here it is the data's.
    """
    different = [f"{k} is {v}, here {config[k]}" for k, v in state["config"].items() if k != "seq_len" and v != config[k]]
    if not state["settings"] and config["seq_len"] > state["config"]["seq_len"]:
        different.append(f"seq_len is at most {state['config']['seq_len']}, here {config['seq_len']}")
    if different and not state["settings"]:
        different.append("--model=origin takes its shape")
    fields = ("pattern", "nfc", "eos_id") + ("mask_id",) * bool(state["settings"])
    if ranks != state["tokenizer_ranks"] or any(tokenizer.get(k) != state["tokenizer"].get(k) for k in fields):
        different.append(f"its tokenizer is {state['tokenizer']['name']}, here {tokenizer['name']}")
    if different:
        raise SystemExit(f"{path}: not a checkpoint of this model: {'; '.join(different)}")


def share(state, tokens):
    """What part of the budget of a model it is to go on from it for so many tokens; a sentence."""
    s = state["settings"]
    if not s:
        return f"init_from: {tokens:,} tokens more, of an original budget that is not known"
    before = state["step"] * s["global_batch_tokens"]
    return f"init_from: {tokens:,} tokens after {before:,}, {tokens / before:.1%} of the original budget"


class MetricsLog:
    """A run's metrics.jsonl: a JSON object a line, appended as the run goes.

    after: the step of the checkpoint that the run goes on from; what the log says about
    later steps is cut, because they will be done again. -1 begins the log anew. With
    wandb_project the lines also go to Weights & Biases (the wandb package), with settings.
    """

    def __init__(self, path, after=-1, wandb_project="", settings=None):
        lines = Path(path).read_bytes().splitlines(keepends=True) if after >= 0 and Path(path).exists() else []
        kept = [line for line in lines if line.endswith(b"\n") and json.loads(line)["step"] <= after]
        write_whole(path, lambda f: f.writelines(kept))
        self.file, self.wandb = open(path, "a", encoding="utf-8"), None
        if wandb_project:
            import wandb

            name = Path(path).parent.name  # a run that is resumed is several there, in one group
            self.wandb = wandb.init(project=wandb_project, name=name, group=name, config=settings)

    def write(self, **values):
        self.file.write(json.dumps(values) + "\n")
        self.file.flush()
        if self.wandb:
            self.wandb.log(values, step=values["step"])

    def sync(self):
        """Returns when all lines are on the disk. Called before a checkpoint is written."""
        os.fsync(self.file.fileno())


def export(path, folder, kind):
    """Write a checkpoint as a folder that transformers opens; see `data.hub.write_folder`."""
    if Path(folder).exists():
        raise DataError(f"{folder} is there already: give another folder")
    hub.write_folder(load(path), path, folder, kind)


def main():
    parser = argparse.ArgumentParser(description="Writes a checkpoint as a model folder of the Hugging Face hub.")
    command = parser.add_subparsers(required=True, metavar="export").add_parser("export")
    command.add_argument("checkpoint", help="a checkpoint, the folder of a run, or a model folder")
    command.add_argument("folder", help="the folder to write, which must not be there")
    command.add_argument("--as", dest="kind", choices=("eurobert", "llama"), required=True, help="an encoder, or a decoder")
    args = parser.parse_args()
    try:
        export(args.checkpoint, args.folder, args.kind)
    except (Damaged, DataError, OSError) as error:
        sys.exit(str(error))
    print(f"wrote {args.folder}")


if __name__ == "__main__":
    main()
