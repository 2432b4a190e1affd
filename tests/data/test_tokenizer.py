"""The tokenizer: round trips, special tokens, and what is said about a bad rank file."""
import base64
import json
import os
import pickle
import random
import sys

import pytest

from helpers import ROOT
sys.path.insert(0, str(ROOT))
from data import embedded
from data.tokenizer import EMBEDDED, PATTERN, Tokenizer
from errors import DataError

SHARED = ROOT.parent / "shared" / "data" / "tokenizer"  # real tokenizers, where there are any
HARD_TEXTS = [
    "",
    " ",
    "The quick brown fox doesn't jump; it's 1234567890 o'clock, I'LL say.",
    "\n\n \t leading,  runs   of    spaces\r\n\r\nand line ends \n \n\n  ",
    "naïve café — “quotes” … 日本語テキスト العربية हिन्दी ไทย 한국어",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 e\u0301 \u200b\ufeff\u00a0\u3000\u2028 \x00\x01\x7f\x85\x1c",
    "[MASK] [PAD] <|endoftext|> <|begin_of_text|> [EOS]",
    "a" * 5000 + "-" * 5000 + "7" * 500,
]


def every_plane(count=3000, seed=0):
    """Random characters of all 17 Unicode planes, surrogates left out."""
    draw = random.Random(seed)
    points = [draw.randrange(plane * 0x10000, (plane + 1) * 0x10000) for plane in range(17) for _ in range(count // 17)]
    return "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load("embedded")


@pytest.fixture(scope="module")
def llama3():
    path = SHARED / "llama3_tokenizer.model"
    if not path.is_file():
        pytest.skip(f"no Llama 3 rank file at {path}")
    return Tokenizer.load(path)


@pytest.fixture
def gpt2(monkeypatch):
    if "TIKTOKEN_CACHE_DIR" not in os.environ:
        if not (SHARED / "tiktoken_cache").is_dir():
            pytest.skip("gpt2 is not at hand: set TIKTOKEN_CACHE_DIR to a folder that has its files")
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(SHARED / "tiktoken_cache"))
    return Tokenizer.load("gpt2")


@pytest.mark.parametrize("text", [*HARD_TEXTS, every_plane()], ids=lambda text: ascii(text[:20]))
def test_text_survives_encode_and_decode(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.special_ids)


def test_embedded_vocabulary(tokenizer):
    assert len(tokenizer.ranks) == 4092 and tokenizer.vocab_size == 4096
    assert (tokenizer.mask_id, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (4092, 4093, 4094, 4095)
    assert tokenizer.special_ids == [4092, 4093, 4094, 4095]


def test_mask_in_text(tokenizer):
    encode, mask = tokenizer.encode, tokenizer.mask_id
    # The space before [MASK] is part of what is masked, the one after it is part of the next word.
    assert tokenizer.encode_masked("The [MASK] is here") == [*encode("The"), mask, *encode(" is here")]
    assert tokenizer.encode_masked("[MASK][MASK]ing  [MASK]") == [mask, mask, *encode("ing "), mask]
    assert tokenizer.encode_masked("no mask") == encode("no mask")
    assert tokenizer.decode(tokenizer.encode_masked("The [MASK] is")) == "The[MASK] is"


def test_decode_shows_what_is_not_text(tokenizer, gpt2):
    specials = [tokenizer.mask_id, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id]
    assert tokenizer.decode(specials) == "[MASK][PAD][BOS][EOS]"
    assert tokenizer.decode([tokenizer.ranks[b"\xe2"], tokenizer.mask_id]) == "\ufffd[MASK]"
    assert gpt2.decode([gpt2.vocab_size - 1]) == "[UNUSED]"
    for outside in (-100, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"{outside} is outside the vocabulary, 0 to 4095"):
            tokenizer.decode([outside])


def test_long_runs_of_white_space(tokenizer, gpt2):
    """A million of them in a row is more than tiktoken's regex engine can take at once."""
    text = "a" + " " * 1_200_000 + "b" + "\n " * 600_000 + "c"
    for each in (tokenizer, gpt2):
        assert each.decode(each.encode(text)) == text
    long = "All is usual here.\n\n" * 20_000
    assert tokenizer.encode(long) == tokenizer.encoding.encode_ordinary(long)


def test_state_round_trip(tokenizer, gpt2):
    for one in (tokenizer, gpt2):
        other = Tokenizer.from_state(json.loads(json.dumps(one.state())), one.rank_bytes())
        assert other.state() == one.state() and other.ranks == one.ranks and other.rank_bytes() == one.rank_bytes()
        assert other.encode(HARD_TEXTS[4]) == one.encode(HARD_TEXTS[4])
    assert tokenizer.rank_bytes() == EMBEDDED.read_bytes()
    assert pickle.loads(pickle.dumps(tokenizer)).state() == tokenizer.state()


def test_gpt2_keeps_its_ids(gpt2):
    assert gpt2.encode("Hello world") == [15496, 995]
    assert (gpt2.eos_id, gpt2.mask_id, gpt2.pad_id, gpt2.bos_id) == (50256, 50257, 50258, 50259)
    assert gpt2.vocab_size == 50304
    assert gpt2.decode([gpt2.eos_id]) == "[EOS]"


def test_llama3_ids(llama3):
    assert llama3.name == "llama3" and llama3.pattern == PATTERN
    assert (llama3.bos_id, llama3.eos_id, llama3.pad_id, llama3.mask_id) == (128000, 128001, 128001, 128002)
    assert llama3.vocab_size == 128256 and llama3.special_ids == list(range(128000, 128256))
    assert llama3.encode("Hello world") == [9906, 1917]
    assert llama3.decode([llama3.pad_id, 128255]) == "[EOS]<|reserved_special_token_252|>"
    for text in HARD_TEXTS:
        assert llama3.decode(llama3.encode(text)) == text


def test_any_other_rank_file(tmp_path, tokenizer):
    path = tmp_path / "bytes.tiktoken"
    path.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(bytes([i])), i) for i in range(256)))
    plain = Tokenizer.load(path)
    assert (plain.name, plain.vocab_size, plain.mask_id, plain.eos_id) == ("bytes", 384, 256, 259)
    assert plain.encode("é!") == list("é!".encode())
    path.write_bytes(tokenizer.rank_bytes())  # a changed file is seen
    assert Tokenizer.load(path).encode("the file") == tokenizer.encode("the file")


BYTES = [b"%s %d" % (base64.b64encode(bytes([i])), i) for i in range(256)]


@pytest.mark.parametrize(
    "lines, message",
    [
        ([*BYTES[:7], b"not*base64 7"], r"line 8: expected the base64 of a token, a space and its rank, got b'not\*"),
        ([*BYTES, b"YWI="], "line 257: expected"),
        ([*BYTES, b"YWI= many"], "line 257: expected"),
        ([*BYTES, b"YWI= 256", b"YWI= 257"], "line 258: token b'ab' and rank 257 .* line 257 already"),
        ([*BYTES, b"YWI= 3"], "line 257: token b'ab' and rank 3 .* line 4 already"),
        ([*BYTES, b"YWI= 300"], "the 257 ranks must be 0 to 256; 256 is missing"),
        (BYTES[:-2], "each of the 256 bytes; 2 are missing, the first is 0xfe"),
    ],
)
def test_bad_rank_files(tmp_path, lines, message):
    path = tmp_path / "bad.tiktoken"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=f"bad.tiktoken.*{message}"):
        Tokenizer.load(path)


def test_unknown_tokenizers(monkeypatch, tmp_path):
    with pytest.raises(DataError, match="'gtp2': no such rank file, and not one of embedded, .*gpt2"):
        Tokenizer.load("gtp2")

    def offline(name):
        raise ConnectionError

    monkeypatch.setattr("tiktoken.get_encoding", offline)
    with pytest.raises(DataError, match="cannot be downloaded .*TIKTOKEN_CACHE_DIR .* or give a path to a rank file"):
        Tokenizer.load("cl100k_base")


def test_training_a_bpe(tmp_path, monkeypatch):
    """tiktoken with the trained ranks encodes like the model they come from."""
    pytest.importorskip("tokenizers", reason="training a BPE needs the tokenizers package")
    from data import train_bpe

    texts = [text for _, text in zip(range(60), embedded.documents())]
    ranks, model = train_bpe.train(texts, 636)
    source, out = tmp_path / "source.jsonl", tmp_path / "small.tiktoken"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    monkeypatch.setattr(sys, "argv", ["train_bpe.py", f"--source={source}", "--vocab_size=640", f"--out={out}"])
    train_bpe.main()
    assert sorted(os.listdir(tmp_path)) == ["small.tiktoken", "source.jsonl"]
    tokenizer = Tokenizer.load(out)
    assert list(tokenizer.ranks) == sorted(ranks, key=ranks.get)
    for text in [*texts, *HARD_TEXTS, every_plane()]:
        assert tokenizer.encode(text) == model.encode(text).ids
    assert tokenizer.vocab_size == 640
    with pytest.raises(SystemExit, match="2"):
        train_bpe.main()  # it is never overwritten unasked
    assert list(train_bpe.check({"source": str(source), "vocab_size": 600, "out": "new", "overwrite": False})) == [
        "vocab_size must be a multiple of 128 from 384, as there are 256 bytes and 4 special tokens; got 600"
    ]
    with pytest.raises(DataError, match="has merges for .* ranks only, not for 5000"):
        train_bpe.train(["too little"], 5000)
