"""Write a fine-tuned model of the transformers library as a folder that the library opens.

    python -m eval.tasks export out/search/model.pt exported/search

Models for retrieval open with sentence-transformers, too. (Models of this project: python checkpoint.py export.)
"""

import json
import os
from pathlib import Path

import torch

from data.hub import new_folder, sentence_files
from data.tokenizer import optional_package
from errors import DataError
from eval.tasks.hub_encoder import HubEncoder
from eval.tasks.predict import load

HEAD = {"classifier.weight": "1.weight", "classifier.bias": "1.bias"}  # the library's names of tc's and qa's, and ours


def problem(task, model):
    """Return why a Family and its TaskModel cannot leave this project when fine-tuned; an empty string if they can."""
    ours = not isinstance(model.encoder, HubEncoder)  # checkpoint.py exports it
    if task.dataset.family == "ir":
        if ours and (model.causal or task.protocol.own):
            return "exported retrievers of this architecture follow the study's protocol: give --protocol=study"
        own = "sentence-transformers cannot compute the study's mean, which leaves out [CLS]: give --protocol=own"
        return "" if ours or task.protocol.own else own
    if ours:
        return ""
    with torch.device("meta"):
        kept = library_model(task, model)
    names = {name for name in kept.state_dict() if not name.startswith(f"{kept.base_model_prefix}.")}
    if task.dataset.family != "sc" and names == {*HEAD}:
        return ""
    return f"transformers has no class for this encoder with our head for {task.dataset.family}"


def library_model(task, model):
    """Return the model of the transformers library for a TaskModel, without its weights."""
    config = model.encoder.model.config
    labels = task.labels if task.dataset.family == "tc" else ["outside", "answer"]
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in enumerate(labels)}
    return optional_package("transformers").AutoModelForTokenClassification.from_config(config)


def export(path, folder):
    """Write the model that finetune.py --save_model=True kept at `path` as a new folder. Raises DataError."""
    state, task, model = load(path, device="cpu", dtype="float32")
    if not {"hub", "files"} <= state.keys():
        raise DataError(f"{path}: only models of transformers leave this way, others by `python checkpoint.py export`")
    if why := problem(task, model):
        raise DataError(f"{path}: {why}")
    if os.path.lexists(folder):
        raise DataError(f"{folder} is there already: give another folder")
    files, kept = state["files"], model.encoder.model
    if task.dataset.family == "ir":
        own = sentence_files(model.encoder.config.d_model, task.max_len, {})
        own = {name: json.dumps(content) for name, content in own.items()}
        files = own | files | {"sentence_bert_config.json": own["sentence_bert_config.json"]}
    else:
        kept = library_model(task, model)
        getattr(kept, kept.base_model_prefix).load_state_dict(model.encoder.model.state_dict())
        kept.load_state_dict({name: model.head.state_dict()[ours] for name, ours in HEAD.items()}, strict=False)
    with new_folder(Path(folder)) as partial:
        for name, text in files.items():
            (partial / name).parent.mkdir(exist_ok=True)
            (partial / name).write_text(text, encoding="utf-8")
        (partial / "tokenizer.json").write_bytes(task.tokenizer.file_bytes())
        kept.save_pretrained(partial)
