"""The tokenizer: a byte-level BPE run by tiktoken, and the ids of its special tokens.

    tokenizer = Tokenizer.load("embedded")      # or "gpt2", ..., a path to a rank file, or a folder from the hub
    ids = tokenizer.encode("Hello") + [tokenizer.eos_id]

A rank file has one token per line: base64 of its bytes, a space, its rank. The rank is both the id of the token and
its merge priority. Special tokens are never made from text: `encode` treats "[MASK]" as six characters.
"""

import base64
import functools
import itertools
import re
import unicodedata
from pathlib import Path

import numpy as np
import tiktoken

from errors import DataError

EMBEDDED = Path(__file__).with_name("embedded.tiktoken")

# How text is cut before merging: Llama 3's pattern (cl100k_base's, with digits in groups of up to three). It holds
# for the embedded ranks and for every local rank file; a named tiktoken encoding brings its own.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_RANKS = 128_000  # a file with so many ranks is Llama 3's: 256 special ids follow, bos and eos first

# tiktoken's regex engine overflows its stack on about a million white-space characters in a row. A text is cut before
# each block of so many characters that has nothing else.
BLANK_BLOCK = 100_000


class Tokenizer:
    """A tiktoken.Encoding and its special tokens.

    name            where it came from: "embedded", "gpt2", "llama3", or the name of a rank file or a hub folder
    pattern         the regular expression that splits text before merging
    ranks           {token bytes: id}
    special_tokens  {name: id} of all ids that stand for no bytes
    mask_id, pad_id, bos_id, eos_id     in special_tokens; two of them may be equal
    vocab_size      the largest id + 1, rounded up to a multiple of 128 (the shape of an embedding), or as given
    nfc             whether text is brought to Unicode's normal form C first (Qwen)
    special_ids     sorted list of the ids of special_tokens
    encoding        the tiktoken.Encoding
    """

    def __init__(self, name, pattern, ranks, special_tokens, mask_id, pad_id, bos_id, eos_id, vocab_size=None,
                 nfc=False):  # fmt: skip
        self.name, self.pattern, self.ranks, self.special_tokens = name, pattern, ranks, special_tokens
        self.mask_id, self.pad_id, self.bos_id, self.eos_id = mask_id, pad_id, bos_id, eos_id
        self.nfc = nfc
        self.special_ids = sorted(special_tokens.values())
        self.vocab_size = vocab_size or -(-(max(*ranks.values(), *self.special_ids) + 1) // 128) * 128
        self.encoding = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special_tokens
        )

    @classmethod
    def load(cls, spec, mask_token="", pad_token=""):
        """Load "embedded", a tiktoken encoding by name, a local rank file, or a tokenizer.json or the folder with it.

        mask_token, pad_token: special tokens of a tokenizer.json for them; by default as in data/hub_tokenizer.py.
        Raises DataError.
        """
        spec = str(spec)
        named = spec == "embedded" or spec in tiktoken.list_encoding_names()
        if not named and (Path(spec).is_dir() or spec.endswith(".json")):
            from data import hub_tokenizer  # which needs DataError of this module

            return cls(**hub_tokenizer.read(spec, mask_token, pad_token))
        for kind, token in ("mask", mask_token), ("pad", pad_token):
            if token:
                raise DataError(f"{kind}_token {token!r}: a choice for a tokenizer.json only; {spec!r} has its own {kind}")
        if named and spec != "embedded":
            return cls._from_tiktoken(spec)
        path = EMBEDDED if named else Path(spec)
        if not path.is_file():
            raise DataError(
                f"tokenizer {spec!r}: no such rank file, and not one of embedded, "
                f"{', '.join(tiktoken.list_encoding_names())}"
            )
        # Not read through tiktoken: it caches files by path and would miss a change.
        ranks = parse_ranks(path.read_bytes(), path)
        if missing := set(range(len(ranks))) - set(ranks.values()):
            raise DataError(f"{path}: the {len(ranks)} ranks must be 0 to {len(ranks) - 1}; {min(missing)} is missing")
        if len(ranks) == LLAMA3_RANKS:
            names = ["<|begin_of_text|>", "<|end_of_text|>", "[MASK]"]
            names += [f"<|reserved_special_token_{i}|>" for i in range(256 - len(names))]
            special = {name: LLAMA3_RANKS + i for i, name in enumerate(names)}
            bos, eos, mask = (special[name] for name in names[:3])
            return cls("llama3", PATTERN, ranks, special, mask_id=mask, pad_id=eos, bos_id=bos, eos_id=eos)
        mask, pad, bos, eos = range(len(ranks), len(ranks) + 4)
        special = {"[MASK]": mask, "[PAD]": pad, "[BOS]": bos, "[EOS]": eos}
        return cls(path.stem, PATTERN, ranks, special, mask, pad, bos, eos)

    @classmethod
    def _from_tiktoken(cls, name):
        """A published encoding: its special tokens stay, eos is <|endoftext|>, new ids follow the largest."""
        try:
            encoding = tiktoken.get_encoding(name)
        except (OSError, ValueError) as error:
            raise DataError(
                f"tokenizer {name!r}: its ranks cannot be downloaded ({type(error).__name__}). Offline, set "
                "TIKTOKEN_CACHE_DIR to a folder in which tiktoken has stored them, or give a path to a rank file"
            ) from error
        mask, pad, bos = range(encoding.max_token_value + 1, encoding.max_token_value + 4)
        special = {**encoding._special_tokens, "[MASK]": mask, "[PAD]": pad, "[BOS]": bos}
        return cls(name, encoding._pat_str, encoding._mergeable_ranks, special, mask, pad, bos, encoding.eot_token)

    @functools.cached_property
    def ordinary_ids(self):
        """The ids that are made from text, ascending: all but the special tokens'. int64 (n,)."""
        return np.array(sorted(self.ranks.values()))

    def normalize(self, text):
        """The text that `encode` reads: what token_bytes of its ids make together."""
        return unicodedata.normalize("NFC", text) if self.nfc else text

    def encode(self, text):
        """The ids of a text, a list; text that looks like a special token stays text."""
        return self.encode_array(text).tolist()

    def encode_array(self, text):
        """`encode` as an array of uint32: for much text, as no Python integers are made."""
        text = self.normalize(text)
        blocks = range(0, len(text) - BLANK_BLOCK + 1, BLANK_BLOCK)
        cuts = [0, *(start for start in blocks if text[start : start + BLANK_BLOCK].isspace()), len(text)]
        try:
            parts = [self.encoding.encode_to_numpy(text[start:end], disallowed_special=())
                     for start, end in itertools.pairwise(cuts)]  # fmt: skip
        except UnicodeEncodeError:  # half a surrogate pair: U+FFFD in its place
            return self.encode_array(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def encode_with_offsets(self, text):
        """The ids of a text, and for each id (start, end): the characters of normalize(text) that it stands for.

        A token that holds a part of a character covers all of it.
        """
        ids = self.encode(text)
        data = np.frombuffer(self.normalize(text).encode(), np.uint8)
        character = np.cumsum((data & 0xC0) != 0x80) - 1  # of each byte
        lengths = np.array([len(self.token_bytes[i]) for i in ids], int)
        ends = np.cumsum(lengths)
        starts = ends - lengths
        return ids, np.stack([character[starts], character[ends - 1] + 1], -1) if ids else np.zeros((0, 2), int)

    def encode_masked(self, text):
        """As `encode`, but each [MASK] becomes mask_id.

        One space before [MASK] is dropped: in this kind of BPE a word's token includes the space before it, so the
        mask of "The [MASK] is" stands for " cat", space included.
        """
        first, *rest = re.split(r" ?\[MASK\]", text)
        ids = self.encode(first)
        for piece in rest:
            ids += [self.mask_id, *self.encode(piece)]
        return ids

    def decode(self, ids):
        """The text of ids, for reading: special tokens by name ([MASK], [PAD], [BOS], [EOS], or their own), [UNUSED]
        for ids without a token, U+FFFD for invalid UTF-8. Raises ValueError for an id outside the vocabulary."""
        ids = [int(i) for i in ids]
        if outside := [i for i in ids if not 0 <= i < self.vocab_size]:
            raise ValueError(f"token id {outside[0]} is outside the vocabulary, 0 to {self.vocab_size - 1}")
        return b"".join(self.token_bytes[i] for i in ids).decode("utf-8", "replace")

    @functools.cached_property
    def token_bytes(self):
        """What `decode` shows for each id of the vocabulary: a list of vocab_size byte strings."""
        shown = [b"[UNUSED]"] * self.vocab_size
        for token, i in (*self.ranks.items(), *((name.encode(), i) for name, i in self.special_tokens.items())):
            shown[i] = token
        # eos last: where padding is eos, it is shown as [EOS].
        shown[self.mask_id], shown[self.pad_id] = b"[MASK]", b"[PAD]"
        shown[self.bos_id], shown[self.eos_id] = b"[BOS]", b"[EOS]"
        return shown

    def state(self):
        """Everything but the ranks, as plain values for JSON. With rank_bytes() it is the whole tokenizer."""
        names = "name", "pattern", "special_tokens", "mask_id", "pad_id", "bos_id", "eos_id", "vocab_size"
        # nfc is named only where it is set: states from before there was such a thing stay equal to those after.
        return {name: getattr(self, name) for name in names} | ({"nfc": True} if self.nfc else {})

    def rank_bytes(self):
        """The ranks as the bytes of a rank file, in rank order."""
        by_rank = sorted(self.ranks.items(), key=lambda item: item[1])
        return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in by_rank)

    file_bytes = rank_bytes
    file_name = "tokenizer.tiktoken"

    @classmethod
    def from_state(cls, state, rank_bytes):
        """The tokenizer of which these are state() and rank_bytes()."""
        return cls(ranks=parse_ranks(rank_bytes, f"ranks of tokenizer {state['name']!r}"), **state)

    def __reduce__(self):  # pickled like this on the way to a worker process
        return Tokenizer.from_state, (self.state(), self.rank_bytes())


def parse_ranks(data, origin):
    """Return {token bytes: rank} from the bytes of a rank file; DataError names `origin` and the line."""
    ranks, lines = {}, {}  # lines: where each rank was seen
    for number, line in enumerate(data.splitlines(), 1):
        try:
            token, rank = line.split()
            token, rank = base64.b64decode(token, validate=True), int(rank)
        except ValueError:
            raise DataError(
                f"{origin}, line {number}: expected the base64 of a token, a space and its rank, got {line[:40]!r}"
            ) from None
        if token in ranks or rank in lines:
            raise DataError(f"{origin}, line {number}: token {token!r} and rank {rank} must each occur once, but one "
                            f"of them is on line {lines[ranks.get(token, rank)]} already")
        ranks[token], lines[rank] = rank, number
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise DataError(
            f"{origin}: a byte-level BPE needs a token for each of the 256 bytes; {len(missing)} are missing, "
            f"the first is 0x{missing[0]:02x}"
        )
    return ranks
