"""Tokenizers of the Hugging Face hub: tokenizer.json in and out.

    read("SmolLM2-135M/")                    -> the arguments of data.tokenizer.Tokenizer
    write(tokenizer, "folder", max_length)   -> tokenizer.json, tokenizer_config.json, special_tokens_map.json

tiktoken runs a byte-level BPE in three steps, and what can be read is what these three can do. Normalise: nothing, or
NFC. Cut the text by one regular expression. In each piece, look the whole piece up; else merge, again and again, the
adjacent pair that makes the token of the lowest id. A tokenizer.json says more: a merge is a pair of tokens and a
priority of its own, and a vocabulary entry need not be the result of one. So `parse` proves that both are the same
function, and refuses what it cannot prove:

1. The ids that the merges make rise along the list: the order of the ids is the order of the merges.
2. Run tiktoken's rule on the bytes of each token alone. Where it ends in that token, its last merge is in the list.
3. With `ignore_merges` off, it ends in the token for each that a merge makes. (Others are never made from text, and
   tiktoken does not get to know them.)

Then the two take the same steps on any text. Each merge in the list is one for tiktoken too, and by 1 in the same
order. A pair that tiktoken merges lies between boundaries that no merge has crossed so far, so what happened between
them is what happens to these bytes alone, and by 2 the list has the pair. 3 is about the look-up of whole pieces.

Where the ids still differ from those of the tokenizers package (version 0.23):
- Added tokens, special or not, are never made from text: Qwen's "<tool_call>" stays eleven characters.
- Each side has its own tables of Unicode. SmolLM2 cuts between digits, and 13 numerals of Unicode 17 are not yet known
  to tiktoken. For NFC, tokenizers leaves marks that are newer than Unicode 9 where they are; Python puts those that
  it knows (98 with Unicode 14) in their order.
"""

import functools
import itertools
import json
import re
import sys
from pathlib import Path

import tiktoken

from errors import DataError

# tokenizer.json writes each byte as one visible character: itself where it is one, else the next from U+0100.
VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
HIDDEN = [byte for byte in range(256) if byte not in VISIBLE]
BYTE_OF = {chr(byte): byte for byte in VISIBLE} | {chr(256 + i): byte for i, byte in enumerate(HIDDEN)}
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # what ByteLevel cuts by
# Digits one by one, then GPT2_PATTERN on each digit and on what is between digits, as one expression: white space that
# a digit follows ends its piece, so all of it goes together.
DIGITS_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"

# What Oniguruma (tokenizers) and fancy-regex (tiktoken) read alike. Not so, for two: `{1,3}+` is possessive here and a
# repetition of a repetition there, and `$` is the end of the text here and of a line there.
ALIKE = re.compile(r"""(?x: \\[pP]\{\w+\} | \\[sSrntz] | \\[^\w\s] | \(\?(?:i?:|[!=>]) | \((?!\?)
    | \[\^? (?: \\[pP]\{\w+\} | \\[sSrnt] | \\[^\w\s] | [^\\\[\]^&~] )+ \]
    | \{\d+(?:,\d*)?\}(?![+?]) | [^\\\[\]{}^$.(] )*""")


def read(path, mask_token="", pad_token=""):
    """The arguments of data.tokenizer.Tokenizer for a folder with tokenizer.json, or for such a file.

    The special tokens are named by tokenizer_config.json, special_tokens_map.json, config.json or
    generation_config.json beside it, the first that does. For those that none names: mask is the first token with
    "reserved" in its name (Llama 3: <|reserved_special_token_0|>, as in the study), else a new id after the largest;
    eos is a new id; pad and bos are eos. `mask_token` and `pad_token` are names of special tokens to take for them. All
    added tokens count as special here.
    vocab_size is config.json's, so that a model keeps its shape, where all ids are below that.

    Raises DataError with all reasons if tiktoken cannot do the same.
    """
    path = Path(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            f"{path} has no tokenizer.json; of hub folders only those with one, of a byte-level BPE, can be read"
        )
    pattern, nfc, ranks, special, largest = parse(file.read_bytes(), str(file))
    special = dict(special)
    names = "tokenizer_config.json", "special_tokens_map.json", "config.json", "generation_config.json"
    configs = {name: read_json(file.with_name(name)) for name in names if file.with_name(name).is_file()}

    def named(kind):
        """The id of the special token that is mask, pad, bos or eos, by name or by id, or None."""
        for name, config in configs.items():
            token, found = config.get(f"{kind}_token"), config.get(f"{kind}_token_id")
            token = token.get("content") if isinstance(token, dict) else token
            found = found[0] if isinstance(found, list) and found else found
            if token in [*special]:
                return special[token]
            if found in special.values():  # a config may carry the default ids of its class, which mean nothing here
                return found
            if config.get(f"{kind}_token"):
                raise DataError(f"{file.with_name(name)}: {kind}_token {token!r} is not in added_tokens of {file}")

    def new(name):
        return special.setdefault(name, max([largest, *special.values()]) + 1)

    for kind, token in ("mask", mask_token), ("pad", pad_token):
        if token and token not in special:
            raise DataError(f"{kind}_token {token!r} is not a special token of {file}; it has {', '.join(special)}")
    reserved = sorted(i for name, i in special.items() if "reserved" in name)
    mask, pad, bos, eos = map(named, ("mask", "pad", "bos", "eos"))
    if mask_token:
        mask = special[mask_token]
    elif mask is None:
        mask = reserved[0] if reserved else new("[MASK]")
    eos = new("[EOS]") if eos is None else eos
    pad, bos = (eos if i is None else i for i in (special.get(pad_token, pad), bos))
    rows, ids = configs.get("config.json", {}).get("vocab_size"), max([largest, *special.values()]) + 1
    return dict(
        name=file.resolve().parent.name, pattern=pattern, ranks=ranks, special_tokens=special, mask_id=mask, pad_id=pad,
        bos_id=bos, eos_id=eos, vocab_size=rows if type(rows) is int and rows >= ids else None, nfc=nfc,
    )  # fmt: skip


def read_json(path):
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object, got a {type(content).__name__}")
    return content


@functools.lru_cache(1)  # the proof takes about 2 s for 128,000 tokens, and a script loads its tokenizer more than once
def parse(data, origin):
    """(pattern, nfc, {token bytes: id}, {name: id of a special token}, largest id) of the bytes of a tokenizer.json."""
    try:
        content = json.loads(data)
        normalizers = steps(content.get("normalizer"), "normalizers")
        pattern = split_pattern(steps(content.get("pre_tokenizer"), "pretokenizers"))
        problems = list(unsupported(content, normalizers, pattern))
        if not problems:
            special = {token["content"]: token["id"] for token in content["added_tokens"]}
            ranks, problems = read_model(content["model"], special)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{origin}: not a tokenizer.json: {type(error).__name__}: {error}") from None
    if problems:
        raise DataError(f"{origin}: tiktoken cannot do what this tokenizer does: " + "; ".join(problems))
    return pattern, bool(normalizers), ranks, special, max([*content["model"]["vocab"].values(), *special.values()])


def steps(step, name):
    """The list of the single steps of a normaliser or pre-tokeniser, which may be null or a nested Sequence."""
    if step is None:
        return []
    return [s for inner in step[name] for s in steps(inner, name)] if step["type"] == "Sequence" else [step]


def split_pattern(pre_tokenizers):
    """The one regular expression that cuts as these pre-tokenisers do, None if there is none known."""
    match pre_tokenizers:
        case [*_, {"type": "ByteLevel", "add_prefix_space": True}]:
            return None
        case [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
              {"type": "ByteLevel", "use_regex": False}]:  # fmt: skip
            return pattern
        case [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": True},
              {"type": "ByteLevel", "use_regex": False}]:  # fmt: skip
            return pattern
        case [*_, {"type": "ByteLevel", "use_regex": False}]:
            return None
        case [{"type": "ByteLevel"}]:  # old files do not name use_regex, which is on
            return GPT2_PATTERN
        case [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}]:
            return DIGITS_GPT2_PATTERN


def unsupported(content, normalizers, pattern):
    """Yield what tiktoken cannot do, with the name of the field and its value."""
    model = content["model"]
    if (kind := model.get("type", "BPE")) != "BPE":  # old files of BPE tokenizers give no type
        yield f"model.type is {kind!r}, it must be BPE"
        return
    if model.get("byte_fallback"):
        yield "model.byte_fallback is true, it must be off (a SentencePiece model, as of Llama 2, Mistral or TinyLlama)"
    for field in "dropout", "continuing_subword_prefix", "end_of_word_suffix":
        if model.get(field):
            yield f"model.{field} is {model[field]!r}, it must be off"
    for step in normalizers:
        if step["type"] != "NFC":
            yield f"normalizer has {json.dumps(step, ensure_ascii=False)}, it must be null or NFC"
    if not pattern:
        yield (f"pre_tokenizer is {json.dumps(content.get('pre_tokenizer'), ensure_ascii=False)}, it must be "
               "ByteLevel, Digits (individual) and ByteLevel, or Split by a regular expression (Isolated, or Removed "
               "and inverted) and ByteLevel without its own, all without add_prefix_space")  # fmt: skip
    elif not ALIKE.fullmatch(pattern):
        rest = pattern[ALIKE.match(pattern).end() :]
        yield f"pre_tokenizer's expression {pattern} has, from {rest!r} on, what tiktoken may read otherwise"
    elif reason := leaves_out(pattern):
        yield f"pre_tokenizer's expression {pattern} {reason}"
    for token in content["added_tokens"]:
        if token.get("normalized") and not token.get("special"):
            yield f"added_tokens has {token['content']!r}, a word that is made from text before any merge"


@functools.cache
def leaves_out(pattern):
    """Why a pattern cannot cut text, None if it can: tiktoken drops text that it does not match."""
    try:
        only_bytes = tiktoken.Encoding(
            "", pat_str=pattern, mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={}
        )
    except ValueError as error:
        return f"is not accepted by tiktoken: {error}"
    every = "".join(map(chr, itertools.chain(range(0xD800), range(0xE000, sys.maxunicode + 1))))
    if only_bytes.decode(only_bytes.encode_ordinary(every)) != every:
        return "does not match every character"


def read_model(model, special):
    """({token bytes: id}, problems) of a BPE model, the tokens that are not made from text left out."""
    vocab = {token: i for token, i in model["vocab"].items() if token not in special}
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    made = [left + right for left, right in merges]
    if missing := [token for token in (*BYTE_OF, *itertools.chain(*merges), *made) if token not in vocab]:
        return None, [f"model.vocab has no {missing[0]!r}, which is a byte or part of a merge"]
    ids = [*vocab.values(), *special.values()]
    whole = all(type(i) is int and 0 <= i < 1 << 31 for i in ids)
    if not whole or len({*ids}) < len(ids) or not all(isinstance(name, str) for name in special):
        return None, ["model.vocab and added_tokens must give each token, a string, an id of its own from 0 on"]
    if falls := [pair for pair in zip(made, made[1:]) if vocab[pair[0]] > vocab[pair[1]]]:
        first, second = falls[0]
        return None, [
            f"model.merges make {first!r} (id {vocab[first]}) before {second!r} (id {vocab[second]}); "
            "the ids must be in the order of the merges"
        ]
    look_up, reached = model.get("ignore_merges", False), {*BYTE_OF, *made}
    ranks = {bytes(map(BYTE_OF.get, token)): i for token, i in vocab.items()
             if token in reached or look_up and BYTE_OF.keys() >= set(token)}
    listed = {tuple(bytes(map(BYTE_OF.get, part)) for part in pair) for pair in merges}
    found = last_merges(ranks)
    for token in ranks:
        if token in found and found[token] not in listed:
            return None, [f"model.merges has no pair {found[token]}, which tiktoken would merge"]
        if len(token) > 1 and token not in found and not look_up:
            return None, [f"model.vocab has {token}, which the merges do not make of its bytes but tiktoken would take"]
    return ranks, []


def last_merges(ranks):
    """{token: (left, right)}: the last merge that tiktoken's rule makes on the bytes of each token, in order of rank.

    Left out are the 256 bytes and tokens that the rule does not end in; those come from the look-up of whole pieces.
    """
    found, never = {}, sys.maxsize
    for token in sorted(ranks, key=ranks.get):
        parts = [token[i : i + 1] for i in range(len(token))]
        merged = [ranks.get(token[i : i + 2], never) for i in range(len(token) - 1)]  # of each part and the next
        while merged and (best := min(merged)) < never:
            at = merged.index(best)
            pair = parts[at], parts[at + 1]
            parts[at : at + 2] = [pair[0] + pair[1]]
            del merged[at]
            if at > 0:
                merged[at - 1] = ranks.get(parts[at - 1] + parts[at], never)
            if at < len(merged):
                merged[at] = ranks.get(parts[at] + parts[at + 1], never)
        if len(parts) == 1 < len(token):
            found[token] = pair
    return found


def write(tokenizer, folder, max_length, append_eos=True):
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json of a data.tokenizer.Tokenizer.

    They are read by tokenizers.Tokenizer.from_file and transformers.AutoTokenizer, and give the ids of `encode`. With
    append_eos, eos ends each text, as it did in training; there is no bos. Unlike here, the names of special tokens in
    a text become these tokens; one before the mask token takes the white space with it, as `encode_masked` takes a
    space. max_length: in tokens. Raises DataError if a special token has the name of an ordinary one.
    """
    name_of = {i: name for name, i in tokenizer.special_tokens.items()}
    mask, pad, eos = (name_of[i] for i in (tokenizer.mask_id, tokenizer.pad_id, tokenizer.eos_id))

    def spell(token):
        return "".join(map(CHARACTER_OF.get, token))

    # The special tokens are in the vocabulary as well: a reader numbers those that are not by their order.
    vocab = {spell(token): i for token, i in tokenizer.ranks.items()} | tokenizer.special_tokens
    if len(vocab) < len(tokenizer.ranks) + len(tokenizer.special_tokens):
        raise DataError("a special token has the name of an ordinary one; tokenizer.json cannot tell them apart")
    # The two places where tiktoken's published patterns mean something else in the hub's engine; see ALIKE.
    pattern = re.sub(r"(\\p\{\w+\}\{\d+,\d+\})\+", r"(?>\1)", tokenizer.pattern).replace("++$", r"++\z")
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    end = [{"SpecialToken": {"id": eos, "type_id": 0}}]
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": name, "single_word": False, "lstrip": name == mask, "rstrip": False,
             "normalized": False, "special": True}
            for name, i in sorted(tokenizer.special_tokens.items(), key=lambda item: item[1])
        ],
        "normalizer": {"type": "NFC"} if tokenizer.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        ]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": text + end,
            "pair": text + end + [{"Sequence": {"id": "B", "type_id": 0}}] + end,
            "special_tokens": {eos: {"id": eos, "ids": [tokenizer.eos_id], "tokens": [eos]}},
        } if append_eos else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
            "vocab": dict(sorted(vocab.items(), key=lambda item: item[1])),
            "merges": [f"{spell(left)} {spell(right)}" for left, right in last_merges(tokenizer.ranks).values()],
        },
    }  # fmt: skip
    special = {"eos_token": eos, "pad_token": pad, "mask_token": mask}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length, **special,
              "model_input_names": ["input_ids", "attention_mask"], "clean_up_tokenization_spaces": False}  # fmt: skip
    for name, value in ("tokenizer", content), ("tokenizer_config", config), ("special_tokens_map", special):
        path = Path(folder, f"{name}.json")
        path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
