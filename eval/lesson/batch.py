"""Show the same tokens as CLM trains on them and as MLM does: the input above the targets, from a run's own batches.

python -m eval.lesson batch --run=out/demo --step=200
"""

import torch

import configurator
from data.loader import make_batches
from data.objective import CLM, Objective, mask_ratios
from data.shards import load_meta, load_tokenizer
from eval.lesson.explain import print_table, token_name
from eval.lesson.per_token import check_runs, read_config

run = "out/demo"  # the folder of a run
step = 200  # whose batch; its first tokens are shown

TOKENS = 12  # how many tokens to show


def example(run, step):
    """Return {objective: (inputs, targets)} of the first tokens of a batch as text, "" where there is no target.

    MLM has the run's first mask ratio, and its targets are at the positions that predict them in this run.
    """
    config = read_config(run)
    cfg, T = configurator.Settings(config["settings"]), config["model"]["seq_len"]
    cfg["mask_ratio"] = mask_ratios(cfg)
    mlm = Objective(False, cfg.mask_ratio[0], cfg.get("predict_from", "mask"))
    meta = load_meta(cfg.data)
    tokenizer = load_tokenizer(cfg.data, meta)
    batches, _ = make_batches(cfg, meta, tokenizer, T)
    shown = {}
    for name, objective in {"CLM": CLM, "MLM": mlm}.items():
        batch, targets = batches.batch(step, objective, [0]), torch.full((T,), -1)
        predicted = batch["targets"] >= 0
        targets[batch["positions"][predicted]] = batch["targets"][predicted]
        rows = batch["tokens"][0, :TOKENS].tolist(), targets[:TOKENS].tolist()
        shown[name] = [[token_name(tokenizer, i) for i in row] for row in rows]
    return shown


def main(argv):
    cfg = configurator.load(__file__, argv, lambda cfg: check_runs([cfg.run]), "python -m eval.lesson batch")
    rows = [("position", *map(str, range(TOKENS)))]
    for name, (inputs, targets) in example(cfg.run, cfg.step).items():
        rows += [(f"{name} input", *inputs), (f"{name} target", *targets)]
    print_table(rows)
