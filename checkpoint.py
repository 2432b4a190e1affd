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
import pickle
import platform
import re
import sys
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from data import hub
from data.files import MALFORMED, write_whole
from data.objective import phases_of
from data.shards import draws_of, load_data
from data.tokenizer import Tokenizer
from errors import Damaged, DataError, protect_output
from model import PRESETS, ModelConfig, Transformer
from runtime import RESUME_MAY_CHANGE, resolve_auto, show

ROOT = Path(__file__).resolve().parent
SOURCES = "train.py", "model.py", "data/loader.py", "data/objective.py"  # what decides what a run learns

# What each checkpoint's dict has at least. A model of the hub has no settings.
PARTS = dict(step=int, model=dict, config=dict, settings=dict, tokenizer=dict, tokenizer_ranks=bytes)


def path_of(out_dir, step):
    """Return the path of a run's checkpoint at a step."""
    return Path(out_dir) / f"ckpt-{step}.pt"


def steps(out_dir):
    """Return the steps of the checkpoints in out_dir, ascending. Opens none."""
    names = (re.fullmatch(r"ckpt-(0|[1-9][0-9]*)\.pt", p.name) for p in Path(out_dir).glob("ckpt-*.pt") if p.is_file())
    return sorted(int(m[1]) for m in names if m)


def others(path):
    """Return which checkpoints lie beside a path at which there is none, for the end of a message."""
    names = [f"ckpt-{step}.pt" for step in steps(Path(path).parent)]
    return f" ({Path(path).parent} has {', '.join(names)})" if names else ""


def save(path, state):
    """Write a dict of tensors and plain values, all of it or nothing. Raises OSError where the disk is full."""
    try:
        write_whole(path, lambda f: torch.save(state, f))
    except RuntimeError as error:  # torch's zip writer raises this on top of the file's own error
        raise error.__context__ or error


@contextmanager
def trusting(path):
    """Raise Damaged for whatever goes wrong because a file is not as `save` wrote it: that takes many forms."""
    try:
        yield
    except (FileNotFoundError, PermissionError, Damaged, DataError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, pickle.UnpicklingError):  # torch's advice is to run what the file holds
            why = "it must hold tensors and plain values only"
        raise Damaged(f"{path} is damaged or not a checkpoint of this project: {why}") from error


def read(path, weights=True):
    """Return a checkpoint's dict, with its tensors on the CPU. Raises Damaged if it is not a whole checkpoint.

    weights=False: the tensors have a shape only, and their checksums are not computed.
    """
    with trusting(path):
        if weights:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                if bad := archive.testzip() or next((name for name in names if names.count(name) > 1), None):
                    raise ValueError(f"the checksum of its record {bad} is wrong, or it is there twice")
        state = torch.load(path, map_location="cpu" if weights else "meta", mmap=True, weights_only=True)
        if wrong := [name for name, kind in PARTS.items() if not isinstance(state[name], kind)]:
            raise ValueError(f"{', '.join(wrong)}: of another type")
        if weights:  # not before: the tokenizer's library must not see a damaged file
            tokenizer_of(state)
        if "hub" not in state:  # the key of an encoder of transformers
            model_from(state)
    return state


def newest(out_dir, report=print, weights=True):
    """Return the path and the dict of the newest checkpoint in out_dir that is whole, (None, None) if there are none.

    Damaged ones are reported. Raises Damaged if all are damaged. weights: see `read`.
    """
    found = steps(out_dir)
    for step in reversed(found):
        try:
            return path_of(out_dir, step), read(path_of(out_dir, step), weights)
        except Damaged as damaged:
            report(f"{damaged}; trying the one before it.")
        except FileNotFoundError:  # a run that is writing here has deleted it since it was listed
            return newest(out_dir, report, weights)
    if found:
        raise Damaged(f"no checkpoint in {out_dir} is whole; to start anew, remove the folder")
    return None, None


def load(path, need_tokenizer=True, report=print, ours=True):
    """Return a checkpoint's dict with its tensors on the CPU; of a hub folder the same, at step 0, without settings.

    path: see `find`. need_tokenizer: raise DataError, instead of leaving it out, if a hub folder has no tokenizer that
    can be used here. ours: refuse an encoder of the transformers library that finetune.py has kept. Raises Damaged or
    DataError.
    """
    _, state = newest(path, report)  # of the folder of a run
    if not state:
        found = find(path)
        state = hub.load(found, need_tokenizer, report) if found.is_dir() else read(found)
    if ours and "hub" in state:
        why = "its encoder is a model of transformers, which can be neither pretrained nor exported here"
        raise DataError(f"{path}: {why}; only `python -m eval.tasks predict` uses it")
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
    if ours := newest(local, report)[0]:
        return ours
    hint = "" if local.exists() else f": no such file{others(local)}; a model of the hub is hf:ORGANIZATION/NAME"
    raise DataError(f"{path or 'an empty path'} is neither a checkpoint nor a folder with one{hint}")


def shape(path):
    """Return the fields of the ModelConfig of what `find` finds. Reads no weights. Raises Damaged or DataError."""
    _, state = newest(path, lambda _: None, weights=False)  # what reads the weights reports damaged ones
    if state:
        return state["config"]
    found = find(path, files=("config.json",))
    return hub.shape(found / "config.json") if found.is_dir() else read(found, weights=False)["config"]


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
    model.load_state_dict(dict(state["model"]), assign=True)  # a copy: PyTorch would note `assign` in the original
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


def run_facts(cfg, config, data, tokenizer, device):
    """Return what each checkpoint of a run holds beside step, weights and optimizer, as a dict of plain values."""
    facts = dict(config=vars(config), settings=dict(cfg), data=data.fingerprint, versions=versions(device))
    facts["source"] = {file: (ROOT / file).read_text(encoding="utf-8") for file in SOURCES}
    return facts | dict(tokenizer=tokenizer.state(), tokenizer_ranks=tokenizer.file_bytes())


def open_records(facts, params, processes, resumed):
    """Write config.json about this start of a run and return its MetricsLog. The caller holds the lock of out_dir.

    facts: what `run_facts` returns. resumed: the dict of the checkpoint with which the run goes on; None for a new run.
    """
    cfg, out = facts["settings"], Path(facts["settings"]["out_dir"])
    for partial in out.glob("*.partial"):  # of a process that was killed, because only the lock's holder writes them
        if re.fullmatch(r"(ckpt-\d+\.pt|config\.json|metrics\.jsonl)\.\d+\.partial", partial.name):
            partial.unlink()
    record = dict(settings=cfg, model=facts["config"], parameters=sum(p.numel() for p in params), processes=processes)
    record |= dict(data_fingerprint=facts["data"], versions=facts["versions"], source=facts["source"])
    write_whole(out / "config.json", lambda f: f.write(json.dumps(record, indent=1).encode()))
    step = resumed["step"] if resumed else -1
    log = MetricsLog(out / "metrics.jsonl", step, cfg["wandb_project"], cfg)
    if resumed and resumed["log"] != log.checksum:
        print(f"{out}/metrics.jsonl has changed since this run wrote it: do not trust it up to step {step}")
    if changed := [file for file in SOURCES if resumed and resumed["source"].get(file) != facts["source"][file]]:
        print(f"{', '.join(changed)}: changed since step {step} of this run")
    return log


def conflicts(cfg):
    """Yield why a run with these settings cannot use its out_dir, one sentence each."""
    out = Path(cfg["out_dir"])
    if not cfg["resume"]:
        if steps(out) or (out / "config.json").exists() or (out / "metrics.jsonl").exists():
            yield f"{out} already holds a run: continue it with --resume=True, or give another --out_dir"
        return
    first_save = min(cfg["checkpoint_interval"], cfg["max_steps"], *cfg["keep_steps"])
    try:
        _, state = newest(out, lambda _: None, weights=False)
        if state:
            check_same_run(state, cfg, out)
        elif last_logged(out) > first_save:
            yield f"{out} has the log of a run whose checkpoints are gone: put them back, or remove the folder"
    except (Damaged, DataError) as error:
        yield str(error)


def check_same_run(state, cfg, path):
    """Raise DataError if a checkpoint is of a run with other data or other settings that decide what is learned."""
    before, now = state["settings"], resolve_auto(cfg)
    changed = [name for name in now if name not in RESUME_MAY_CHANGE and now[name] != before.get(name)]
    different = [f"{name}={now[name]}, but the run in {path} has {name}={before.get(name)}" for name in changed]
    if all(map(os.path.exists, draws_of(cfg["data"]))) and load_data(cfg["data"]).fingerprint != state["data"]:
        different.append(f"the data are not those that the run in {path} was trained on")
    if different:
        raise DataError(f"{'; '.join(different)}. To change what is learned, start another run with branch_from")


def check_data(cfg, changed, batches, step):
    """Raise Damaged if the background thread has found a shard that has changed; see `changed_shard_in_background`.

    changed: its Future, or None. batches: of training. step: the next one; before the last one, wait for the thread.
    """
    if changed and (changed.done() or step == cfg.max_steps - 1) and (path := changed.result()):
        first = batches.first_step_with(path, step)
        what = f"{path} has changed since it was prepared: mend it, or prepare the data again"
        raise Damaged(f"{what}. Checkpoints up to step {first} do not depend on it; remove later ones, then resume")


def load_optimizers(optimizers, state, path):
    """Load optimizers, a dict of them by their names in a checkpoint, in place. They keep their own settings."""
    if optimizers.keys() != {"optimizer", "muon"} & state.keys():
        raise DataError(f"{path} was trained with another optimizer; init_from takes its weights only")
    for name, optimizer in optimizers.items():
        ours = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        with trusting(path):
            optimizer.load_state_dict(state.pop(name))  # with the settings of the run that saved it
        optimizer.param_groups[0].update(ours)


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


def match(state, config, tokenizer, path, report):
    """Raise DataError unless a checkpoint's model has this shape, a dict, and this Tokenizer.

    The tokenizer's name may differ. So may the mask token if the model is from the hub: the data's is used. The context
    and its rotary positions may change, which is reported.
    """
    theirs, from_hub = tokenizer_of(state), not state["settings"]
    changed = {k: f"{k} is {v}, here {config[k]}" for k, v in state["config"].items() if v != config[k]}
    if context := [changed.pop(k) for k in ("seq_len", "rope_theta") if k in changed]:
        report(f"{path}: {'; '.join(context)}")
    different = [*changed.values()]
    same_ids = tokenizer.encodes_like(theirs) and tokenizer.eos_id == theirs.eos_id
    if not same_ids or not (from_hub or tokenizer.mask_id == theirs.mask_id):
        different.append(f"its tokenizer is {theirs.name}, here {tokenizer.name}")
    if different:
        why = f"{'; '.join(different)} (--model=origin takes the shape of init_from)"
        raise DataError(f"{path}: not a checkpoint of this model: {why}")


def restore(cfg, transformer, optimizers, tokenizer, rank, world_size):
    """Load what the run starts from, in place. Returns (step, phases so far, the checkpoint if it is resumed or None).

    In this order: the newest checkpoint in out_dir with resume, else branch_from, else init_from, else nothing.
    """
    print0 = print if rank == 0 else lambda _: None
    own = [newest(cfg.out_dir)[0] if cfg.resume and rank == 0 else None]  # one process verifies it
    if world_size > 1:
        dist.broadcast_object_list(own)
    resumed, path = own[0] is not None, own[0] or cfg.branch_from or cfg.init_from
    if not path:
        return 0, [], None
    state = load(path, report=print0)
    match(state, vars(transformer.config), tokenizer, path, print0)
    if resumed:  # again: this may be an older checkpoint than the one before any work
        check_same_run(state, cfg, path)
    transformer.load_state_dict(state.pop("model"))
    if not resumed and cfg.init_from:
        return 0, [], None
    load_optimizers(optimizers, state, path)
    if state["step"] > cfg.max_steps:
        raise DataError(f"{path} is at step {state['step']}, beyond max_steps={cfg.max_steps}")
    return state["step"], phases_of(state), state if resumed else None


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


def export(path, folder, kind):
    """Write a checkpoint as a new folder that transformers opens; see `data.hub.write_folder`."""
    hub.check_export(folder, kind)
    found = find(path)
    state = load(found)
    hub.write_folder(state, model_from(state), found, folder, kind)


def main():
    protect_output()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command = parser.add_subparsers(required=True).add_parser("export")
    command.add_argument("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or the folder of a run")
    command.add_argument("folder", metavar="FOLDER", help="a new folder")
    command.add_argument("--as", dest="kind", required=True, help=", ".join(hub.EXPORTS))
    args = parser.parse_args()
    try:
        export(args.checkpoint, args.folder, args.kind)
    except (Damaged, DataError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(f"stopped by Ctrl-C: {args.folder} was not written")
    print(f"wrote {args.folder}")


if __name__ == "__main__":
    main()
