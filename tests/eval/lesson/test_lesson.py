"""The commands, edits and exercises of the lesson do what it says; so do its tools, which show what the model does."""

import re
import runpy
import shlex
from collections import Counter
from html import escape
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F

import checkpoint
import configurator
from data.loader import Batches, TokenStream
from data.objective import CLM, MLM, phase_of
from data.shards import load_meta
from data.tokenizer import Tokenizer
from errors import Damaged, DataError
from eval.lesson import explain, gallery, per_token, switch
from eval.plot import read_metrics
from eval.sample import fill_in
from helpers import ROOT, TINY, Run, edited, record, succeed
from model import attention_mask, ModelConfig, Transformer

LESSON = (ROOT / "LESSON.md").read_text()
EXERCISES = (ROOT / "docs/exercises.md").read_text()
DIFFS = re.findall(r"```diff\n(.*?)```", LESSON, re.S)


def commands(text):
    """The commands of a page's shell blocks."""
    return "".join(re.findall(r"```sh\n(.*?)```", text, re.S)).splitlines()


EDITS = [commands(section)[0] for section in re.split("^### Edit", LESSON, flags=re.M)[1:]]  # what trains each edit


def small(command, data):
    """Return the script and the arguments of a command, for a tiny model: 650 steps become 20."""

    def scaled(match):
        return match[1] + ",".join(str(int(step) * 20 // 650) for step in match[2].split(","))

    _, script, *args = shlex.split(re.sub(r"(--\w+_steps?=|ckpt-)([\d,]+)", scaled, command).replace(" -m ", " "))
    if script == "train.py":
        sizes = [*TINY, "--switch_step=6", "--checkpoint_interval=18", "--eval_interval=20", f"--data={data}"]
        args = sizes + args
    if script == "finetune.py":
        args += ["--max_steps=2", "--baseline=False"]
    return script, args


def start_all(some_commands, folder, data):
    """Start commands that need no edit, at a small size."""
    for command in some_commands:
        script, args = small(command, data)
        code, output = Run(args, folder / "output", script, folder).wait()
        assert code == 0, f"{command}\n{output}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data_dir):
    """The folder of a reader who has run every command of the lesson that needs no edit."""
    folder = tmp_path_factory.mktemp("lesson")
    start_all([command for command in commands(LESSON) if command not in EDITS], folder, data_dir)
    return folder


@pytest.mark.slow
def test_the_commands_of_the_lesson(folder):
    for name in ("lesson/ckpt-20.pt", "clm/ckpt-18.pt", "mlm/ckpt-20.pt", "per_token.png", "gallery/index.html"):
        assert (folder / "out" / name).exists()


@pytest.mark.slow
def test_the_commands_of_the_exercises(folder, data_dir):
    start_all(commands(EXERCISES), folder, data_dir)
    assert (folder / "out/late/ckpt-20.pt").exists()
    assert {line["phase"] for line in read_metrics(folder / "out/mixed")} == {"clm + mlm"}


def test_edit_1_hides_the_right_from_both(tmp_path):
    mask = runpy.run_path(str(edited(DIFFS[0], tmp_path / "copy") / "model.py"))["attention_mask"]
    assert torch.equal(mask(5, False), attention_mask(5, True)) and torch.equal(mask(5, True), mask(5, False))


def test_edit_2_keeps_40_percent_of_the_targets(tmp_path, data_dir):
    few = runpy.run_path(str(edited(DIFFS[1], tmp_path / "copy") / "data/objective.py"))["CLM"]()
    meta = load_meta(data_dir)
    batches = Batches([TokenStream(data_dir, meta, "train")], Tokenizer.load("embedded"), 1, 60, 8)
    batch, whole = batches.batch(3, few), batches.batch(3, CLM())
    kept = batch["targets"] >= 0
    assert torch.equal(batch["tokens"], whole["tokens"]) and kept.sum() == 8 * 24
    assert torch.equal(batch["targets"][kept], whole["targets"][batch["positions"][kept]])


def test_edit_3_swaps_the_phases(tmp_path):
    objective = runpy.run_path(str(edited(DIFFS[2], tmp_path / "copy") / "train.py"))["objective"]
    cfg = SimpleNamespace(switch_step=2, max_steps=4, mask_ratio=0.4, predict_from="mask", mask_proportions=(1, 0, 0))
    names = [phase_of({objective(step, 0, 8, cfg): [0]}) for step in range(4)]
    assert names == ["mlm", "mlm", "clm", "clm"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_the_command_of_an_edit(number, folder, data_dir, tmp_path):
    script, args = small(EDITS[number], data_dir)
    copy = edited(DIFFS[number], tmp_path / "copy")
    succeed([Run(args, tmp_path / "output", copy / script, folder).wait()])
    (out_dir,) = (arg.removeprefix("--out_dir=") for arg in args if arg.startswith("--out_dir="))
    phases = [line["phase"] for line in read_metrics(folder / out_dir)]
    assert phases[-1] == ["mlm", "clm", "clm"][number]


tokenizer = Tokenizer.load("embedded")


def start(tool, *args):
    """Run a tool as `python -m eval.lesson` does."""
    tool.main(configurator.load(tool.__file__, args, getattr(tool, "check", None)))


@pytest.fixture(scope="module")
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
    ids = torch.arange(40, 52)
    kept = {}
    last = model.blocks[-1]
    hooks = [
        last.attn_norm.register_forward_hook(lambda module, inputs, output: kept.update(x=output)),
        last.attn_out.register_forward_pre_hook(lambda module, inputs: kept.update(heads=inputs[0])),
    ]
    model(ids[None], causal)
    for hook in hooks:
        hook.remove()
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
    at = ids.tolist().index(tokenizer.mask_id)
    torch.testing.assert_close(mlm[at].topk(3).values, torch.tensor([p for _, p in best]))
    alone = ids.clone()
    alone[4] = tokenizer.mask_id
    torch.testing.assert_close(mlm[4], model.logits(model(alone[None], False)[0, 4]).softmax(-1))


@pytest.fixture(scope="module")
def batches(data_dir):
    return Batches([TokenStream(data_dir, load_meta(data_dir), "val")], tokenizer, 0, 32, 6)


@torch.no_grad()
def test_a_hidden_side_is_not_seen(model, batches):
    """Each of the three losses is that of the masked token in a text of its own: whole, up to it, from it."""
    batch = batches.batch(0, MLM(0.25))
    position, targets = batch["positions"].view(6, 8) % 32, batch["targets"].view(6, 8)
    losses = torch.zeros(3)
    for row, tokens in enumerate(batch["tokens"]):
        n = (position[row] - 16).abs().argmin()
        i = position[row, n]
        for kind, (text, k) in enumerate(((tokens, i), (tokens[: i + 1], i), (tokens[i:], 0))):
            losses[kind] += F.cross_entropy(model.logits(model(text[None], False)[0, k]), targets[row, n]) / 6
    torch.testing.assert_close(torch.tensor(switch.context_losses(model, batch, middle=1)), losses)


def test_tokens_predicted_are_the_targets(batches):
    """The tokens that per_token counts as predicted are the targets in the batches."""
    kinds = CLM(), MLM(0.25), MLM(0.125)
    clm, mlm, less = (int((batches.batch(0, kind)["targets"] >= 0).sum()) / 6 for kind in kinds)  # per window

    def last(phases, **more):
        lines = [dict(step=step, phase=phase, tokens=512 * step) for step, phase in enumerate(phases)]
        for line in lines[1:]:
            line |= dict(mask_ratio=0.25) if line["phase"] == "mlm" else {}
        lines[-1] |= dict(val_clm_loss=6, val_mlm_loss=7) | more
        return per_token.loss_curve(lines, 32)[len(phases) - 1]

    assert last(["clm"] * 6) == (5 * 512, 5 * 16 * clm, 6)
    assert last(["clm"] * 9 + ["mlm"] * 2) == (10 * 512, 16 * (8 * clm + 2 * mlm), 7)
    assert last(["mlm"] * 11, mask_ratio=0.125) == (10 * 512, 16 * (9 * mlm + less), 7)


def test_the_batch_is_the_loaders(undisturbed, capsys):
    """CLM predicts the next input, MLM what CLM sees at the hidden positions."""
    _, run = undisturbed
    start(explain, f"--ckpt={run}", "--text=The file of")
    cells = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
    assert cells[0] == ["The first tokens of the batch of step 20"] and cells[2][:2] == ["position", "0"]
    shown = explain.example(checkpoint.load(run / "ckpt-20.pt"), tokenizer)
    (inputs, targets), (hidden, answers) = shown["CLM"], shown["MLM"]
    assert [["CLM input", *inputs], ["CLM target", *targets], ["MLM input", *hidden]] == cells[3:6]
    assert len(inputs) == 12 and targets[:-1] == inputs[1:] and "[MASK]" in hidden
    assert [("[MASK]" if answer else token) for token, answer in zip(inputs, answers)] == hidden
    assert [token if answer else "" for token, answer in zip(inputs, answers)] == answers
    assert cells[-1][1] == "3 (next)" and any(line[:2] == ["", "0 'The'"] for line in cells)


def test_the_switch_has_a_row_for_each_checkpoint(undisturbed, tmp_path, capsys):
    _, run = undisturbed
    start(switch, f"--run={run}", f"--out={tmp_path}/switch.png")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:6]]
    assert [int(row[0]) for row in rows] == [5, 8, 10, 15, 20]
    last = read_metrics(run)[-1]
    assert float(rows[-1][1]) == pytest.approx(last["val_clm_loss"], abs=0.006)
    for row in rows:
        both, left, gain = (float(row[column]) for column in (3, 4, 6))
        assert gain == pytest.approx(left - both, abs=0.011)
    state = checkpoint.load(run)
    checkpoint.save(tmp_path / "ckpt-20.pt", state | {"phases": record({MLM(predict_from="before"): [0]})})
    with pytest.raises(DataError, match="from the position before it"):
        start(switch, f"--run={tmp_path}")


def test_a_run_without_a_log_is_not_compared(undisturbed, tmp_path):
    _, run = undisturbed
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    with pytest.raises(DataError, match=f"runs: {tmp_path} has no log"):
        start(per_token, f"--runs={run},{tmp_path}")


def test_the_gallery_draws_the_masks_and_needs_no_network(undisturbed, tmp_path, monkeypatch):
    _, run = undisturbed
    (tmp_path / "figure.png").write_bytes(b"figure")
    monkeypatch.setattr(gallery, "FIGURES", {f"{tmp_path}/figure.png": "What to see.", "none": "Not there."})
    start(gallery, f"--ckpts={run}/ckpt-5.pt,{run}", f"--out={tmp_path}/gallery", "--text=a < b [MASK]")
    page = (tmp_path / "gallery" / "index.html").read_text()
    assert re.findall(r"(?:src|href)=.{0,23}", page) == ['src="data:image/png;base64,']
    assert "What to see." in page and "Not there." not in page and "one token at a time" in page
    assert page.count("<svg") == page.count("</svg>") == 2 + 2 * 2 * 4 and escape("' <'") in page and " <'" not in page
    hidden, answers = explain.example(checkpoint.load(run / "ckpt-5.pt"), tokenizer)["MLM"]
    n = hidden.count("[MASK]")
    clm, mlm = {gallery.SEEN: 78, gallery.UNSEEN: 66}, {gallery.SEEN: 144 - 12 * n, gallery.HIDDEN: 12 * n}
    pictures = re.findall("<svg.*?</svg>", page, re.S)
    for picture, seen in zip(pictures, (clm, mlm)):
        squares = ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}rect")
        assert Counter(square.get("fill") for square in squares if square.get("stroke")) == seen
    assert pictures[1].count("→") == len(list(filter(None, answers)))


@pytest.mark.parametrize("tool, arg", [
    (explain, "--text="), (explain, "--text=" + "word " * 70), (explain, "--ckpt=nowhere"), (switch, "--run=nowhere"),
    (per_token, "--runs=nowhere,out/x"), (gallery, "--ckpts=nowhere"),
])  # fmt: skip
def test_bad_input(tool, arg, encoder):
    with pytest.raises((SystemExit, DataError, Damaged, FileNotFoundError)):
        start(tool, *[f"--ckpt={encoder}"] * (tool is explain), arg)
