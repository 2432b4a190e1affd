"""Tokenizers: text to ids and back, and the ids of the special tokens.

    tokenizer = read_tokenizer("embedded")      # of data/tokenizer_files.py
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

import numpy as np
import tiktoken

from errors import DataError

# The pattern that splits text before merging: Llama 3's, with digits in groups of up to three, as in cl100k_base. The
# embedded ranks and every local rank file use it. A named tiktoken encoding has its own.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
USUAL = "[MASK]", "[PAD]", "[BOS]", "[EOS]"  # the names of special tokens where a file does not name any
ROLES = "mask_id", "pad_id", "bos_id", "eos_id"

# tiktoken's regex engine overflows its stack on about a million white-space characters in a row. So a text is cut
# before each block of this many characters that is all white space.
BLANK_BLOCK = 100_000

# tokenizer.json writes each byte as one visible character: itself if it is visible, else the next one from U+0100.
_HIDDEN = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
BYTE_CHARACTERS = [chr(256 + _HIDDEN.index(byte)) if byte in _HIDDEN else chr(byte) for byte in range(256)]


class Tokenizer:
    """The interface; `read_tokenizer` and `from_state` return a RankTokenizer or a JsonTokenizer.

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
        for role, token in zip(ROLES, USUAL):
            self.shown[roles[role]] = token  # padding that is eos is shown as [EOS]
        self.ordinary_ids = np.array(sorted({*ids} - {*self.shown}))
        self.vocab_size = vocab_size or (max([*ids, *self.shown]) // 128 + 1) * 128

    @staticmethod
    def from_state(state, content):
        """Return the tokenizer whose state() and content these are."""
        kind = JsonTokenizer if "kind" in state else RankTokenizer
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
        """The prefix, a space, that gives a word at the start of a text the ids that it has inside a sentence.

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
        """As `encode`, but returns a uint32 array: faster for much text, because it makes no Python integers."""
        text = self.normalize(text)
        ids = []
        begin = 0
        for end in [*range(0, len(text) - BLANK_BLOCK + 1, BLANK_BLOCK), len(text)]:
            block = text[end : end + BLANK_BLOCK]
            if not block or block.isspace():
                ids.append(self.encoding.encode_to_numpy(text[begin:end], disallowed_special=()))
                begin = end
        return np.concatenate(ids)

    def encode_with_offsets(self, text):
        """Return the ids and, for each, (start, end) in characters of normalize(text).

        A token that holds part of a character covers all of it.
        """
        ids = self.encode(text)
        offsets = []
        length = 0  # of the characters that have begun
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
        text = bytearray()
        for i in map(int, ids):
            text += self.tokens.get(i) or self.shown.get(i, "[UNUSED]").encode()
        return text.decode("utf-8", "replace")

    def to_json(self):
        """Return the content of a tokenizer.json with the same ids. Raises DataError.

        Its merges are all pairs of tokens that make a token, by rank. tiktoken merges the adjacent pair that makes
        the token of the lowest rank, so both take the same steps. Whole pieces are looked up first, as in tiktoken.
        """
        vocab = {}
        merges = []
        for token, rank in self.ranks.items():
            vocab["".join(BYTE_CHARACTERS[byte] for byte in token)] = rank
        for token in sorted(vocab, key=vocab.get):
            for i in range(1, len(token)):
                left = token[:i]
                right = token[i:]
                if left in vocab and right in vocab:
                    merges.append((left, right))
        # tiktoken's published patterns write two things differently: possessive {1,3}+, and $ for the end of text.
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
        """As `encode`, but returns a uint32 array."""
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
        except BaseException as error:  # a panic of the library is not an Exception
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
    except BaseException as error:  # the library has no error class, and its panics are not Exceptions
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
    """Return {token bytes: rank} from a rank file's bytes. Raises ValueError."""
    return {base64.b64decode(token, validate=True): int(rank) for token, rank in map(bytes.split, content.splitlines())}
