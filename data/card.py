"""The model card of an exported model: the README.md of its folder, made from the templates in card.txt."""

from pathlib import Path

from data.objective import describe, phases_of


def read_parts(name):
    """Return {title: text} of a file in data/ whose parts begin with a line "=== title"."""
    parts = {}
    for part in Path(__file__).with_name(name).read_text(encoding="utf-8").split("=== ")[1:]:
        title, _, parts[title] = part.partition("\n")
    return parts


# The template of the card and, for each kind of model, what it is and, after an empty line, how to use it. Names in
# braces are filled in from the checkpoint's dict and from the arguments of `model_card`.
PARTS = read_parts("card.txt")


def model_card(state, note="", **facts):
    """Return the text of the card.

    state: the dict of the checkpoint. note: the part of card.txt that stands before the code, if any. facts: `title`,
    the folder's name; `tag`, see hub.CLASSES; `max_len`, in tokens; `parameters`, how many.
    """
    facts = state | facts
    facts["objectives"] = describe(phases_of(state)) or "see the card of the model that it began with"
    part = facts["tag"]
    if "fine_tuned" in state:
        part = state["fine_tuned"]["family"]
        task = state["fine_tuned"]["task"]
        facts["form"] = task["form"] or "\n".join(["{}"] * len(task["columns"] or "1"))
    facts["what"], _, code = PARTS[part].partition("\n\n")
    facts["code"] = code.format(**facts)
    facts["note"] = PARTS[note].format(**facts) if note else ""
    return PARTS["card"].format(**facts)
