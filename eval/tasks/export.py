"""Write a fine-tuned retriever of the transformers library as a folder that sentence-transformers opens.

    python -m eval.tasks export out/search/model.pt exported/search

Models of this project, of all families, leave with: python checkpoint.py export.
"""

import json
import os
import sys
from pathlib import Path

from data.hub import new_folder, sentence_files
from errors import Damaged, DataError
from eval.tasks.result import load


def check(task):
    """Raise DataError if a retriever on a HubEncoder cannot be exported: nothing here uses it. Of other models, say it.

    task: a Family.
    """
    if task.dataset.family != "ir":
        print("model.pt will be for use in Python only (docs/finetuning.md): only retrievers are exported")
    elif not task.protocol.own:
        why = "sentence-transformers cannot compute the study's mean, which leaves out [CLS]"
        raise DataError(f"save_model: {why}: give --protocol=own")


def export(path, folder):
    """Write the model that finetune.py --save_model=True kept at `path` as a new folder. Raises DataError."""
    state, task, model = load(path)
    if "hub" not in state:
        raise DataError(f"{path}: it is not of transformers, so it leaves with `python checkpoint.py export`")
    if task.dataset.family != "ir":
        raise DataError(f"{path}: of models of transformers, only retrievers are exported")
    check(task)
    if os.path.lexists(folder):
        raise DataError(f"{folder} is there already: give another folder")
    made = sentence_files(model.encoder.config.d_model, task.max_len, {})
    made = {name: json.dumps(content) for name, content in made.items()}
    files = made | state["files"] | {"sentence_bert_config.json": made["sentence_bert_config.json"]}
    with new_folder(Path(folder)) as partial:
        for name, text in files.items():
            (partial / name).parent.mkdir(exist_ok=True)
            (partial / name).write_text(text, encoding="utf-8")
        (partial / "tokenizer.json").write_bytes(task.tokenizer.file_bytes())
        model.encoder.model.save_pretrained(partial)


def main(path, folder):
    try:
        export(path, folder)
    except (Damaged, DataError, OSError) as error:
        sys.exit(str(error))
