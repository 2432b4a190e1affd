"""Use a checkpoint: fill in masks, continue a prompt, embed lines of text.

    python eval/sample.py --ckpt=out/demo --fill="Return the [MASK] of the list."
    python eval/sample.py --ckpt=out/demo --prompt="The following" --tokens=40
    python eval/sample.py --ckpt=out/demo --embed=lines.txt --embed_out=lines.npy

Filling in and embedding use the weights as an encoder (causal=False), continuing as a
decoder (causal=True). A model that was only trained one way does the other badly.
"""

import sys
from pathlib import Path

import numpy as np
import torch

import checkpoint
import configurator
from data.tokenizer import Tokenizer
from data.files import write_whole
from errors import Damaged, DataError
from model import Transformer

ckpt = "out/demo"  # a checkpoint, the folder of a run (its newest one), or a model of the hub
fill = ""  # a text with [MASK] in it: prints the likeliest tokens of each mask
prompt = ""  # a text to continue
tokens = 40  # how many tokens to continue it by
temperature = 0.7  # of the continuation; 0 takes the likeliest token each time
seed = 1  # of the continuation
embed = ""  # a text file: each line becomes a vector, the mean of its hidden states
embed_out = "embeddings.npy"  # where the vectors go: float32 (lines, d_model)

# What `examples` fills in and continues: sentences in the style of the embedded corpus.
FILL = (
    "Return the [MASK] of the list.",
    "If the file does not [MASK], an error is raised.",
    "The second argument is [MASK] to the function.",
    "This method [MASK] called when the object is created.",
)
CONTINUE = ("Return the", "The following example", "If the argument is")


@torch.no_grad()
def fill_in(model, tokenizer, text, k=5):
    """The k likeliest tokens of each [MASK] of a text: a list of [(token, probability), ...], best first."""
    ids = torch.tensor([tokenizer.encode_masked(text)], device=model.device)  # (1, T)
    hidden = model(ids, causal=False)[ids == tokenizer.mask_id]  # (n_masks, d_model)
    p, best = model.logits(hidden).float().softmax(-1).topk(k)
    return [[(tokenizer.decode([i]), q) for i, q in zip(*row)] for row in zip(best.tolist(), p.tolist())]


@torch.no_grad()
def continue_text(model, tokenizer, text, n, temperature=0.7, seed=1):
    """The text and n more tokens, sampled one by one with the causal mask; it ends early at an eos."""
    random = torch.Generator().manual_seed(seed)
    ids = [tokenizer.eos_id] + tokenizer.encode(text)  # the eos of the document before, as in training
    for _ in range(n):
        seen = torch.tensor([ids[-model.config.seq_len :]], device=model.device)
        logits = model.logits(model(seen, causal=True)[0, -1]).float().cpu()  # (V,)
        if temperature > 0:
            chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=random)
        else:
            chosen = logits.argmax()
        if chosen == tokenizer.eos_id:
            break
        ids.append(int(chosen))
    return tokenizer.decode(ids[1:])


@torch.no_grad()
def embed_lines(model, tokenizer, lines, batch=32):
    """The mean of each line's hidden states (causal=False): float32 (lines, d_model), and how many were cut at seq_len."""
    ids = [tokenizer.encode(line) + [tokenizer.eos_id] for line in lines]
    T = model.config.seq_len
    vectors = torch.empty(len(ids), model.config.d_model)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # lines of like length share a batch
    for first in range(0, len(order), batch):
        rows = order[first : first + batch]
        length = torch.tensor([min(len(ids[i]), T) for i in rows], device=model.device)[:, None]
        padded = torch.full((len(rows), int(length.max())), tokenizer.pad_id)
        for row, i in zip(padded, rows):
            row[: min(len(ids[i]), T)] = torch.tensor(ids[i][:T])
        real = torch.arange(padded.shape[1], device=model.device) < length  # (B, T)
        start = torch.zeros_like(real, dtype=torch.int32)
        hidden = model(padded.to(model.device), False, start, (real * length).int()).float()  # padding: start == end
        vectors[rows] = ((hidden * real[..., None]).sum(1) / length).cpu()
    return vectors.numpy(), sum(len(i) > T for i in ids)


def examples(model, tokenizer):
    """A few masks filled in and a few prompts continued, by the same weights, as text."""
    lines = ["  filled in (causal=False)"]
    for text in FILL:
        best = ", ".join(f"{token.strip() or token!r} {p:.0%}" for token, p in fill_in(model, tokenizer, text)[0])
        lines.append(f"    {text}  {best}")
    lines.append("  continued (causal=True, temperature 0.7)")
    for text in CONTINUE:
        lines.append("    " + continue_text(model, tokenizer, text, 24).replace("\n", " "))
    return "\n".join(lines)


def check(s):
    if not any((s["fill"], s["prompt"], s["embed"])):
        yield "nothing to do: give --fill, --prompt or --embed"
    if s["fill"] and "[MASK]" not in s["fill"]:
        yield f"fill={s['fill']!r}: has no [MASK]"
    if s["embed"] and not Path(s["embed"]).is_file():
        yield f"embed={s['embed']}: no such file"
    if s["embed"] and not Path(s["embed_out"]).absolute().parent.is_dir():
        yield f"embed_out={s['embed_out']}: no such folder"
    if s["tokens"] < 1 or s["temperature"] < 0:
        yield f"tokens={s['tokens']}, temperature={s['temperature']}: must be at least 1 and at least 0"


def main():
    globals().update(configurator.load(__file__, sys.argv[1:], check))
    try:
        state = checkpoint.load(ckpt)
        lines = Path(embed).read_text(encoding="utf-8").splitlines() if embed else []
    except (Damaged, DataError, UnicodeDecodeError) as error:
        sys.exit(f"{error}")
    model = Transformer.from_state(state)
    tokenizer = Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])
    if fill:
        if (length := len(tokenizer.encode_masked(fill))) > model.config.seq_len:
            sys.exit(f"fill: {length} tokens, but this model's seq_len is {model.config.seq_len}")
        for mask, best in enumerate(fill_in(model, tokenizer, fill), 1):
            print(f"mask {mask}: " + ", ".join(f"{token!r} {p:.1%}" for token, p in best))
    if prompt:
        print(continue_text(model, tokenizer, prompt, tokens, temperature, seed))
    if embed:
        vectors, cut = embed_lines(model, tokenizer, lines)
        write_whole(embed_out, lambda f: np.save(f, vectors))
        print(f"{embed_out}: {len(vectors)} vectors of {vectors.shape[1]}; {cut} lines were cut at {model.config.seq_len} tokens")


if __name__ == "__main__":
    main()
