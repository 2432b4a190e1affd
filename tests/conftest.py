"""What the tests share: a tiny prepared data set, and fast ways to run train.py as a process of its own.

A run of train.py spends seconds on importing torch. So runs are forked off a server process
that has imported it already; each is a real process that can be killed with SIGKILL.
"""

import multiprocessing
import os
import random
import socket
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models here are too small for two threads
server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed", "train", "finetune", "matplotlib.pyplot"])

# A model and a schedule that take a second.
TINY = ["--n_layer=2", "--n_head=4", "--n_kv_head=2", "--d_model=32", "--d_ff=48", "--seq_len=32", "--dtype=float32",
        "--global_batch_tokens=512", "--micro_batch=4", "--max_steps=20", "--switch_step=8", "--warmup_steps=3",
        "--decay_steps=5", "--eval_interval=10", "--eval_windows=9", "--checkpoint_interval=5", "--log_interval=1",
        "--keep_last=10"]  # fmt: skip


def run_script(name, args, environment, output, folder):
    """In the child: run a script's main() with these arguments in a folder, its output in a file."""
    os.environ.update(environment)
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = [name, *args]
    module = __import__(name.removesuffix(".py").replace("/", "."), fromlist=["main"])
    module.main()


class Run:
    """One process that runs a script; under torchrun's variables if there is a `rank`."""

    def __init__(self, args, output, name="train.py", folder=ROOT, **environment):
        self.output = Path(output)
        self.process = server.Process(target=run_script, args=(name, list(args), environment, str(output), str(folder)))
        self.process.start()

    def wait(self, timeout=240):  # on a GPU the kernels are compiled first
        """(exit code, output); the exit code is negative for a signal."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"still running after {timeout} s: {self.output.read_text()[-2000:]}"
        return self.process.exitcode, self.output.read_text()


@pytest.fixture
def run(tmp_path):
    """run(args, name="train.py") -> (exit code, output), of one process."""

    def one(args, name="train.py", **environment):
        return Run(args, tmp_path / f"output-{random.random()}", name, **environment).wait()

    return one


@pytest.fixture
def run_world(tmp_path):
    """run_world(n, args) -> [(exit code, output), ...] of n processes that train together over gloo."""

    def many(n, args, **environment):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        shared = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **environment}
        runs = [Run(args, tmp_path / f"output-{rank}-{random.random()}", RANK=str(rank), LOCAL_RANK=str(rank), **shared)
                for rank in range(n)]  # fmt: skip
        return [r.wait() for r in runs]

    return many


WORDS = "the a of list string file object value method returns is are may must if when not an empty new called".split()


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A prepared folder of about 30,000 tokens of made-up sentences, in many short documents."""
    from data.prepare import prepare

    folder = tmp_path_factory.mktemp("data")
    rng = random.Random(0)
    documents = [" ".join(rng.choices(WORDS, k=rng.randint(5, 60))) + "." for _ in range(800)]
    (folder / "text.txt").write_text("\n\n\n".join(documents))
    prepare(str(folder / "text.txt"), str(folder / "tiny"), val_fraction=0.1, shard_tokens=7001, progress=False)
    return folder / "tiny"


@pytest.fixture
def tiny(data_dir):
    """Arguments of a tiny run of train.py, but for out_dir."""
    return [*TINY, f"--data={data_dir}"]


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """The checkpoint of a tiny model with the embedded tokenizer and random weights, as train.py would save it."""
    import torch

    import checkpoint
    import configurator
    import train
    from data.tokenizer import Tokenizer
    from model import ModelConfig, Transformer

    tokenizer = Tokenizer.load("embedded")
    torch.manual_seed(0)
    model = Transformer(ModelConfig(vocab_size=tokenizer.vocab_size, n_layer=2, n_head=2, d_model=64, d_ff=96, seq_len=64))
    settings, _ = configurator.read_script(train.__file__)
    state = dict(step=650, model=model.state_dict(), config=vars(model.config), settings=settings,
                 tokenizer=tokenizer.state(), tokenizer_ranks=tokenizer.rank_bytes())  # fmt: skip
    path = tmp_path_factory.mktemp("pretrained") / "tiny" / "ckpt-650.pt"
    path.parent.mkdir()
    checkpoint.save(path, state)
    return path
