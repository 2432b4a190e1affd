"""Use a checkpoint: fill in masks, continue a prompt.

    python -m eval.sample --ckpt=out/demo --fill="Return the [MASK] of the list."
    python -m eval.sample --ckpt=out/demo --prompt="The following" --tokens=40

Filling in uses the weights as an encoder (causal=False), continuing uses them as a decoder (causal=True).
A model that was trained with one objective only does the other badly.
"""

import sys

from errors import exit_with_message  # first: it says what to install

# isort: split
import torch

import checkpoint
import configurator
from data.objective import phases_of, predicts_from, title

ckpt = "out/demo"  # a checkpoint, the folder of a run (its newest checkpoint), or a model from the hub
fill = ""  # a text with [MASK] in it: prints the likeliest tokens for each mask
prompt = ""  # a text to continue
tokens = 40  # how many tokens to add to the prompt
temperature = 0.7  # sampling temperature; 0 always takes the likeliest token
seed = 1  # seed of the sampling

# Texts for `print_examples`, in the style of the embedded corpus.
FILL = (
    "Return the [MASK] of the list.",
    "If the file does not [MASK], an error is raised.",
    "The second argument is [MASK] to the function.",
    "This method [MASK] called when the object is created.",
)
CONTINUE = ("Return the", "The following example", "If the argument is")


@torch.no_grad()
def fill_in(model, tokenizer, text, k=5, predict_from="mask"):
    """Return the k likeliest tokens for each [MASK] of a text: a list of [(token, probability), ...], best first.

    predict_from: which position predicts a mask, "mask" itself or the one "before"; see `data.objective.predicts_from`.
    """
    ids = tokenizer.encode_masked(text)
    masks = [i for i, token in enumerate(ids) if token == tokenizer.mask_id]
    if predict_from == "before":
        ids = [tokenizer.eos_id] + ids  # as in training, after a document; moves token i to i + 1
    hidden = model(torch.tensor([ids], device=model.device), causal=False)  # (1, T, d_model)
    p = model.logits(hidden[0, masks]).float().softmax(-1)  # (n_masks, V)
    return [[(tokenizer.decode([i]), of_mask[i].item()) for i in of_mask.topk(k).indices.tolist()] for of_mask in p]


@torch.no_grad()
def continue_text(model, tokenizer, text, n, temperature=0.7, seed=1):
    """Return the text with up to n more tokens, sampled one by one with the causal mask. Sampling stops at an eos."""
    random = torch.Generator().manual_seed(seed)
    ids = [tokenizer.eos_id] + tokenizer.encode(text)  # as in training, after a document
    for _ in range(n):
        window = torch.tensor([ids[-model.config.seq_len :]], device=model.device)  # (1, T)
        logits = model.logits(model(window, causal=True)[0, -1]).float().cpu()  # (V,)
        p = (logits / max(temperature, 1e-5)).softmax(-1)  # at 0, the likeliest token has probability 1
        chosen = torch.multinomial(p, 1, generator=random).item()
        if chosen == tokenizer.eos_id:
            break
        ids.append(chosen)
    return tokenizer.decode(ids[1:])


def print_examples(run):
    """Fill in a few masks and continue a few prompts with the run's weights, and print the texts."""
    model = run.transformer.eval()
    tokenizer = run.tokenizer
    lines = [f"\nat step {run.step}, the end of {title(run.phase)}", "  filled in (causal=False)"]
    try:
        with torch.compiler.set_stance("force_eager"):  # otherwise each length is compiled
            for text in FILL:
                (mask,) = fill_in(model, tokenizer, text, predict_from=run.predict_from)
                tokens = [f"{token.strip() or token!r} {p:.0%}" for token, p in mask]
                lines.append(f"    {text}  {', '.join(tokens)}")
            lines.append("  continued (causal=True, temperature 0.7)")
            for text in CONTINUE:
                lines.append("    " + continue_text(model, tokenizer, text, 24).replace("\n", " "))
    finally:  # also if a text is too long for the model
        model.train()
    run.bar.write("\n".join(lines) + "\n")


def check(cfg):
    if not cfg.fill and not cfg.prompt:
        yield "nothing to do: give --fill or --prompt"
    if cfg.fill and "[MASK]" not in cfg.fill:
        yield f"fill={cfg.fill!r}: has no [MASK]"


@exit_with_message()
def main(argv):
    cfg = configurator.load(__file__, argv, check, "python -m eval.sample")
    try:
        state = checkpoint.load(cfg.ckpt)
        model = checkpoint.model_from(state)
        tokenizer = checkpoint.tokenizer_of(state)
        if cfg.fill:
            masks = fill_in(model, tokenizer, cfg.fill, predict_from=predicts_from(phases_of(state)))
            for number, best in enumerate(masks, 1):
                print(f"mask {number}:", ", ".join(f"{token!r} {p:.1%}" for token, p in best))
        if cfg.prompt:
            print(continue_text(model, tokenizer, cfg.prompt, cfg.tokens, cfg.temperature, cfg.seed))
    except ValueError as error:  # for example, the text is longer than seq_len
        sys.exit(error)


if __name__ == "__main__":
    main(sys.argv[1:])
