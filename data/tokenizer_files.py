"""Read a tokenizer from where it came: a name, a rank file, or the tokenizer.json of a hub folder.

This serves the preparation of text, hub models and other encoders. Prepared folders and checkpoints hold their own
tokenizer.
"""

import json
from pathlib import Path

import numpy as np
import tiktoken

from data.files import refuse_malformed, what_is
from data.tokenizer import PATTERN, ROLES, USUAL, JsonTokenizer, RankTokenizer, json_engine, parse_ranks, rank_file
from errors import DataError

EMBEDDED = Path(__file__).with_name("embedded") / "embedded.tiktoken"

LLAMA3_RANKS = 128_000  # a file with so many ranks is Llama 3's: bos, eos and reserved ids follow, 256 in all
LLAMA3_SPECIAL = "<|begin_of_text|>", "<|end_of_text|>", "[MASK]"
LLAMA3_ROLES = "[MASK]", "<|end_of_text|>", "<|begin_of_text|>", "<|end_of_text|>"


def read_tokenizer(spec):
    """Return a Tokenizer: "embedded", a tiktoken encoding by name, a rank file, or a folder with a tokenizer.json.

    Raises DataError.
    """
    spec = str(spec)
    path = EMBEDDED if spec == "embedded" else Path(spec)
    with refuse_malformed(f"tokenizer {spec!r} cannot be read"):
        if spec in tiktoken.list_encoding_names():
            return read_encoding(spec)
        if path.is_dir():
            return read_hub(path)
        return read_ranks(path)


def read_ranks(path):
    """Read a rank file. Raises DataError."""
    if not path.is_file():
        raise DataError(
            f"tokenizer '{path}': no such file or folder, and neither embedded nor a tiktoken encoding such as gpt2; "
            f"for a hub model, download its folder: hf download ORGANIZATION/{path.name} --local-dir {path}"
        )
    lines = "not lines with the base64 of a token and its rank (for a tokenizer.json, give its folder)"
    with refuse_malformed(f"{path} is {what_is(path, lines)}"):
        ranks = parse_ranks(path.read_bytes())  # not through tiktoken: it caches files by path and would miss a change
    size = len(ranks)
    if {*ranks.values()} != {*range(size)} or not {bytes([byte]) for byte in range(256)} <= ranks.keys():
        raise DataError(f"{path}: each rank from 0 to {size - 1} must occur once, and each of the 256 bytes be a token")
    name, names, roles, vocab_size = path.stem, USUAL, USUAL, None
    if size == LLAMA3_RANKS:
        name, names, roles, vocab_size = "llama3", LLAMA3_SPECIAL, LLAMA3_ROLES, size + 256
    special = dict(zip(names, range(size, size + len(names))))
    ids = role_ids(special, roles)
    return RankTokenizer(rank_file(ranks), PATTERN, name=name, special_tokens=special, vocab_size=vocab_size, **ids)


def role_ids(ids, names):
    """Return {"mask_id": ...} of the tokens with these names, in the order of ROLES."""
    return dict(zip(ROLES, map(ids.get, names)))


def read_encoding(name):
    """Read a published encoding. It keeps its special tokens, eos is <|endoftext|>, and new ids follow the largest."""
    try:
        encoding = tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:
        raise DataError(
            f"tokenizer {name!r}: its ranks cannot be downloaded; offline, give --tokenizer=embedded, which comes with "
            "the project, or a rank file, or set TIKTOKEN_CACHE_DIR to a folder where tiktoken has stored them"
        ) from error
    special = dict(encoding._special_tokens)
    for i, token in enumerate(USUAL[:3]):
        special[token] = encoding.n_vocab + i
    ids = role_ids(special, (*USUAL[:3], "<|endoftext|>"))
    content = rank_file(encoding._mergeable_ranks)
    return RankTokenizer(content, encoding._pat_str, name=name, special_tokens=special, **ids)


def read_hub(folder):
    """Read a folder with a tokenizer.json. Raises DataError.

    tokenizer_config.json and special_tokens_map.json beside it name the special tokens, or else config.json and
    generation_config.json. A token that these or added_tokens.json add must be in the file. Where none names a token:

    mask    [MASK] or <mask>, else the first token with "reserved" in its name (Llama 3: <|reserved_special_token_0|>,
            as in the study), else a new id after the largest
    eos     the sep token (BERT: [SEP]), else a new id
    bos     the cls token, else eos
    pad     eos

    Added tokens that are not special are like words: `encode` finds them in text. vocab_size is config.json's, so that
    a model keeps its shape, if all ids are below that.
    """
    file = folder / "tokenizer.json"
    if what := what_is(file, ""):
        raise DataError(
            f"{file} is {what}; transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) makes one "
            "from older files"
        )
    content = file.read_bytes()
    engine = json_engine(content, file)
    ids = engine.get_vocab()  # {name: id}
    added = engine.get_added_tokens_decoder()  # {id: AddedToken}, ascending
    config = read_json(folder / "config.json")
    rows = config.get("vocab_size") or 0
    older = read_json(folder / "special_tokens_map.json")
    newer = read_json(folder / "tokenizer_config.json")
    more = {*read_json(folder / "added_tokens.json")}
    for token in newer.get("added_tokens_decoder", {}).values():
        more.add(token["content"])
    if more := more - ids.keys():
        raise DataError(f"{file}: the files beside it add tokens that it does not have: {', '.join(sorted(more))}")
    # As in transformers: the older file wins if the newer one does not list the added tokens.
    names = older | newer if "added_tokens_decoder" in newer else newer | older
    config = read_json(folder / "generation_config.json") | config | names

    def find(kind, *usual):
        """Return the name of the mask, pad, bos, eos, sep or cls token: what the configs name, or a usual name."""
        token = config.get(f"{kind}_token")
        if isinstance(token, dict):
            token = token.get("content")
        # The id of an ordinary token is only the default of a config class, which means nothing.
        by_id = [added[i].content for i in np.ravel(config.get(f"{kind}_token_id")) if i in added]
        if token and token not in ids and not by_id:
            raise DataError(f"{file} has no token {token!r}, which the config beside it names as {kind}_token")
        for name in (token, *by_id, *usual):
            if name in ids:
                return name

    reserved = [token.content for token in added.values() if "reserved" in token.content]
    mask = find("mask", "[MASK]", "<mask>", *reserved) or "[MASK]"
    eos = find("eos") or find("sep", "[SEP]") or "[EOS]"
    bos = find("bos") or find("cls", "[CLS]") or eos
    pad = find("pad") or eos

    special = {token.content: i for i, token in added.items() if token.special}
    for name in mask, eos, bos, pad:
        special[name] = ids.setdefault(name, max(ids.values()) + 1)
    return JsonTokenizer(
        content,
        name=folder.resolve().name,
        special_tokens=special,
        vocab_size=rows if rows > max(ids.values()) else None,
        **role_ids(special, (mask, pad, bos, eos)),
    )


def read_json(path):
    """Return the JSON object in a file, or {} if there is no such file. Raises DataError."""
    with refuse_malformed(f"{path}: {what_is(path, 'not a JSON object')}"):
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}
