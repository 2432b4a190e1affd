"""Show what both objectives ask and what models answer, in the terminal and as pictures on an HTML page.

    python -m eval.lesson --ckpts=out/lesson/ckpt-200.pt,out/lesson --text="Return the [MASK] of the list."

LESSON.md says what to look for.
"""

import sys
from html import escape
from pathlib import Path
from string import Template

import torch

import configurator
from errors import exit_with_message
from eval.lesson import explain, gallery

ckpts = ("out/lesson",)  # checkpoints, folders of runs (their newest checkpoint), or models of the hub
text = "If the file does not [MASK], an error is raised."  # the sentence
out = "out/gallery"  # the folder for the page

PAGE = Path(__file__).with_name("gallery.html").read_text(encoding="utf-8")  # three parts: beginning, batch, model


@exit_with_message()
def main(argv):
    cfg = configurator.load(__file__, argv, command="python -m eval.lesson")
    page, batch_part, model_part = PAGE.split("<!-- part -->\n")
    for ckpt in cfg.ckpts:
        state, model, tokenizer = explain.read(ckpt)
        ids = explain.encode(cfg.text, model, tokenizer)
        step = state["step"]
        if batch_part and state["settings"]:  # a model of the hub has no settings
            shown = explain.example(state, tokenizer)
            print(f"The first tokens of the batch of step {step}\n\n{explain.batch_table(shown)}\n")
            pictures = {name: gallery.mask_picture(name, *rows) for name, rows in shown.items()}
            page += Template(batch_part).substitute(pictures, step=step)
            batch_part = ""  # show it once
        guesses = explain.guess_table(model, tokenizer, ids)
        print(f"{ckpt}, step {step} (p: probability of the token itself; then the likeliest tokens)\n\n{guesses}\n")
        pictures = gallery.attention_pictures(model, torch.tensor(ids), [explain.token_name(tokenizer, i) for i in ids])
        page += Template(model_part).substitute(step=step, guesses=escape(guesses), attention=pictures)
    folder = Path(cfg.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(page + "</html>\n", encoding="utf-8")
    print(f"For pictures, open {folder}/index.html in a browser.")


if __name__ == "__main__":
    main(sys.argv[1:])
