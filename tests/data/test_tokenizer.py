"""Tokenizers of both engines: round trips, special tokens, offsets, and the errors about bad files."""

import base64
import json
import pickle
import random
import re
import unicodedata
from pathlib import Path

import pytest

import encoder_helpers
from data.tokenizer import Tokenizer
from data.tokenizer_files import EMBEDDED, read_tokenizer
from errors import DataError
from helpers import ROOT
from prepare_helpers import read_documents

SHARED = ROOT.parent / "shared" / "data" / "tokenizer"  # real tokenizers, if there are any
TABLES = json.loads((ROOT / "tests/data/tokenizer_files.json").read_text())
PLANES = "".join(chr(i) for i in range(99, 0x110000, 499) if not 0xD800 <= i <= 0xDFFF)  # all 17 of Unicode
HARD_TEXTS = [*TABLES["texts"], "a" * 5000 + "-" * 5000 + "7" * 500, PLANES]
KINDS = ["qwen", "llama2", "bert"]


def random_texts(count, seed):
    """Pieces of the hard texts, words of the corpus, and any assigned characters, in random order."""
    draw = random.Random(seed)
    pieces = [*re.findall(r"(?s).{9}", "".join(HARD_TEXTS[2:7])), *re.findall(r" \S+", DOCUMENT)]
    for _ in range(count):
        chosen = [draw.choice(draw.choice([pieces, ASSIGNED])) for _ in range(draw.choice([3, 10, 30]))]
        yield "".join(chosen)


BYTES = "".join(f"{base64.b64encode(bytes([i])).decode()} {i}\n" for i in range(256))  # a rank file
ASSIGNED = [chr(i) for i in range(0x20000) if unicodedata.category(chr(i)) not in ("Cn", "Cs")]
DOCUMENT = next(read_documents("embedded", "text"))
TOKENIZER = read_tokenizer("embedded")


@pytest.mark.parametrize("name, spec, vocab_size, special, hello", [
    ("embedded", "embedded", 4096, (4092, 4093, 4094, 4095), [39, 2426, 78, 284, 3821]),
    ("gpt2", "gpt2", 50304, (50257, 50258, 50259, 50256), [15496, 995]),
    ("llama3", SHARED / "llama3_tokenizer.model", 128256, (128002, 128001, 128000, 128001), [9906, 1917]),
])  # fmt: skip
def test_ids_of_the_known_tokenizers(monkeypatch, name, spec, vocab_size, special, hello):
    if name != "embedded" and not SHARED.is_dir():
        pytest.skip(f"no real tokenizers in {SHARED}")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(SHARED / "tiktoken_cache"))
    one = read_tokenizer(spec)
    assert (one.name, one.vocab_size, one.file_name) == (name, vocab_size, "tokenizer.tiktoken")
    assert (one.mask_id, one.pad_id, one.bos_id, one.eos_id) == special
    assert one.encode("Hello world") == hello and one.ordinary_ids.tolist() == list(range(min(special)))
    for text in HARD_TEXTS:
        ids = one.encode(text)
        assert one.decode(ids) == text and not set(ids) & set(one.special_tokens.values())


def test_mask_in_text():
    encode, mask = TOKENIZER.encode, TOKENIZER.mask_id
    # The space before [MASK] is part of what is masked, the one after it is part of the next word.
    assert TOKENIZER.encode_masked("The [MASK] is here") == [*encode("The"), mask, *encode(" is here")]
    assert TOKENIZER.encode_masked("[MASK][MASK]ing  [MASK]") == [mask, mask, *encode("ing "), mask]
    assert TOKENIZER.decode(TOKENIZER.encode_masked("The [MASK] is")) == "The[MASK] is"


def test_offsets_of_bytes():
    """Tokens follow each other; one that holds part of a character covers all of it."""
    ids, offsets = TOKENIZER.encode_with_offsets("a list, é🙂")
    assert offsets[:3] == [(0, 1), (1, 6), (6, 7)] and offsets[-1] == (9, 10)
    assert len(ids) == len(offsets) and all(end > start for start, end in offsets)
    assert TOKENIZER.encode("a\ud800b") == TOKENIZER.encode("a\ufffdb")  # half a surrogate pair
    assert TOKENIZER.encode_with_offsets("\ud800b")[1][-1] == (1, 2)


def test_long_runs_of_white_space():
    """A million of them in a row is more than tiktoken's regex engine can take at once."""
    text = "a" + " " * 1_200_000 + "b" + "\n " * 600_000 + "c"
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_any_other_rank_file_is_known_by_its_content(tmp_path):
    path = tmp_path / "bytes.json"
    path.write_text(BYTES)
    plain = read_tokenizer(path)
    assert (plain.name, plain.vocab_size, plain.mask_id, plain.eos_id) == ("bytes", 384, 256, 259)
    assert plain.encode("é!") == list("é!".encode())
    path.write_bytes(EMBEDDED.read_bytes())  # a changed file is seen
    assert read_tokenizer(path).encode("Hello world") == [39, 2426, 78, 284, 3821]


def test_the_lines_that_train_a_tokenizer(tmp_path, monkeypatch):
    """Those of docs/data.md, on the embedded text: they give the embedded tokenizer to the byte."""
    pytest.importorskip("tokenizers", reason="training a BPE needs the tokenizers package")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/data.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    exec(code.replace("texts/", "embedded").replace("8188", "4092"), {})
    assert Path("texts.tiktoken").read_bytes() == EMBEDDED.read_bytes()


@pytest.fixture(scope="module")
def hub_folders(tmp_path_factory):
    """{kind: (folder, the library's tokenizer without its post-processor)}"""
    library, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    folders = {}
    for kind in KINDS:
        folder, one = tmp_path_factory.mktemp("hub") / kind, encoder_helpers.tokenizer(transformers, kind)
        one.add_tokens(["<tool>"] if kind == "qwen" else [])
        one.save_pretrained(folder)
        oracle = library.Tokenizer.from_file(str(folder / "tokenizer.json"))
        oracle.post_processor, oracle.encode_special_tokens = library.processors.Sequence([]), True
        folders[kind] = folder, oracle
    return folders


@pytest.mark.parametrize("kind", KINDS)
def test_same_ids_and_offsets_as_the_library(kind, hub_folders):
    folder, oracle = hub_folders[kind]
    ours = read_tokenizer(folder)
    special = {*ours.special_tokens.values()}
    in_texts = special - {oracle.token_to_id("[UNK]"), oracle.token_to_id("<unk>")}
    for text in [*HARD_TEXTS, *random_texts(100, f"test {kind}")]:
        ids, offsets = ours.encode_with_offsets(text)
        encoding = oracle.encode(text)
        assert ids == encoding.ids == ours.encode(text) and offsets == encoding.offsets, ascii(text)
        assert not in_texts & {*ids}, ascii(text)
    if kind == "qwen":  # an added token that is not special is a word
        assert len(ours.encode("<tool>")) == 1 and ours.encode("<tool>")[0] in ours.ordinary_ids
    assert not special & {*ours.ordinary_ids} and special | {*ours.ordinary_ids} >= {*oracle.get_vocab().values()}


def test_which_tokenizers_are_alike():
    """Prepared data and a model may have the same tokenizer in two formats; see test_out_and_in_again."""
    first, second = b" 1000\n", b" 1001\n"
    swapped = second.join(part.replace(second, first) for part in TOKENIZER.content.split(first))
    for content, change in (swapped, {}), (TOKENIZER.content, {"pattern": r"\s+|\S"}):
        other = Tokenizer.from_state(TOKENIZER.state() | change, content)
        assert other.encodes_like(other) and not other.encodes_like(TOKENIZER)


@pytest.mark.parametrize("kind", ["embedded", *TABLES["patterns"], *KINDS], ids=lambda kind: kind[:8])
def test_out_and_in_again(kind, hub_folders, tmp_path):
    """What is exported gives the same ids by transformers, with eos at the end, and by us; so do state and file. A word
    has the ids that it has inside a sentence, wherever it stands."""
    transformers = pytest.importorskip("transformers")
    if kind in KINDS:
        one = read_tokenizer(hub_folders[kind][0])
    else:
        pattern = TOKENIZER.pattern if kind == "embedded" else kind
        one = Tokenizer.from_state(TOKENIZER.state() | {"pattern": pattern}, TOKENIZER.content)
    shape = dict(n_layer=1, n_head=2, d_model=32, d_ff=32, seq_len=512)
    encoder_helpers.export(encoder_helpers.random_state(shape, tokenizer=one), tmp_path / "out", "eurobert")
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert there.is_fast and there.bos_token is None and there.model_max_length == 512
    assert (there.mask_token_id, there.pad_token_id, there.eos_token_id) == (one.mask_id, one.pad_id, one.eos_id)
    back = read_tokenizer(tmp_path / "out")
    assert back.encodes_like(one) and back.special_tokens == one.special_tokens and back.mask_id == one.mask_id
    for text in [*HARD_TEXTS[:6], *random_texts(30, kind), "zyzzyva " + HARD_TEXTS[-1]]:
        for name in one.special_tokens:
            text = text.replace(name, "")
        assert there(text).input_ids == [*one.encode(text), one.eos_id], ascii(text)
        assert back.encode_with_offsets(text) == one.encode_with_offsets(text), ascii(text)
    assert there(f"The {there.mask_token} is").input_ids == [*one.encode_masked("The [MASK] is"), one.eos_id]
    assert there("one", "two").input_ids == [*one.encode("one"), one.eos_id, *one.encode("two"), one.eos_id]

    state = json.loads(json.dumps(one.state()))
    for other in Tokenizer.from_state(state, one.content), pickle.loads(pickle.dumps(one)):
        assert other.state() == one.state() and other.content == one.content and other.encodes_like(one)
    ids = [one.encode(one.word_prefix + word) for word in "the list of the strings is empty".split()]
    assert sum(ids, []) == one.encode(one.word_prefix + "the list of the strings is empty") and ids[0] == ids[3]


def small(*added):
    """The content of a tokenizer.json with words 0 to 9, and special tokens from 10 on."""
    library = pytest.importorskip("tokenizers")
    one = library.Tokenizer(library.models.WordLevel({str(i): i for i in range(10)}, unk_token="0"))
    one.pre_tokenizer = library.pre_tokenizers.Whitespace()
    one.add_special_tokens([*added])
    return one.to_str()


@pytest.mark.parametrize("added, files, expected", TABLES["folders"])
def test_special_tokens_of_a_folder(tmp_path, added, files, expected):
    """added: special tokens. expected: ids of mask, pad, bos, eos; vocab_size, which grows if it is below the ids. The
    id of an ordinary token means nothing. With special_tokens_map.json, eos is that of transformers."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one/tokenizer.json").write_text(small(*added.split()))
    for name, content in files.items():
        (tmp_path / f"one/{name}.json").write_text(json.dumps(content))
    one = read_tokenizer(tmp_path / "one")
    assert (one.mask_id, one.pad_id, one.bos_id, one.eos_id, one.vocab_size) == (*expected,)
    assert one.name == "one" and set(expected[:4]) <= set(one.special_tokens.values())
    assert one.encode("3 4 <end> 9") == [3, 4, 0, 0, 0, 9] and one.decode([3, 4, one.mask_id]) == "3 4 [MASK]"


def test_what_a_file_would_cut_pad_or_add_is_not_in_a_text(tmp_path):
    library = pytest.importorskip("tokenizers")
    one = library.Tokenizer.from_str(small("<s>"))
    one.enable_truncation(2)
    one.enable_padding(length=9)
    one.post_processor = library.processors.TemplateProcessing("<s> $A", None, [("<s>", 10)])
    one.save(str(tmp_path / "tokenizer.json"))
    loaded = read_tokenizer(tmp_path)
    assert loaded.encode("3 4 9") == [3, 4, 9] and loaded.encode("") == [] and loaded.encode("\0 \ud800") == [0, 0]
    assert loaded.encode("7 " * 50_000) == [7] * 50_000


@pytest.mark.parametrize("name, files, message", TABLES["faults"])
def test_what_cannot_be_read(tmp_path, monkeypatch, name, files, message):
    pytest.importorskip("tokenizers")
    stand_ins = {"WORDS": small(), "BYTES_CUT": BYTES[:-20], "BYTES": BYTES}
    for file, content in files.items():
        for word, stand_in in stand_ins.items():
            content = content.replace(word, stand_in)
        (tmp_path / file).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=message):
        read_tokenizer(name)
