"""The checkpoint of a run: one file, out_dir/ckpt-<step>.pt.

It holds a dict of tensors and plain values that torch.load opens with weights_only=True. On disk it is complete or
absent. The file is a zip archive with a CRC-32 for each record. torch.load does not check those, so `read` does. Model
folders of the Hugging Face hub are read as checkpoints too, and a checkpoint can be exported as one (data/hub.py):

    python checkpoint.py export CHECKPOINT_OR_RUN FOLDER --as=eurobert

The folder must be new. eurobert is an encoder, llama a decoder, and qwen3 either one, if the model began as a Qwen 3.
"""

import pickle
import re
import zipfile
import zlib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import contextmanager
from pathlib import Path

from errors import Damaged, DataError, exit_with_message  # first: it says what to install

# isort: split
import torch

from data.files import is_model, misfits, refuse_existing, write_whole
from data.tokenizer import Tokenizer
from model import ModelConfig, Transformer
from runtime import weights_on_meta

# The keys that every checkpoint has. For a model of the hub, `settings` is empty.
PARTS = {"step", "model", "config", "settings", "tokenizer", "tokenizer_ranks"}
MODEL = Path(__file__).with_name("model.py").read_text(encoding="utf-8")
HUB_FILES = ("*.json", "model*.safetensors")  # the files of a hub model that are downloaded


# ----------------------------------------------------------------------------
# Names and files


def path_of(out_dir, step):
    """Return the path of a run's checkpoint at a step."""
    return Path(out_dir) / f"ckpt-{step}.pt"


def label(path):
    """Return a checkpoint's name in results: its folder and step, such as demo-650, or the name of a hub folder."""
    path = Path(path).resolve()
    if path.suffix == ".pt":
        return f"{path.parent.name}-{path.stem.removeprefix('ckpt-')}"
    return path.name


def steps(out_dir):
    """Return the steps of the checkpoints in out_dir, ascending. Opens none."""
    names = [path.name for path in Path(out_dir).glob("ckpt-*.pt") if path.is_file()]
    return sorted(int(name[5:-3]) for name in names if re.fullmatch(r"ckpt-(0|[1-9][0-9]*)\.pt", name))


def save(path, state):
    """Write a dict of tensors and plain values, all of it or nothing. Raises OSError where the disk is full."""
    try:
        write_whole(path, lambda file: torch.save(state, file))
    except RuntimeError as error:  # torch's zip writer raises this on top of the file's own error
        raise error.__context__ or error


def prune(out_dir, step, keep_last, keep_steps):
    """Delete the checkpoints up to `step`, except the newest `keep_last` of them and those of `keep_steps`.

    Later ones stay: they are damaged, or this run would have resumed from them.
    """
    earlier = [other for other in steps(out_dir) if other <= step]
    for old in {*earlier[:-keep_last]} - {*keep_steps}:
        path_of(out_dir, old).unlink()


# ----------------------------------------------------------------------------
# Reading


def hub():
    """Import and return data/hub.py, which most runs do not need."""
    from data import hub

    return hub


@contextmanager
def refuse_damage(path):
    """Turn the errors of a file that is not as `save` wrote it, which are of many kinds, into Damaged."""
    try:
        yield
    except (FileNotFoundError, PermissionError, DataError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, pickle.UnpicklingError):  # torch's message advises to run the code in the file
            why = "it must hold tensors and plain values only"
        raise Damaged(f"{path} is damaged or not a checkpoint of this project: {why}") from error


def read(path, weights=True):
    """Return a checkpoint's dict, with its tensors on the CPU. Raises Damaged if it is not as `save` wrote it.

    weights=False: the tensors have shapes only, and no checksum is checked.
    """
    with refuse_damage(path):
        if weights:
            with zipfile.ZipFile(path) as archive:
                if damaged := archive.testzip():
                    raise ValueError(f"the checksum of its record {damaged} is wrong")
        state = torch.load(path, map_location="cpu" if weights else "meta", mmap=True, weights_only=True)
        if missing := PARTS - state.keys():
            raise ValueError(f"it has no {', '.join(missing)}")
    return state


def candidates(path, files=HUB_FILES):
    """Return the paths that may hold the checkpoint `path`, the newest first.

    path: a checkpoint, the folder of a run (all of its checkpoints), a model folder, or hf:ORGANIZATION/MODEL, of which
    `files` are then downloaded. Raises DataError if there are none.
    """
    if str(path).startswith("hf:"):
        return [hub().download(str(path), files)]
    local = Path(path)
    found = [path_of(local, step) for step in reversed(steps(local))]
    if found:
        return found
    if local.is_file() or is_model(local):
        return [local]
    hint = "" if local.exists() else ": no such file; train one (python train.py), or give a hub model, hf:ORG/NAME"
    raise DataError(f"{path or 'an empty path'} is neither a checkpoint nor a folder with one{hint}")


def open_newest(path, weights=True, report=print):
    """Return the Path and the dict of the newest of the path's `candidates` that is whole. Damaged ones are reported.

    weights: see `read`. With False, nothing is reported, and the dict of a hub folder has its config only. Raises
    Damaged or DataError.
    """
    if not weights:
        report = str  # says nothing
    for link in Path(path).glob("ckpt-*.pt"):
        if not link.exists():
            report(f"{link} is a link to {link.readlink()}, which does not exist; it is skipped.")
    found = candidates(path, HUB_FILES if weights else ("config.json",))
    for candidate in found:
        try:
            if candidate.is_dir():
                return candidate, hub().load(candidate, report) if weights else {"config": hub().shape(candidate)}
            state = read(candidate, weights)
            if state.get("source", {}).get("model.py", MODEL) != MODEL:
                report(f"{candidate}: model.py has changed since. The checkpoint has the old one as source['model.py']")
            return candidate, state
        except Damaged as damaged:
            if len(found) == 1:
                raise
            report(f"{damaged}; trying the one before it.")
        except FileNotFoundError:
            if not steps(path):
                raise
            return open_newest(path, weights, report)  # a run that is writing here has just deleted it
    raise Damaged(f"no checkpoint in {path} is whole: restore one from a backup, or start anew in another --out_dir")


def load(path, report=print):
    """Return a checkpoint's dict with its tensors on the CPU. A hub folder gives one of step 0, without settings.

    Raises Damaged or DataError.
    """
    return open_newest(path, report=report)[1]


def shape(path):
    """Return the fields of the ModelConfig of a checkpoint. Reads no weights. Raises Damaged or DataError."""
    _, state = open_newest(path, weights=False)
    config_of(state, path)
    return state["config"]


def problem(path):
    """Return why `shape` fails, or an empty string."""
    try:
        shape(path)
    except DataError as error:
        return str(error)
    return ""


def leaves(x, name=""):
    """Yield (name, value) of each item in nested dicts, lists and tuples, such as ("model.head.weight", a tensor).

    An empty dict, list or tuple is an item, too.
    """
    if isinstance(x, (list, tuple)) and x:
        x = dict(enumerate(x))
    if not isinstance(x, dict) or not x:
        yield name, x
        return
    for key, item in x.items():
        yield from leaves(item, f"{name}.{key}".strip("."))


def checksum(x):
    """Return a CRC-32 of a checkpoint's dict or of a part of it."""
    value = 0
    for name, leaf in leaves(x):
        content = leaf.reshape(-1).view(torch.uint8).numpy() if isinstance(leaf, torch.Tensor) else repr(leaf).encode()
        value = zlib.crc32(content, zlib.crc32(name.encode(), value))
    return value


# ----------------------------------------------------------------------------
# The model and the tokenizer in a checkpoint


def tokenizer_of(state, path="the checkpoint"):
    """Return the Tokenizer of a checkpoint's dict. path: for the message of an error."""
    with refuse_damage(path):
        return Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])


def config_of(state, path):
    """Return the ModelConfig of a checkpoint's dict. Raises DataError if model.py does not know one of its fields."""
    if "hub" in state:  # a fine-tuned model that finetune.py has saved
        raise DataError(f"{path}: its encoder is a transformers model, which this project can only fine-tune")
    try:
        return ModelConfig(**state["config"])
    except TypeError as error:
        raise DataError(f"{path} was made by another model.py. This one cannot load it: {error}") from None


def model_from(state, path="the checkpoint"):
    """Return the Transformer of a dict that `load` returned, on the CPU, in fp32, in evaluation mode.

    Raises DataError if model.py makes no model with these weights.
    """
    config = config_of(state, path)
    try:
        with weights_on_meta():  # the state's tensors become the parameters
            model = Transformer(config)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{path} was made by another model.py. This one cannot load it: {error}") from None
    check_weights(model, state, path)
    shared = {}  # the names of each weight: a tied embedding has two, and so have weights that blocks share
    for name, p in model.named_parameters(remove_duplicate=False):
        shared.setdefault(p, []).append(name)
    model.load_state_dict(dict(state["model"]), assign=True)  # a copy: PyTorch would note `assign` in the original
    for first, *others in shared.values():
        for name in others:
            module, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(module), attribute, model.get_parameter(first))
    if state["settings"].get("attention") == "reference":  # its run may have edited `attention_mask`
        model.attention_backend = "reference"
    return model.eval()


def check_weights(model, state, path):
    """Raise DataError unless a checkpoint's dict has the weights of a Transformer, by name and shape."""
    if differ := list(misfits(state["model"], model.state_dict())):
        raise DataError(f"{path} was made by another model.py: these weights differ: {'; '.join(differ[:5])}")


def load_model(path):
    """Return the Transformer of a checkpoint or a hub folder; see `load`."""
    return model_from(load(path), path)


# ----------------------------------------------------------------------------
# The command


def export(path, folder, kind):
    """Write a checkpoint as a new folder that transformers opens; see `data.hub.write_folder`. Return its path."""
    refuse_existing(folder)
    found, state = open_newest(path)
    hub().write_folder(state, model_from(state, found), found, folder, kind)
    return found


@exit_with_message()
def main():
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["export"])
    parser.add_argument("path", help="a checkpoint, or the folder of a run")
    parser.add_argument("folder", help="where to write the model; a new folder")
    parser.add_argument("--as", dest="kind", choices=hub().EXPORTS, required=True)
    args = parser.parse_args()
    found = export(args.path, args.folder, args.kind)
    print(f"wrote {args.folder} from {found}")


if __name__ == "__main__":
    main()
