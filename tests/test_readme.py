"""Every command in the README runs, at a small size; cluster lines are parsed and their settings checked."""

import json
import random
import re
import shlex
import shutil
from importlib.util import find_spec

import pytest

import configurator
from helpers import ROOT, TINY, WORDS, Run
from data import hub
from eval.study import sweep
from test_config import settings_of

README = (ROOT / "README.md").read_text()
COMMANDS = [line.split("#")[0].strip() for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.splitlines()]
LOCAL = [c for c in COMMANDS if c.startswith("python ")]
CLUSTER = [c for c in COMMANDS if "torchrun" in c]
ARRAY = [c for c in COMMANDS if c.startswith("srun python eval/sweep.py")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, encoder):
    """Where a reader stands: the files that the commands name, made up and small."""
    folder, rng = tmp_path_factory.mktemp("reader"), random.Random(0)
    for name in ("texts", "fineweb-edu"):
        (folder / name).mkdir()
        documents = [" ".join(rng.choices(WORDS, k=40)) + f" {i}" for i in range(400)]
        (folder / name / "a.txt").write_text("\n\n\n".join(documents))
    (folder / "fineweb-edu" / "a.txt").unlink()
    with open(folder / "fineweb-edu" / "a.jsonl", "w") as file:
        file.writelines(json.dumps({"text": text, "language": "en", "language_score": 0.9}) + "\n" for text in documents)
    shutil.copy(ROOT / "README.md", folder)
    for name in ("train.csv", "test.csv"):
        rows = (f"{rng.choice(WORDS)},{' '.join(rng.choices(WORDS, k=9))},{rng.choice('ab')}\n" for _ in range(50))
        (folder / name).write_text("title,body,topic\n" + "".join(rows))
    shutil.copytree(ROOT / "config", folder / "config")
    shutil.copy(ROOT / "data" / "embedded.tiktoken", folder / "tokenizer.model")
    hub.export(encoder, folder / "SmolLM2-135M", "llama")
    return folder


def test_the_commands_are_all_accounted_for():
    rest = [c for c in COMMANDS if c not in LOCAL + CLUSTER + ARRAY]
    assert rest == ["pip install -r requirements.txt && python train.py", "pip install -r requirements.txt && pytest"]
    assert len(LOCAL) >= 14 and len(CLUSTER) >= 4 and len(ARRAY) == 1


def test_the_pure_objectives_are_pure(capsys):
    for objective, switch in (("mlm", 0), ("clm", settings_of(capsys)["max_steps"])):
        command = next(c for c in LOCAL if f"out/{objective}" in c)
        assert settings_of(capsys, *shlex.split(command)[2:])["switch_step"] == switch


def test_the_local_commands_run_in_their_order(folder):
    for command in ["python train.py", *LOCAL]:
        _, script, *args = shlex.split(command)
        if script == "train.py" and "--help" not in args:
            shaped = "config/continue.py" in args  # by its origin
            args += ["--compile=False", *(a for a in TINY if not (shaped and a.startswith(("--n_", "--d_"))))]
        if script == "finetune.py":
            args += ["--max_steps=2"]
        if script == "eval/sweep.py":  # one seed and rate of one task, for all checkpoints
            args += ["--tasks=embedded-tc", "--lrs=1e-3", "--seeds=1", "--finetune=--max_steps=2"]
        if script == "eval/study.py" and "--plan" not in args and "--slurm" not in args:  # two models, one task
            small = " ".join(word for word in TINY if not word.startswith(("--max", "--switch", "--keep")))
            args += [f"--train={small}", "--splits=((20, 0, 20),)", '--tasks=(("embedded-tc", ""),)', "--untrained=False",
                     "--finetune=--max_steps=2", "--finetune_lrs=1e-3", "--finetune_seeds=1"]  # fmt: skip
        if script == "data/train_bpe.py":  # the text is short
            if not find_spec("tokenizers"):
                continue
            args = [a.replace("=8192", "=384") for a in args]
        if script == "data/prepare.py":  # gpt2's ranks would be downloaded
            args = [a.replace("=gpt2", "=embedded") for a in args] + ["--val_fraction=0.1"]
        code, text = Run(args, folder / "output", script, folder).wait(300)  # a study starts processes of its own
        assert code == 0, f"{command}\n{text}"
    assert (folder / "out" / "demo" / "ckpt-20.pt").exists()
    for result in ("finetune/result.json", "topics/result.json", "sweep/report.md", "study-demo/report/page.md"):
        assert (folder / "out" / result).exists()


@pytest.mark.parametrize("command", CLUSTER)
def test_the_settings_of_the_cluster_lines(command, capsys, monkeypatch):
    words = shlex.split(re.search(r"torchrun.*train\.py[^']*", command)[0])
    script = words.index("train.py")
    options = dict(word.removeprefix("--").split("=", 1) for word in words[1:script] if "=" in word)
    world = int(options.get("nnodes", 1)) * int(options["nproc_per_node"])
    monkeypatch.setenv("WORLD_SIZE", str(world))
    settings = settings_of(capsys, *words[script + 1 :])
    assert settings["model"] != "demo"


def test_the_settings_of_the_sweep():
    """The study's grid: ten trainings, six learning rates, five seeds."""
    (command,) = ARRAY
    words = [word.replace("$((SLURM_ARRAY_TASK_ID+1))", "7") for word in shlex.split(command)[3:]]
    s = configurator.load(sweep.__file__, words, lambda s: [p for p in sweep.check(s) if "neither a checkpoint" not in p])
    assert s["part"] == "7/100"
    assert len(list(sweep.grid(s))) == 2 * 10 * 6 * 5


def test_the_files_it_names_are_there():
    for name in set(re.findall(r"\b(?:config|data|eval|tests)/[\w./-]+\.(?:py|png|json|jsonl)", README)):
        assert (ROOT / name).exists(), name
