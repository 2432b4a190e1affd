"""Every edit on docs/editing.md is applied to a copy of the code and trained. What the page says of it holds."""

import json
import math
import re
import shutil
import tempfile
from types import SimpleNamespace

import pytest
import torch

import checkpoint
import configurator
from data.objective import CLM, MLM, describe, predicts_from
from eval.study.branch import Schedule
from helpers import (
    ROOT, TINY, UNUSED, Run, assert_same_end, assert_same_losses, copy_up_to, edited, metrics, succeed,
)  # fmt: skip
from model import ModelConfig, Transformer
from run import read_metrics

PAGE = (ROOT / "docs/editing.md").read_text()
EDITS = dict(re.findall(r"^### (.*?)\n\n```diff\n(.*?)```", PAGE, re.S | re.M))
ARGS = [*TINY, "--max_steps=40", "--keep_last=9", "--checkpoint_interval=20", "--eval_interval=40", "--device=cpu"]
MORE = {"A z-loss": ["--loss=plain"], "NorMuon": ["--optimizer=muon"]}
NEAR = ("model.py", "    if doc_start is None:\n        return see\n",
        "    see &= t[None, :] >= t[:, None] - 20\n    if doc_start is None:\n        return see\n")  # fmt: skip


def run(code, script, *args):
    """Run a script of a folder of code in that folder. Return its exit code and its output."""
    with tempfile.NamedTemporaryFile() as output:
        return Run(args, output.name, code / script, code).wait()


def start(code, out, data, *more):
    return run(code, "train.py", *ARGS, f"--data={data}", f"--out_dir={out}", *more)


def train(*args):
    """Return the output of a run that must succeed; see `start`."""
    return succeed([start(*args)])


def export(code, out, kind):
    return run(code, "checkpoint.py", "export", out, out.with_name("exported"), f"--as={kind}")[1]


@pytest.fixture(scope="module")
def unedited(tmp_path_factory, data_dir):
    out = tmp_path_factory.mktemp("unedited") / "run"
    train(ROOT, out, data_dir)
    return out


# What the page says of each edit. copy: the edited code. out: its run. log, before: of it and of an unedited run.


def cosine(copy, out, log, before, text):
    expected = [3e-3 * (0.5 + 0.5 * math.cos(math.pi * step / 40)) for step in range(2, 40)]
    assert [line["lr"] for line in log[3:]] == pytest.approx(expected)
    assert "learning rate up to 0.00298" in text and "4.6e-06 in the last step" in text
    settings, _ = configurator.parse(ARGS, configurator.read_script(copy / "train.py")[0])
    schedule = Schedule(SimpleNamespace(settings=settings, start=0, max_steps=40), copy / "train.py")
    rates = [schedule.learning_rate(step, schedule.cfg) for step in range(40)]
    assert rates == pytest.approx([line["lr"] for line in log[1:]]) and schedule.cfg["lr"] == schedule.cfg.lr
    assert [{*schedule.trained(step)[1]} for step in (7, 8)] == [{CLM()}, {MLM()}]


def normuon(copy, out, log, before, text):
    optimizer = checkpoint.load(out / "ckpt-20.pt")["optimizer"]
    rates = {name: its["param_groups"][-1]["lr"] for name, its in optimizer.items()}
    assert rates == {"adamw": log[20]["lr"], "normuon": log[20]["lr"]}
    assert {its["square"].shape[1] for its in optimizer["normuon"]["state"].values()} == {1}
    (out / "ckpt-40.pt").unlink()
    code, text = start(ROOT, out, data_of(out), "--resume=True", *MORE["NorMuon"])
    assert code == 1 and "has other optimizers: adamw, normuon; here they are adamw, muon" in text, text


def falling(copy, out, log, before, text):
    assert [line["mask_ratio"] for line in log[9:]] == pytest.approx([0.4 - 0.3 * step / 31 for step in range(32)])
    assert log[8]["loss"] == before[8]["loss"] and log[-1]["loss"] != before[-1]["loss"]


def prefix(copy, out, log, before, text):
    assert {line["phase"] for line in log[9:]} == {"mlm + prefix lm"} and "step 40 (MLM + prefix LM): valid" in text
    assert log[-1].keys() >= {"prefix_lm_loss", "mlm_loss"}
    phases = checkpoint.load(out / "ckpt-40.pt")["phases"]
    assert predicts_from(phases) == "mask"  # that of MLM
    end = "MLM (40 % masked) in 75 % of the windows and prefix LM in 25 % of the windows for 32 steps"
    assert describe(phases).endswith(end)


def diffusion(copy, out, log, before, text):
    """In other micro-batches, and with the plain loss, the weighted mean stays."""
    assert {line["phase"] for line in log[9:]} == {"diffusion"} and log[9]["loss"] < 10
    train(copy, out.with_name("other"), data_of(out), "--loss=plain", "--micro_batch=3")
    assert_same_losses(out, out.with_name("other"))


def relu2(copy, out, log, before, text):
    assert log[-1]["flops"] < before[-1]["flops"]
    assert "model.py has changed since" in export(ROOT, out, "llama")
    refusal = "these weights differ: blocks.0.up.weight|was made by another model.py"
    assert re.search(refusal, export(ROOT, out, "llama"))
    assert re.search("no place for blocks.0.up.weight|gate_up", export(copy, out, "eurobert"))


def data_of(out):
    return json.loads((out / "config.json").read_text())["settings"]["data"]


def dropout(copy, out, log, before, text):
    """It is off in validation: see SAME_WEIGHTS."""
    assert log[1]["loss"] != before[1]["loss"]
    train(copy, out.with_name("recomputed"), data_of(out), "--recompute=True")
    assert metrics(out.with_name("recomputed")) == metrics(out)


def average(copy, out, log, before, text):
    assert log[39]["loss"] == before[39]["loss"] and log[-1]["val_mlm_loss"] != before[-1]["val_mlm_loss"]
    halfway, end = (checkpoint.load(out / f"ckpt-{step}.pt") for step in (20, 40))
    assert all(torch.equal(x, p) for x, p in zip(end["average"], end["model"].values(), strict=True))
    assert not any(torch.equal(x, p) for x, p in zip(halfway["average"], halfway["model"].values(), strict=True))
    branch = out.with_name("branch")
    train(copy, branch, data_of(out), f"--branch_from={out}/ckpt-20.pt")
    assert all(map(torch.equal, checkpoint.load(branch / "ckpt-40.pt")["average"], end["average"]))


def z_loss(copy, out, log, before, text):
    assert log[1]["loss"] == pytest.approx(before[1]["loss"] + 1e-4 * math.log(4096) ** 2, abs=1e-3)
    assert log[-1]["val_mlm_loss"] == pytest.approx(before[-1]["val_mlm_loss"], abs=0.1)


def schedule_free(copy, out, log, before, text):
    """The embedding is the first parameter."""
    assert {line["lr"] for line in log[3:]} == {3e-3}
    for step, is_average in (20, False), (40, True):
        state = checkpoint.load(out / f"ckpt-{step}.pt")
        average = state["optimizer"]["schedule-free"]["state"][0]["x"]
        assert torch.equal(average, state["model"]["embedding.weight"]) == is_average


def local(copy, out, log, before, text):
    assert log[1]["loss"] != before[1]["loss"]
    assert "computes something else than this project" in export(copy, out, "eurobert")


def frozen(copy, out, log, before, text):
    first, last = (checkpoint.load(out / f"ckpt-{step}.pt") for step in (8, 40))
    torch.manual_seed(1)
    drawn = Transformer(ModelConfig(**first["config"])).state_dict()
    same = [name for name, p in drawn.items() if torch.equal(p, first["model"][name])]
    assert same == [name for name in drawn if name.startswith("blocks.0.")]
    assert not any(torch.equal(p, last["model"][name]) for name, p in drawn.items())


def growing(copy, out, log, before, text):
    windows = [math.ceil(16 * min(1.0, 0.25 + step / 40)) for step in range(40)]
    assert [line["tokens"] for line in log] == [32 * sum(windows[:step]) for step in range(41)]
    assert f"{32 * sum(windows):,} tokens in 40 steps" in text and log[-1]["flops"] < before[-1]["flops"]


CHECKS = [cosine, normuon, falling, prefix, diffusion, relu2, dropout, average, z_loss, schedule_free, local, frozen]
CHECKS = dict(zip(EDITS, [*CHECKS, growing], strict=True))
FAST = ("A prefix LM in a quarter of the windows",)
SAME_WEIGHTS = EDITS.keys() - {"ReLU² instead of SwiGLU", "Local and global layers"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in EDITS])
def test_an_edit_is_followed(name, unedited, data_dir, tmp_path):
    """Its last 20 steps, done again by a resumed run, are the same bit for bit."""
    copy, out, more = edited(EDITS[name], tmp_path / "copy"), tmp_path / "run", MORE.get(name, [])
    text = train(copy, out, data_dir, *more)
    train(copy, copy_up_to(20, out, tmp_path / "again"), data_dir, "--resume=True", *more)
    assert_same_end(out, tmp_path / "again", 40)
    log, before = read_metrics(out), read_metrics(unedited)
    for key in ("val_clm_loss", "val_mlm_loss") if name in SAME_WEIGHTS else ():  # validation is the same
        assert log[0][key] == pytest.approx(before[0][key], rel=1e-6)
    CHECKS[name](copy, out, log, before, text)


def replaced(folder, file, before, after):
    """Copy the code into a new folder, with one text of a file replaced."""
    copy = shutil.copytree(ROOT, folder, ignore=UNUSED)
    text = (copy / file).read_text()
    assert text.count(before) == 1
    (copy / file).write_text(text.replace(before, after))
    return copy


NOT_FOLLOWED = {  # what a run says: a file, a text of it, and what is there instead
    "attention=auto: `attention_mask` in model.py is edited: give --attention=reference": NEAR,
    "loss=fused: it differs from --loss=plain": (
        "model.py", "loss = plain_loss if", "loss = (lambda *x: (2 - causal) * plain_loss(*x)) if"),
    "loss=fused": ("model.py", "return self.head(hidden)", "return 30 * torch.tanh(self.head(hidden) / 30)"),
    "mask_ratio=0.0: it hides 0 of": ("train.py", "MLM(cfg.mask_ratio,", "MLM(cfg.mask_ratio * (step < 38),"),
    "mlm: its examples of a window differ from call to call": (
        "data/objective.py", "        random = w.random()\n",
        "        random = np.random.default_rng().integers(0, 2**63, w.tokens.shape).astype(np.uint64)\n"),
    "`objective` in train.py differs from call to call": (
        "train.py", "if step < cfg.switch_step or (window + step) % n_windows < round(cfg.clm_windows * n_windows):",
        "if torch.rand(()) < 0.5:"),
    "'CLM' object has no attribute 'name'": ("data/objective.py", '    name = "clm"\n', ""),
    "PretrainingLoss has weights of its own": (
        "model.py", "        self.plain = plain", "        self.probe = nn.Linear(2, 2)\n        self.plain = plain"),
}  # fmt: skip


@pytest.mark.parametrize("message", NOT_FOLLOWED)
def test_what_a_run_would_not_follow_is_refused(message, data_dir, tmp_path):
    copy = replaced(tmp_path / "copy", *NOT_FOLLOWED[message])
    code, text = start(copy, tmp_path / "run", data_dir)
    assert code and message in text and not (tmp_path / "run/metrics.jsonl").exists(), text


def test_an_objective_that_differs_in_each_process_is_not_continued(data_dir, tmp_path):
    """As with hash("a text"), which Python salts."""
    before = NOT_FOLLOWED["`objective` in train.py differs from call to call"][1]
    copy, out = replaced(tmp_path / "copy", "train.py", before, "if hash((getpid(), step)) % 2:"), tmp_path / "run"
    script = (copy / "train.py").read_text()
    (copy / "train.py").write_text(script.replace("import math\n", "import math\nfrom os import getpid\n", 1))
    train(copy, out, data_dir)
    (out / "ckpt-40.pt").unlink()
    code, text = start(copy, out, data_dir, "--resume=True")
    assert code == 1 and "ckpt-20.pt: when it was made, `objective` in train.py returned something else" in text, text
    assert sum(line["tokens_per_s"] is None for line in read_metrics(out)[1:]) == 2  # the first of each phase


def test_weights_can_be_frozen(data_dir, tmp_path):
    before, freeze = "    return transformer, loss_module", "    transformer.embedding.weight.requires_grad_(False)\n"
    train(replaced(tmp_path / "copy", "train.py", before, freeze + before), tmp_path / "run", data_dir)
    first, last = (checkpoint.load(tmp_path / f"run/ckpt-{step}.pt")["model"] for step in (20, 40))
    assert [name for name in first if torch.equal(first[name], last[name])] == ["embedding.weight"]
