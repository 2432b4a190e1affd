"""Every command in the README and in docs/ runs at a small size. Those for a cluster have their settings checked."""

import json
import random
import re
import shlex
import shutil
from importlib.util import find_spec

import pytest

import checkpoint
from encoder_helpers import write_encoder
from helpers import ROOT, TINY, WORDS, Run, rows_of
from task_helpers import Files


def commands(path):
    """The commands of a page's shell blocks, without comments; those that && joins are several."""
    blocks = re.findall(r"```sh\n(.*?)```", path.read_text(), re.S)
    lines = [line.split(" #")[0] for block in blocks for line in block.splitlines() if line.strip()]
    return [command.strip() for line in lines for command in line.split(" && ")]


README = commands(ROOT / "README.md")
PAGES = sorted({*(ROOT / "docs").glob("*.md")} - {ROOT / "docs/exercises.md"})  # that one is in test_lesson.py
DOCS = [line for page in PAGES for line in commands(page) if line not in README]
# Most of these are in .ci/run.
INSTALL = "python3 -m ", ". .venv/", "pip install ", "hf download ", "git clone ", "pytest", "uv run ", "sh eval/bench"
CLUSTER = [line for line in dict.fromkeys(README + DOCS) if re.match("torchrun|srun|sbatch", line)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, encoder):
    """Where a reader of the README stands: the files that its commands name, made up and small, and what they made."""
    folder, rng = tmp_path_factory.mktemp("reader"), random.Random(0)
    documents = [" ".join(rng.choices(WORDS, k=40)) + f" {i}" for i in range(400)]
    for name in "texts/a.txt", "books/train.txt":
        (folder / name).parent.mkdir()
        (folder / name).write_text("\n\n\n".join(documents))
    rows = [json.dumps({"text": text}) + "\n" for text in reversed(documents)]
    for name in "fineweb-edu", "fineweb-edu-100BT":
        (folder / name).mkdir()
        (folder / name / "a.jsonl").write_text("".join(rows))
    for name in ("train.csv", "test.csv"):
        rows = (f"{rng.choice(WORDS)},{' '.join(rng.choices(WORDS, k=9))},{rng.choice('ab')}\n" for _ in range(50))
        (folder / name).write_text("title,body,topic\n" + "".join(rows))
    Files(folder).beir("beir", train=30, test=10, documents=documents[:40], queries=documents[:40])
    task = re.search(r"```python\n(family.*?)```", (ROOT / "docs/finetuning.md").read_text(), re.S)[1]
    (folder / "topics.py").write_text(task)
    (folder / "search.py").write_text('family = "ir"\ntrain = "beir"\n')
    shutil.copytree(ROOT / "config", folder / "config")
    for name in "tokenizer.model", "books/books.tiktoken":
        shutil.copy(ROOT / "data/embedded/embedded.tiktoken", folder / name)
    if find_spec("safetensors") and find_spec("tokenizers"):
        checkpoint.export(encoder, folder / "SmolLM2-135M", "llama")
        checkpoint.export(encoder, folder / "EuroBERT-210m", "eurobert")
    if find_spec("transformers"):
        write_encoder(folder / "bert-base-uncased", "bert")
        write_encoder(folder / "ModernBERT-base", "modernbert")
    for command in README:
        if command.startswith("python ") and "eval.study" not in command:
            run(command, folder)
    return folder


SHAPE = " ".join(word for word in TINY if re.match("--(n_|d_)", word))
SCHEDULE = " ".join(word for word in TINY if re.match("--(max|switch|keep)", word))
OTHERS = " ".join(word for word in TINY if not re.match("--(n_|d_|max|switch|keep)", word))


def run(command, folder):
    """Run a command at a small size, unless its model is not here or it has a test of its own."""
    command = re.sub(r"hf:MLMvsCLM/\S+", "SmolLM2-135M", command).replace("=gpt2", "=embedded")  # would be downloaded
    for name, model in ("smollm2|domain", "SmolLM2-135M"), ("modernbert", "ModernBERT-base"):
        if re.search(name, command.lower()) and not (folder / model).exists():
            return
    if re.search("records/check.py|results/books.py", command):
        return
    words = shlex.split(command)[1:]
    for pattern, more in rows_of("smaller commands"):
        if re.search(pattern, command):
            words += shlex.split(more.format(SHAPE=SHAPE, SCHEDULE=SCHEDULE, OTHERS=OTHERS))
    script, *args = words[1:] if words[0] == "-m" else words
    shown = {"SHOW": "1"} if command == "python train.py" else {}
    code, text = Run(args, folder / "output", script, folder, **shown).wait(300)
    assert code == 0, f"{command}\n{text}"


def test_readme_commands(folder):
    assert [line for line in README if not line.startswith(("python ", "torchrun ", *INSTALL))] == []
    for made in ("demo/loss.png", "finetune/result.json", "topics/result.json"):
        assert (folder / "out" / made).exists() or made.endswith("png") and not find_spec("matplotlib")


@pytest.mark.slow
def test_studies_of_the_readme_and_commands_of_the_docs(folder):
    for command in README:
        if "python -m eval.study" in command:
            run(command, folder)
    for report in ("sweep/report/report.md", "study-demo/report/report.md"):
        assert (folder / "out" / report).exists()
    local = [line for line in dict.fromkeys(DOCS) if line.startswith("python ")]
    assert [line for line in DOCS if not line.startswith(("python ", *INSTALL)) and line not in CLUSTER] == []
    for command in local:
        run(command, folder)


@pytest.mark.parametrize("command", CLUSTER)
def test_settings_of_the_cluster_commands(command, folder):
    """Nothing is wrong with them but that the paper's data and checkpoints are not there."""
    inner = re.search(r"(torchrun .*?)(train\.py [^']*)|(python -m )(eval\.study sweep .*)", command)
    script, *args = shlex.split((inner[2] or inner[4]).replace("$((SLURM_ARRAY_TASK_ID+1))", "7"))
    options = dict(re.findall(r"--(nnodes|nproc_per_node)=(\d+)", inner[1] or ""))
    world = int(options.get("nnodes", 1)) * int(options.get("nproc_per_node", 1))
    if script == "train.py":
        args.append("--attention=reference")  # whether the mask is edited takes seconds to see, each time
    _, text = Run([*args, "--check"], folder / "output", script, folder, WORLD_SIZE=str(world)).wait()
    problems = re.findall(r"^  \d+\. (.*)", text, re.M)
    assert "Traceback" not in text and (problems or "fit together" in text), text
    missing = "no such file|no such folder|tokens are fewer than"  # the small stand-in for the data has too few tokens
    assert all(re.search(missing, problem) for problem in problems), text


def test_the_files_that_the_pages_name_are_there():
    for page in (ROOT / "README.md", ROOT / "LESSON.md", *(ROOT / "docs").glob("*.md")):
        text = re.sub(".*(at|of) commit.*", "", page.read_text())  # there, what is gone is named
        names = set(re.findall(r"\b(?:config|data|eval|tests|docs)/[\w./-]+\.(?:py|png|json|jsonl|md|sh)\b", text))
        for name in names - {"data/prepared"}:
            assert (ROOT / name).exists(), f"{page.name} names {name}"
        prose = re.sub("```.*?```", "", text, flags=re.S)
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", prose):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
