"""The commands, edits and exercises of the lesson do what it says; so do its tools, which show what the model does."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from html import escape
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import checkpoint
from data.loader import Batches, TokenStream
from data.objective import CLM, MLM, phase_of
from data.shards import load_meta
from data.tokenizer_files import read_tokenizer
from eval.lesson import explain, gallery
from eval.plot import read_metrics
from eval.sample import fill_in
from helpers import ROOT, TINY, UNUSED, Run, edited, succeed
from model import attention_mask, ModelConfig, Transformer

tokenizer = read_tokenizer("embedded")
LESSON = (ROOT / "LESSON.md").read_text()
EXERCISES = (ROOT / "docs/exercises.md").read_text()
DIFFS = re.findall(r"```diff\n(.*?)```", LESSON, re.S)
lesson = runpy.run_path(str(ROOT / "eval/lesson/__main__.py"))["main"]


def commands(text):
    """The commands of a page's shell blocks."""
    return "".join(re.findall(r"```sh\n(.*?)```", text, re.S)).splitlines()


FRAMES = dict(re.findall(r"Save this as `(\w+\.py)`.*?```python\n(.*?)```", LESSON, re.S))  # that a reader completes
EDITS = [commands(section)[0] for section in re.split("^### Edit", LESSON, flags=re.M)[1:]]  # what trains each edit


def scaled(steps):
    """Steps of a run of 650, such as "200, 210", in a run of 20."""
    return re.sub(r"\d+", lambda step: str(int(step[0]) * 20 // 650), steps)


def small(command, data):
    """Return the script and the arguments of a command, for a tiny model: 650 steps become 20."""
    command = re.sub(r"(?:_steps?=|ckpt-)[\d,]+", lambda steps: scaled(steps[0]), command)
    _, script, *args = shlex.split(command.replace(" -m ", " "))
    if script == "train.py":
        args = [*TINY, "--switch_step=6", "--checkpoint_interval=18", "--eval_interval=20", f"--data={data}", *args]
    if script == "finetune.py":
        args += ["--max_steps=2"]
    return script, args


def completed(name):
    """The code of a page's file, completed with its solution, for windows of 32 tokens and runs of 20 steps."""
    (line,) = [line for line in FRAMES[name].splitlines() if "..." in line]
    solution = re.search(rf"\*\*{name}\.\*\*.*?```python\n(.*?)\n```", LESSON, re.S)[1]
    code = FRAMES[name].replace(line, solution).replace("= 128, 64,", "= 32, 16,").replace("// 128", "// 32")
    return re.sub(r"(?<= in )200, .*650(?=:)", lambda steps: scaled(steps[0]), code)


def start_all(some_commands, folder, data):
    """Start commands that need no edit, at a small size. nano.py and the judges have tests of their own."""
    for command in some_commands:
        if "nano.py" not in command and not command.startswith("pytest"):
            script, args = small(command, data)
            script = folder / script if (folder / script).exists() else script
            code, output = Run(args, folder / "output", script, folder).wait()
            assert code == 0, f"{command}\n{output}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data_dir):
    """The folder of a reader who has run every command of the lesson that needs no edit."""
    folder = tmp_path_factory.mktemp("lesson")
    shutil.copytree(data_dir, folder / "data/prepared/embedded")
    for name in FRAMES:
        (folder / name).write_text(completed(name))
    start_all([command for command in commands(LESSON) if command not in EDITS], folder, data_dir)
    return folder


@pytest.mark.slow
def test_the_commands_of_the_lesson_and_of_its_exercises(folder, data_dir):
    start_all(commands(EXERCISES), folder, data_dir)
    for name in "lesson/ckpt-20.pt clm/ckpt-18.pt mlm/ckpt-20.pt gallery/index.html late/ckpt-20.pt".split():
        assert (folder / "out" / name).exists()
    assert {line["phase"] for line in read_metrics(folder / "out/mixed")} == {"clm + mlm"}


@pytest.mark.slow
@torch.no_grad()
def test_the_code_of_the_lesson_measures_what_it_says(folder, monkeypatch, capsys):
    """A cut window is one whose bounds hide the other side; and the counts are those of the batches."""
    monkeypatch.chdir(folder)
    of = runpy.run_path("sides.py")
    tokens, shown, at = of["tokens"], of["shown"], of["at"]
    losses = []
    for pair in (0, 32), (0, 17), (16, 32):
        bounds = (torch.full(shown.shape, bound, dtype=torch.int32) for bound in pair)
        logits = of["model"].logits(of["model"](shown, False, *bounds)[:, at])
        losses.append(F.cross_entropy(logits, tokens[:, at]).item())
    assert (shown[:, at] == of["mask_id"]).all() and losses == pytest.approx([x.item() for x in of["losses"][1:]])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == "6 6 6 6 8 10 20".split() and all(len(row) == 5 for row in rows)

    predicted = runpy.run_path("losses.py")["PREDICTED"]
    stream = TokenStream(folder / "data/prepared/embedded", load_meta(folder / "data/prepared/embedded"), "val")
    batches = Batches([stream], tokenizer, 0, 128, 6)
    for name, objective in ("clm", CLM()), ("mlm", MLM(0.4)):
        assert (batches.batch(0, objective)["targets"] >= 0).sum() == 6 * predicted[name]
    last = read_metrics(folder / "out/mlm")[-1]
    assert f"{20 * 512 * 51 // 32:17,} {last['val_mlm_loss']:5.2f}\n" in capsys.readouterr().out


def test_nano_learns_with_either_mask(capsys):
    path = ROOT / "eval/lesson/nano.py"
    code = path.read_text().replace("max_steps = 800\nswitch_step = 300", "max_steps = 30\nswitch_step = 15")
    nano = {"__file__": str(path)}
    exec(compile(code, path, "exec"), nano)
    first, last = ([float(x) for x in line.split()[1:3]] for line in capsys.readouterr().out.splitlines()[1:])
    assert last[0] < first[0] - 0.3 and last[1] < first[1] - 0.3 and code.count("\n") <= 150
    tokens = nano["encode"]("the list of the items").repeat(2, 1)
    tokens[1, -1] = nano["MASK"]
    for causal in True, False:
        assert torch.equal(*nano["model"](tokens, causal)[:, :-1]) == causal
    tokens = nano["windows"](nano["val_tokens"], 4, seed=0)
    shown, targets = nano["examples"](tokens, True)
    assert torch.equal(shown, tokens) and torch.equal(targets[:, :-1], tokens[:, 1:]) and targets[:, -1].eq(-1).all()
    shown, targets = nano["examples"](tokens, False)
    assert torch.equal(shown == nano["MASK"], targets >= 0) and torch.equal(tokens, shown.where(targets < 0, targets))


WRONG = {  # of each function to build, a line of ours and a mistake in it
    "learning_rate": ("min(1.0, warmup, decay)", "min(1.0, warmup)"),
    "attention_mask": ("t[None, :] <= t[:, None]", "t[None, :] < t[:, None]"),
    "MLM.examples": ("targets = np.where(hidden, w.tokens, -1)", "targets = np.where(hidden, shown, -1)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_a_judge_notices_a_mistake_of_a_student(number, tmp_path):
    """It passes with our function, as part of the suite."""
    file, name = re.findall(r"^\| `([\w./]+\.py)` \| `([\w.]+)` \|", EXERCISES, re.M)[number]
    judge = [command for command in commands(EXERCISES) if command.startswith("pytest")][number]
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=lambda *at: UNUSED(*at) - {"tests"})
    before, _, after = (copy / file).read_text().partition(WRONG[name][0])
    assert f"def {name.rpartition('.')[2]}(" in before and WRONG[name][0] not in after
    (copy / file).write_text(before + WRONG[name][1] + after)
    command = [sys.executable, "-m", *shlex.split(judge), "-x", "-p", "no:cacheprovider"]
    assert subprocess.run(command, cwd=copy, capture_output=True).returncode == 1  # 5: there is no such test


def test_the_edits_do_what_the_lesson_says(tmp_path, data_dir):
    """The first hides the right from both. The second keeps 40 % of the targets. The third swaps the phases."""
    found = []
    for diff, file, name in zip(DIFFS, ("model", "data/objective", "train"), ("attention_mask", "CLM", "objective")):
        found.append(runpy.run_path(f"{edited(diff, tmp_path / name)}/{file}.py")[name])
    mask, few, objective = found
    assert torch.equal(mask(5, False), attention_mask(5, True)) and torch.equal(mask(5, True), mask(5, False))
    stream = TokenStream(data_dir, load_meta(data_dir), "train")
    batches = Batches([stream], tokenizer, 1, 60, 8)
    batch, whole = batches.batch(3, few()), batches.batch(3, CLM())
    kept = batch["targets"] >= 0
    assert torch.equal(batch["tokens"], whole["tokens"]) and kept.sum() == 8 * 24
    assert torch.equal(batch["targets"][kept], whole["targets"][batch["positions"][kept]])
    cfg = SimpleNamespace(switch_step=2, max_steps=4, mask_ratio=0.4, predict_from="mask", mask_proportions=(1, 0, 0))
    assert [phase_of({objective(step, 0, 8, cfg): [0]}) for step in range(4)] == ["mlm", "mlm", "clm", "clm"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_the_command_of_an_edit(number, folder, data_dir, tmp_path):
    script, args = small(EDITS[number], data_dir)
    copy = edited(DIFFS[number], tmp_path / "copy")
    succeed([Run(args, tmp_path / "output", copy / script, folder).wait()])
    (out_dir,) = (arg.removeprefix("--out_dir=") for arg in args if arg.startswith("--out_dir="))
    assert read_metrics(folder / out_dir)[-1]["phase"] == ["mlm", "clm", "clm"][number]


@pytest.fixture
def model():
    torch.manual_seed(0)
    shape = dict(vocab_size=4224, n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=48, seq_len=32)
    model = Transformer(ModelConfig(**shape, head_dim=16, qk_norm=True))
    for p in model.parameters():  # larger than at the start of training, so that a wrong mask shows
        p.data.mul_(5)
    return model


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_attention_weights_are_the_models(model, causal):
    """Combined with the values, they give the output of the last layer."""
    ids, kept, last = torch.arange(40, 52), {}, model.blocks[-1]
    last.attn_norm.register_forward_hook(lambda module, inputs, output: kept.update(x=output))
    last.attn_out.register_forward_pre_hook(lambda module, inputs: kept.update(heads=inputs[0]))
    weights = gallery.attention_weights(model, ids, causal)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 12))
    assert bool((weights.triu(1) == 0).all()) == causal
    v = last.qkv(kept["x"])[0, :, -2 * 16 :].view(12, 2, 16).repeat_interleave(2, dim=1)  # (T, H, D)
    torch.testing.assert_close(torch.einsum("hqk,khd->qhd", weights, v).reshape(1, 12, 64), kept["heads"])


@torch.no_grad()
def test_predictions_are_the_models(model):
    text = "Return the [MASK] of the list."
    ids = torch.tensor(tokenizer.encode_masked(text))
    clm, mlm = explain.predictions(model, ids, tokenizer)
    torch.testing.assert_close(clm, model.logits(model(ids[None], True)[0]).softmax(-1))
    (best,) = fill_in(model, tokenizer, text, k=3)
    torch.testing.assert_close(mlm[2].topk(3).values, torch.tensor([p for _, p in best]))
    alone = ids.clone()
    alone[4] = tokenizer.mask_id
    torch.testing.assert_close(mlm[4], model.logits(model(alone[None], False)[0, 4]).softmax(-1))
    lines = explain.guess_table(model, tokenizer, ids.tolist()).splitlines()[1:]
    for i, token in enumerate(ids):  # what is known of token i: the probability of a mask is not
        p = [clm[i - 1, token]] * (i > 0) + [mlm[i, token]]
        shown = re.findall(r"(?<=  )[\d.]+%(?=  )", lines[i])
        assert shown == [f"{each:.1%}" for each in p] * (token != tokenizer.mask_id)


def test_the_batch_is_the_next_of_the_run(undisturbed, tmp_path, capsys):
    """CLM predicts the next input, MLM what CLM sees at the hidden positions."""
    _, run = undisturbed
    lesson([f"--ckpts={run}", "--text=The file of", f"--out={tmp_path}"])
    text, *_ = capsys.readouterr().out.partition("\n\n/")
    assert text + "\n" == Path(__file__).with_name("batch.txt").read_text()


def test_the_gallery_draws_the_masks_and_needs_no_network(undisturbed, tmp_path):
    _, run = undisturbed
    lesson([f"--ckpts={run}/ckpt-5.pt,{run}", f"--out={tmp_path}", "--text=a < b [MASK]"])
    page = (tmp_path / "index.html").read_text()
    assert not re.findall("(?:src|href)=", page) and escape("' <'") in page and " <'" not in page
    hidden, _ = explain.example(checkpoint.load(run / "ckpt-5.pt"), tokenizer)["MLM"]
    n = 12 * hidden.count("[MASK]")
    squares = Counter(re.findall('fill="(#.*?)" stroke', page))  # those of attention weights are gray
    assert squares == {gallery.SEEN: 78 + 144 - n, gallery.UNSEEN: 66, gallery.HIDDEN: n}
