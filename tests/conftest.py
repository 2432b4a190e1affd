"""Fixtures that the tests share."""

import random
import socket

import pytest
import torch

import checkpoint
import configurator
from data.prepare import prepare
from eval.tasks import hub_encoder
from eval.tasks.registry import Task
from eval.tasks.result import build, save_model
from eval.tasks.splits import Dataset
from helpers import ROOT, TINY, WORDS, Run, succeed
from model import ModelConfig, Transformer
from study_helpers import state_of
from task_helpers import Files, settings


@pytest.fixture
def run_world(tmp_path):
    """run_world(n, args) -> [(exit code, output), ...] of n processes that run a script together over gloo.

    second: what the second process gets beside that, further arguments or a path of a script.
    """

    def many(n, args, script="train.py", second="", **environment):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            shared = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(s.getsockname()[1])}
        runs = []
        for rank in range(n):
            world = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if n > 1 else {}
            own = second.split() if rank == 1 else []
            its = own.pop() if own and own[0].endswith(".py") else script
            output = tmp_path / f"output-{random.random()}"
            runs.append(Run([*args, *own], output, its, **world | environment))
        return [r.wait() for r in runs]

    return many


@pytest.fixture
def run(run_world):
    """run(args, script="train.py") -> (exit code, output), of one process."""
    return lambda *args, **options: run_world(1, *args, **options)[0]


@pytest.fixture
def train(run_world):
    """train(n, *args) -> the output of n processes of train.py, which must succeed."""
    return lambda n, *args, **options: succeed(run_world(n, args, **options))


def prepared(folder, seed):
    """Prepare a folder of about 30,000 tokens of made-up sentences, in many short documents."""
    rng = random.Random(seed)
    documents = [" ".join(rng.choices(WORDS, k=rng.randint(5, 60))) + "." for _ in range(800)]
    (folder / "text.txt").write_text("\n\n\n".join(documents))
    prepare(str(folder / "text.txt"), str(folder / "tiny"), val_fraction=0.1, shard_bytes=25_000)
    return folder / "tiny"


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("data"), seed=0)


@pytest.fixture(scope="session")
def mixture(data_dir, tmp_path_factory):
    """The setting `data` of a mixture."""
    return f"{data_dir}:0.7,{prepared(tmp_path_factory.mktemp('other'), seed=1)}:0.3"


@pytest.fixture
def tiny(data_dir):
    """Arguments of a tiny run of train.py, but for out_dir."""
    return [*TINY, f"--data={data_dir}"]


@pytest.fixture(scope="session")
def undisturbed(data_dir, tmp_path_factory):
    """A tiny run from start to end: (arguments, out_dir)."""
    out, args = tmp_path_factory.mktemp("undisturbed"), [*TINY, f"--data={data_dir}"]
    succeed([Run([*args, f"--out_dir={out / 'run'}"], out / "output", SHOW="1").wait()])
    return args, out / "run"


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """The checkpoint of a tiny model with the embedded tokenizer and random weights, as train.py would save it."""
    defaults, _ = configurator.read_script(ROOT / "train.py")
    torch.manual_seed(0)
    model = Transformer(ModelConfig(vocab_size=4096, n_layer=2, n_head=2, d_model=64, d_ff=96, seq_len=64))
    path = tmp_path_factory.mktemp("pretrained") / "tiny" / "ckpt-650.pt"
    path.parent.mkdir()
    checkpoint.save(path, state_of(model, settings=defaults))
    return path


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def saved(encoder, tmp_path):
    """saved(family) -> (the Family, its TaskModel) of a fine-tuned model, which is in tmp_path/model.pt."""

    def one(family, state=None, **more):
        cfg = settings(family=family, max_len=40, out_dir=str(tmp_path), **more)
        state = state or checkpoint.load(encoder)
        spec = Task("sc", columns=("title", "body", "end"), form="T: {} B: {} {}") if family == "sc" else Task(family)
        labels = {"sc": ["no", "yes"], "tc": ["O", "B-X"]}.get(family, [])
        dataset = Dataset("toy", family, labels, [], {}, {}, {}, {}, spec)
        task, model = build(cfg, dataset, state)
        task.threshold, task.may_be_none = -0.5, True
        save_model(cfg, dataset, task, model, state | dict(optimizer={}))
        assert "optimizer" not in hub_encoder.open_newest(tmp_path / "model.pt")[1]
        return task, model

    return one
