"""Tokenizers: text to ids and back, and the ids of the special tokens.

    tokenizer = Tokenizer.load("embedded")      # or "gpt2", ..., a path to a rank file, or a folder of the hub
    ids = tokenizer.encode("Hello") + [tokenizer.eos_id]

Two libraries do the work. `tiktoken` runs byte-level BPEs: named encodings and rank files, with one token per line
(base64 of its bytes, a space, its rank; the rank is both its id and its merge priority). `tokenizers`, an optional
package, runs the tokenizer.json of a hub folder, whatever its kind.

Special tokens are not made from text: `encode` treats "[MASK]" as six characters. The exceptions are the unknown token
of a tokenizer.json, which stands for text that has no other, and the tokens that a Unigram model (T5's) has as pieces.
"""

import base64
import functools
import importlib
import json
import os
import re
from pathlib import Path

import numpy as np
import tiktoken

from data.files import refuse_malformed, what_is
from errors import DataError

EMBEDDED = Path(__file__).with_name("embedded") / "embedded.tiktoken"

# Text is split by this expression before merging: Llama 3's (cl100k_base's, with digits in groups of up to three). It
# holds for the embedded ranks and for every local rank file. A named tiktoken encoding has its own.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
USUAL = "[MASK]", "[PAD]", "[BOS]", "[EOS]"  # the names of special tokens where a file does not name any
ROLES = "mask_id", "pad_id", "bos_id", "eos_id"

LLAMA3_RANKS = 128_000  # a file with so many ranks is Llama 3's: bos, eos and reserved ids follow, 256 in all
LLAMA3_SPECIAL = "<|begin_of_text|>", "<|end_of_text|>", "[MASK]"
LLAMA3_ROLES = "[MASK]", "<|end_of_text|>", "<|begin_of_text|>", "<|end_of_text|>"

# tiktoken's regex engine overflows its stack on about a million white-space characters in a row. A text is cut before
# each block of so many characters that has nothing else.
BLANK_BLOCK = 100_000

# tokenizer.json writes each byte as one visible character: itself if it is visible, else the next one from U+0100.
_HIDDEN = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
BYTE_CHARACTERS = [chr(256 + _HIDDEN.index(byte)) if byte in _HIDDEN else chr(byte) for byte in range(256)]


class Tokenizer:
    """The interface; `load` and `from_state` return a RankTokenizer or a JsonTokenizer.

    content         the bytes of its file
    name            where it came from: "embedded", "gpt2", "llama3", or the name of a rank file or a hub folder
    special_tokens  {name: id}
    mask_id, pad_id, bos_id, eos_id     in special_tokens; two of them may be equal
    vocab_size      the largest id + 1, rounded up to a multiple of 128 (the rows of an embedding), or as given
    ordinary_ids    int64 (n,): all other ids, ascending
    file_name       what a data folder calls the file with the content
    """

    def __init__(self, content, ids, name, special_tokens, vocab_size=None, **roles):
        self.content = content
        self.name = name
        self.special_tokens = special_tokens
        self.mask_id, self.pad_id, self.bos_id, self.eos_id = map(roles.get, ROLES)
        self.shown = {i: token for token, i in special_tokens.items()}
        self.shown |= {roles[role]: token for role, token in zip(ROLES, USUAL)}  # padding that is eos is shown as [EOS]
        self.ordinary_ids = np.array(sorted({*ids} - {*self.shown}))
        self.vocab_size = vocab_size or (max([*ids, *self.shown]) // 128 + 1) * 128

    @staticmethod
    def load(spec):
        """Load "embedded", a tiktoken encoding by name, a local rank file, or a tokenizer.json or the folder with it.

        Raises DataError.
        """
        spec = str(spec)
        path = EMBEDDED if spec == "embedded" else Path(spec)
        with refuse_malformed(f"tokenizer {spec!r} cannot be read"):
            if spec in tiktoken.list_encoding_names():
                return read_encoding(spec)
            if path.is_dir() or (path.is_file() and path.read_bytes().lstrip().startswith(b"{")):
                return read_hub(path)
            return read_ranks(path)

    @staticmethod
    def from_state(state, content):
        """Return the tokenizer whose state() and content these are."""
        kind = JsonTokenizer if state.get("kind") == "json" else RankTokenizer
        return kind(content, **state)

    def state(self):
        """Return everything but the content, as plain values for JSON."""
        return {name: getattr(self, name) for name in ("name", "special_tokens", *ROLES, "vocab_size")}

    def __reduce__(self):  # pickled like this on the way to a worker process
        return Tokenizer.from_state, (self.state(), self.content)

    def normalize(self, text):
        """Return the text that is encoded, which offsets refer to: half a surrogate pair becomes U+FFFD."""
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def encode(self, text):
        """Return the ids of a text, a list; text that looks like a special token stays text."""
        return self.encode_array(text).tolist()

    @functools.cached_property
    def word_prefix(self):
        """What a word needs before it to get the ids that it has inside a sentence, wherever it stands: a space.

        It is empty for tokenizers that begin each text with a space themselves (SentencePiece) or ignore spaces (BERT).
        """
        word = self.encode("a")
        return "" if self.encode("a a") == word + word else " "

    def encode_masked(self, text):
        """As `encode`, but each [MASK] becomes mask_id.

        One space before [MASK] is dropped: a word's token usually includes the space before it, so the mask of
        "The [MASK] is" stands for " cat", space included.
        """
        ids = []
        for piece in re.split(r" ?\[MASK\]", text):
            ids += [self.mask_id, *self.encode(piece)]
        return ids[1:]

    def encodes_like(self, other):
        """Return whether both have the same ordinary ids and give the same ids for the text of all of them."""
        text = self.decode(self.ordinary_ids) + "e\u0301"  # which NFC would change
        same_ids = np.array_equal(self.ordinary_ids, other.ordinary_ids)
        return same_ids and self.encode(text) == other.encode(text)


class RankTokenizer(Tokenizer):
    """A byte-level BPE run by tiktoken.

    content: the bytes of a rank file. pattern: the regular expression that splits text before merging.
    """

    file_name = "tokenizer.tiktoken"

    def __init__(self, content, pattern, *, name, special_tokens, **more):
        self.ranks = parse_ranks(content)
        self.pattern = pattern
        super().__init__(content, self.ranks.values(), name, special_tokens, **more)
        self.encoding = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=self.ranks, special_tokens=special_tokens
        )
        self.tokens = {i: token for token, i in self.ranks.items()}

    def state(self):
        return super().state() | {"pattern": self.pattern}

    def encode_array(self, text):
        """As `encode`, but an array of uint32: for much text, as no Python integers are made."""
        text = self.normalize(text)
        parts, begin = [], 0
        for end in range(0, len(text) - BLANK_BLOCK + 1, BLANK_BLOCK):
            if text[end : end + BLANK_BLOCK].isspace():
                parts.append(text[begin:end])
                begin = end
        parts.append(text[begin:])
        return np.concatenate([self.encoding.encode_to_numpy(part, disallowed_special=()) for part in parts])

    def encode_with_offsets(self, text):
        """Return the ids and, for each, (start, end) in characters of normalize(text).

        A token that holds part of a character covers all of it.
        """
        ids, offsets, length = self.encode(text), [], 0  # length: of the characters that have begun
        for token in map(self.tokens.get, ids):
            first = length - (token[0] & 0xC0 == 0x80)  # its first byte continues the character before
            length += sum(byte & 0xC0 != 0x80 for byte in token)
            offsets.append((first, length))
        return ids, offsets

    def decode(self, ids):
        """Return the text of ids, for reading.

        Special tokens appear by name ([MASK], [PAD], [BOS], [EOS], or their own), ids without a token as [UNUSED],
        invalid UTF-8 as U+FFFD.
        """
        tokens = [self.tokens.get(i) or self.shown.get(i, "[UNUSED]").encode() for i in map(int, ids)]
        return b"".join(tokens).decode("utf-8", "replace")

    def to_json(self):
        """Return the content of a tokenizer.json with the same ids. Raises DataError.

        Its merges are all pairs of tokens that make a token, by rank. tiktoken merges the adjacent pair that makes
        the token of the lowest rank, so both take the same steps. Whole pieces are looked up first, as in tiktoken.
        """
        vocab = {"".join(BYTE_CHARACTERS[byte] for byte in token): i for token, i in self.ranks.items()}
        merges = []
        for token in sorted(vocab, key=vocab.get):
            for i in range(1, len(token)):
                left, right = token[:i], token[i:]
                if left in vocab and right in vocab:
                    merges.append((left, right))
        # Two things that tiktoken's published patterns write differently: possessive {1,3}+, and $ for the end of text.
        pattern = re.sub(r"(\\p\{\w+\}\{\d+,\d+\})\+", r"(?>\1)", self.pattern).replace("++$", r"++\z")
        engine = byte_level_bpe(pattern, vocab=vocab | self.special_tokens, merges=merges, ignore_merges=True)
        return json.loads(engine.to_str())


def byte_level_bpe(pattern, **model):
    """Return a tokenizers.Tokenizer that splits text by a pattern and merges the bytes of each piece."""
    library = optional_package("tokenizers")
    engine = library.Tokenizer(library.models.BPE(**model))
    split = library.pre_tokenizers.Split(library.Regex(pattern), "isolated")
    to_bytes = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = library.pre_tokenizers.Sequence([split, to_bytes])
    engine.decoder = library.decoders.ByteLevel()
    return engine


class JsonTokenizer(Tokenizer):
    """A tokenizer.json run by the tokenizers library: any kind of model, with its own normalization and splitting.

    content: the file. Its post-processor is not used, so nothing is added to the ids of a text.
    """

    file_name = "tokenizer.json"

    def __init__(self, content, *, name, kind="json", **more):
        self.content = content
        self.engine = json_engine(json.dumps(self.to_json()).encode(), name)
        self.engine.encode_special_tokens = True  # their names in a text are text
        self.tokens = {i: token for token, i in self.engine.get_vocab().items()}
        super().__init__(content, self.tokens, name, **more)

    def state(self):
        return {"kind": "json"} | super().state()

    def encode_array(self, text):
        """As `encode`, but an array of uint32."""
        return np.array(self.run(self.engine.encode_batch_fast, text).ids, np.uint32)

    def encode_with_offsets(self, text):
        """Return the ids and, for each, (start, end) in characters of normalize(text)."""
        encoding = self.run(self.engine.encode_batch, text)
        return encoding.ids, encoding.offsets

    def run(self, encode_batch, text):
        """Return the Encoding that a method of the library gives for a text. Raises DataError where it fails."""
        try:
            return encode_batch([self.normalize(text)], add_special_tokens=False)[0]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of the library is no Exception
            raise DataError(f"the tokenizer {self.name} fails on the text {text[:60]!r}...: {error}") from error

    def decode(self, ids):
        """Return the text of ids, for reading; see RankTokenizer."""
        tokens = [self.shown.get(i) or self.tokens.get(i, "[UNUSED]") for i in map(int, ids)]
        return self.engine.decoder.decode(tokens) if self.engine.decoder else " ".join(tokens)

    def to_json(self):
        """Return the content of the tokenizer.json without what would cut, pad or add to the ids of a text."""
        return json.loads(self.content) | {"truncation": None, "padding": None, "post_processor": None}


def json_engine(content, origin):
    """Return the tokenizers.Tokenizer of a tokenizer.json. Raises DataError, which names the origin."""
    # The library's own threads would make it slower: it gets one text at a time, in a process for each core.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    library = optional_package("tokenizers")
    try:
        return library.Tokenizer.from_buffer(content)
    except BaseException as error:  # the library has no class of its own, and its panics are no Exception
        raise DataError(f"{origin}: the tokenizers library cannot read this tokenizer.json: {error}") from error


# ----------------------------------------------------------------------------
# Files


def optional_package(name):
    """Import and return a module. Raises DataError, which says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package, *_ = name.split(".")
        raise DataError(f"this needs a package that is not installed: pip install {package}") from None


def rank_file(ranks):
    """Return the bytes of a rank file, in the order of the ranks."""
    return b"".join(b"%s %d\n" % (base64.b64encode(token), ranks[token]) for token in sorted(ranks, key=ranks.get))


def parse_ranks(content):
    """Return {token bytes: rank} of a rank file's bytes. Raises ValueError."""
    lines = map(bytes.split, content.splitlines())
    return {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}


def read_ranks(path):
    """Read a rank file. Raises DataError."""
    if not path.is_file():
        known = ", ".join(tiktoken.list_encoding_names())
        raise DataError(
            f"tokenizer {str(path)!r}: no such file or folder, and not one of embedded, {known}; of a model of the "
            f"hub, download the folder: hf download ORGANIZATION/{path.name} --local-dir {path}"
        )
    with refuse_malformed(
        f"{path} is {what_is(path, 'neither a tokenizer.json nor lines with the base64 of a token and its rank')}"
    ):
        ranks = parse_ranks(path.read_bytes())  # not through tiktoken: it caches files by path and would miss a change
    size = len(ranks)
    if {*ranks.values()} != {*range(size)} or not all(bytes([byte]) in ranks for byte in range(256)):
        raise DataError(f"{path}: each rank from 0 to {size - 1} must come once, and each of the 256 bytes be a token")
    name, names, roles, vocab_size = path.stem, USUAL, USUAL, None
    if size == LLAMA3_RANKS:
        name, names, roles, vocab_size = "llama3", LLAMA3_SPECIAL, LLAMA3_ROLES, size + 256
    special = {token: size + i for i, token in enumerate(names)}
    ids = role_ids(special, roles)
    return RankTokenizer(rank_file(ranks), PATTERN, name=name, special_tokens=special, vocab_size=vocab_size, **ids)


def role_ids(ids, names):
    """Return {"mask_id": ...} of the tokens with these names, in the order of ROLES."""
    return dict(zip(ROLES, map(ids.get, names)))


def read_encoding(name):
    """Read a published encoding: its special tokens stay, eos is <|endoftext|>, new ids follow the largest."""
    try:
        encoding = tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:
        raise DataError(
            f"tokenizer {name!r}: its ranks cannot be downloaded; offline, give --tokenizer=embedded, which comes with "
            "the project, or a rank file, or set TIKTOKEN_CACHE_DIR to a folder where tiktoken has stored them"
        ) from error
    new = USUAL[:3]
    special = encoding._special_tokens | {token: encoding.n_vocab + i for i, token in enumerate(new)}
    ids = role_ids(special, (*new, "<|endoftext|>"))
    content = rank_file(encoding._mergeable_ranks)
    return RankTokenizer(content, encoding._pat_str, name=name, special_tokens=special, **ids)


def read_hub(path):
    """Read a folder with a tokenizer.json, or such a file. Raises DataError.

    tokenizer_config.json and special_tokens_map.json beside it name the special tokens, or else config.json and
    generation_config.json. A token that these or added_tokens.json add must be in the file. Where none names a token:

    mask    [MASK] or <mask>, else the first token with "reserved" in its name (Llama 3: <|reserved_special_token_0|>,
            as in the study), else a new id after the largest
    eos     the sep token (BERT: [SEP]), else a new id
    bos     the cls token, else eos
    pad     eos

    Added tokens that are not special are words: text makes them.
    vocab_size is config.json's, so that a model keeps its shape, if all ids are below that.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if what := what_is(file, ""):
        how = "transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) makes one of the older files"
        raise DataError(f"{file} is {what}; {how}")
    content = file.read_bytes()
    engine = json_engine(content, file)
    ids = engine.get_vocab()  # {name: id}
    added = engine.get_added_tokens_decoder()  # {id: AddedToken}, ascending
    files = "generation_config", "config", "special_tokens_map", "tokenizer_config", "added_tokens"
    generation, config, older, newer, oldest = (read_json(file.with_name(f"{name}.json")) for name in files)
    rows = config.get("vocab_size") or 0
    more = {token["content"] for token in newer.get("added_tokens_decoder", {}).values()} | oldest.keys()
    if more := more - ids.keys():
        raise DataError(f"{file}: the files beside it add tokens that it does not have: {', '.join(sorted(more))}")
    # As in transformers: the older file comes first, where the newer one does not list the added tokens.
    config = generation | config | (older | newer if "added_tokens_decoder" in newer else newer | older)

    def find(kind, *usual):
        """Return the name of the mask, pad, bos, eos, sep or cls token: what the configs name, or a usual name."""
        token = config.get(f"{kind}_token")
        if isinstance(token, dict):
            token = token.get("content")
        # The id of an ordinary token would be the default of a class, which means nothing here.
        by_id = [added[i].content for i in np.ravel(config.get(f"{kind}_token_id")) if i in added]
        if token and token not in ids and not by_id:
            raise DataError(
                f"{file}: the config beside it names {kind}_token {token!r}, which is no token of this file"
            )
        return next((name for name in (token, *by_id, *usual) if name in ids), None)

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
        name=file.resolve().parent.name,
        special_tokens=special,
        vocab_size=rows if rows > max(ids.values()) else None,
        **role_ids(special, (mask, pad, bos, eos)),
    )


def read_json(path):
    """Return the JSON object in a file, empty if there is no such file. Raises DataError."""
    with refuse_malformed(f"{path}: {what_is(path, 'not a JSON object')}"):
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}
