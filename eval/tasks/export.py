"""Write a fine-tuned model of the transformers library as a folder that the library opens.

    python -m eval.tasks export out/search/model.pt exported/search

Models for retrieval open with sentence-transformers, too. (Models of this project: python checkpoint.py export.)
"""

import json
from pathlib import Path

import torch

from data.files import refuse_existing, refuse_malformed
from data.hub import SENTENCES, check_function, filled, new_folder
from data.tokenizer import optional_package
from errors import DataError
from eval.tasks.result import load

HEAD = {"classifier.weight": "1.weight", "classifier.bias": "1.bias"}  # the library's names of tc's and qa's, and ours


def check(task, model):
    """Raise DataError if a retriever on a HubEncoder cannot be exported: nothing here uses it. Of other models, say it.

    task, model: a Family and its TaskModel.
    """
    try:
        with torch.random.fork_rng([]):  # training does not depend on it
            library_model(task, model)
    except ValueError as error:  # also of transformers: it has no class for tagging with this encoder
        if task.dataset.family == "ir":
            raise
        print(f"model.pt will be for use in Python only (docs/finetuning.md): {error}")


def library_model(task, model):
    """Return the model of the transformers library that computes what a TaskModel on a HubEncoder does.

    Raises DataError if there is none.
    """
    encoder, family = model.encoder.model, task.dataset.family
    if family == "ir" and task.protocol.own:
        return encoder
    if family == "ir":
        why = "sentence-transformers cannot compute the study's mean, which leaves out [CLS]"
        raise DataError(f"save_model: {why}: give --protocol=own")
    labels = task.labels if family == "tc" else ["outside", "answer"]
    encoder.config.update({"id2label": dict(enumerate(labels)), "label2id": {x: i for i, x in enumerate(labels)}})
    found = optional_package("transformers").AutoModelForTokenClassification.from_config(encoder.config)
    base = found.base_model_prefix
    head = {name for name in found.state_dict() if not name.startswith(f"{base}.")}
    if family == "sc" or head != {*HEAD}:
        raise DataError(f"transformers has no class for this encoder with our head for {family}")
    getattr(found, base).load_state_dict(encoder.state_dict())
    ours = model.head.state_dict()
    found.load_state_dict({name: ours[part] for name, part in HEAD.items()}, strict=False)
    return found


def export(path, folder):
    """Write the model that finetune.py --save_model=True kept at `path` as a new folder. Raises DataError."""
    state, task, model = load(path)
    if "hub" not in state:
        raise DataError(f"{path}: it is not of transformers, so it leaves with `python checkpoint.py export`")
    refuse_existing(folder)
    found = library_model(task, model).eval()
    if task.dataset.family != "ir":
        before = torch.tensor(model.encoder.before, dtype=torch.int64)

        def theirs(tokens):
            return found(torch.cat((before, tokens))[None]).logits[0, len(before) :]

        with refuse_malformed(f"{path}: its records are not as this version of finetune.py writes them"):
            sample = state["fine_tuned"]["sample"]
        check_function(sample, theirs, path)
    files = dict(state["files"])
    if task.dataset.family == "ir":
        facts = {"hidden_size": model.encoder.config.d_model, "max_len": task.max_len, "prompts": {}}
        made = {name: json.dumps(filled(name, facts)) for name in SENTENCES}
        files = made | files | {"sentence_bert_config.json": made["sentence_bert_config.json"]}
    with new_folder(Path(folder), files) as partial:
        (partial / "tokenizer.json").write_bytes(task.tokenizer.content)
        found.save_pretrained(partial)
