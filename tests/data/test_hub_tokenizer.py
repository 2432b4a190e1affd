"""Tokenizers of the hub: the same ids as the original for each style, what is refused, and out again."""
import copy
import json
import random
import sys
import unicodedata
from types import SimpleNamespace

import pytest

from helpers import ROOT
sys.path.insert(0, str(ROOT))
from data import embedded
from data.hub_tokenizer import BYTE_OF, CHARACTER_OF, write
from data.prepare import prepare
from data.shards import load_meta
from data.tokenizer import PATTERN, Tokenizer
from errors import DataError

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}  # cuts by GPT-2's expression
NO_REGEX = BYTE_LEVEL | {"use_regex": False}
QWEN_PATTERN = PATTERN.replace("{1,3}", "")
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tiktoken's own for gpt2 and cl100k_base
TIKTOKEN_PATTERNS = [
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s",
]


def split_by(pattern, behavior="Isolated", invert=False):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}
    return {"type": "Sequence", "pretokenizers": [split, NO_REGEX]}


PRE_TOKENIZERS = {
    "gpt2": BYTE_LEVEL,
    "llama3": split_by(PATTERN),
    "smollm2": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
    "qwen": split_by(QWEN_PATTERN),
    "o200k": split_by(O200K_PATTERN, "Removed", True),
}
STYLES = [style for style in PRE_TOKENIZERS if style != "o200k"]
SPECIAL = {  # as the real ones name and place them
    "gpt2": ["<|endoftext|>"],
    "llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"],
    "smollm2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"],
    "qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
}


def as_json(style, vocab, merges, special=(), ignore_merges=False):
    added = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for name, i in special]  # fmt: skip
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "fuse_unk": False,
             "end_of_word_suffix": None, "byte_fallback": False, "ignore_merges": ignore_merges, "vocab": vocab,
             "merges": merges}  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "NFC"} if style == "qwen" else None, "pre_tokenizer": PRE_TOKENIZERS[style],
            "post_processor": None, "decoder": {"type": "ByteLevel"} | BYTE_LEVEL, "model": model}  # fmt: skip


def save(folder, content, **configs):
    """A hub folder: tokenizer.json and what else is given by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in ({"tokenizer": content} | configs).items():
        (folder / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


POOLS = [
    "the of and to in is that encoder tokens I'm you'll WE'VE it's o'clock 'tis can'T DON'T".split(" "),
    " \n\t\r\x0b\x0c\x85\xa0\u2003\u2028\u3000\ufeff\u200b",
    [" ", "  ", "   ", "\n\n", "\r\n", " \n ", "\t\t", " " * 17],
    "0123456789٣४Ⅷ½²₂〇",
    "éàüßñœÆſK\u0130\u0149ﬀ\u212b",
    "e\u0301 a\u0308\u0323 \u0344 ö\u0304 \u1100\u1161\u11a8 \u0958 \u2126 q\u0307\u0323 \U0001d15e".split(" "),
    "日本語中文한국어العربيةहिन्दीไทยעברית",
    ["👩‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷", "👍🏽", "☃", "™", "…", "—", "“", "\x00", "\x7f"],
    ["<|endoftext|>", "<|im_start|>", "<|begin_of_text|>", "[MASK]", "<s>", "<|reserved_special_token_0|>", "[EOS]"],
    "!?.,;:-_/\\()[]{}@#$%^&*+=~`'\"|<>",
]


def known(character):
    """Whether all packages have it in their tables: it is assigned, and no mark that NFC has learned of lately."""
    new = unicodedata.category(character) in ("Cn", "Cs")
    return not new and unicodedata.combining(character) == unicodedata.ucd_3_2_0.combining(character)


def strings(count, seed):
    """Varied strings; a fifth of the pieces are characters of any plane."""
    draw = random.Random(seed)
    for _ in range(count):
        pieces = []
        while len(pieces) < draw.choice([3, 10, 30]):
            character = chr(draw.randrange(draw.choice([0x3000, 0x20000, sys.maxunicode + 1])))
            if draw.random() < 0.8:
                pieces += draw.choices(draw.choice(POOLS), k=draw.randint(1, 4))
            elif known(character):
                pieces.append(character * draw.randint(1, 3))
        yield "".join(pieces)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """original(style) -> (folder, tokenizers.Tokenizer): a small tokenizer trained in a style, on hard text too."""
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers package is what ids are compared with")
    cached = {}

    def make(style):
        if style not in cached:
            documents = [text for _, text in zip(range(60), embedded.documents())]
            first = SPECIAL[style] if style == "smollm2" else []
            empty = tokenizers.Tokenizer.from_str(json.dumps(as_json(style, {}, [])))
            empty.train_from_iterator(
                [*documents, *strings(1500, style)],
                tokenizers.trainers.BpeTrainer(
                    vocab_size=3000, initial_alphabet=list(BYTE_OF), special_tokens=first, show_progress=False
                ),
            )
            model = json.loads(empty.to_str())["model"]
            vocab, merges = model["vocab"], model["merges"]
            special = [(name, vocab.get(name, len(vocab) + i)) for i, name in enumerate(SPECIAL[style])]
            if style == "llama3":
                # As Llama 3's file: merges are all the splits of a token, some tokens are only found as whole pieces.
                for word in ("Ġzyzzyva", "Ġquokka"):
                    vocab[word] = len(vocab)
                special = [(name, len(vocab) + i) for i, name in enumerate(SPECIAL[style])]
                splits = [(word[:i], word[i:]) for word in vocab for i in range(1, len(word))]
                merges = [list(pair) for pair in splits if pair[0] in vocab and pair[1] in vocab]
            content = as_json(style, vocab, merges, special, ignore_merges=style == "llama3")
            folder = save(tmp_path_factory.mktemp("hub") / style, content)
            oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            oracle.encode_special_tokens = True  # the names of special tokens in a text are text
            cached[style] = folder, oracle
        return cached[style]

    return make


def assert_equal(ours, oracle, texts):
    texts = list(texts)
    for text, encoding in zip(texts, oracle.encode_batch(texts, add_special_tokens=False)):
        assert ours.encode(text) == encoding.ids, ascii(text)


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("style", STYLES)
def test_same_ids_as_the_original(style, count, original):
    folder, oracle = original(style)
    ours = Tokenizer.load(folder)
    assert ours.vocab_size == -(-oracle.get_vocab_size() // 128) * 128 and ours.nfc == (style == "qwen")
    assert_equal(ours, oracle, strings(count, f"test {style}"))
    assert_equal(ours, oracle, ["", " ", "\n", "zyzzyva quokka zyzzyvas quokka", "a" * 3000 + " " * 3000 + "7" * 300])
    text = "naïve e\u0301tudes"
    assert ours.decode(ours.encode(text)) == (unicodedata.normalize("NFC", text) if ours.nfc else text)


@pytest.mark.parametrize("step", [401, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("style", PRE_TOKENIZERS)
def test_text_is_cut_alike(style, step, tmp_path):
    """Every step-th character in many places. Each pair of bytes is a token, so the ids show where text was cut."""
    tokenizers = pytest.importorskip("tokenizers")
    pairs = [(a, b) for a in CHARACTER_OF.values() for b in CHARACTER_OF.values()]
    random.Random(0).shuffle(pairs)
    vocab = {token: i for i, token in enumerate([*BYTE_OF, *map("".join, pairs)])}
    folder = save(tmp_path / style, as_json(style, vocab, pairs))
    oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    characters = map(chr, range(0, sys.maxunicode + 1, step))
    characters = filter(known, characters)
    texts = (f"a{c}b 1{c}2 {c}{c} '{c} \n{c} .{c}. {c}1 A{c}{c}z  {c} '{c.upper()}e" for c in characters)
    assert_equal(Tokenizer.load(folder), oracle, texts)


def small(**model):
    """A tokenizer.json with the 256 bytes, "ab" (256) and "abc" (257), and <|end|> (258)."""
    vocab = {token: i for i, token in enumerate([*BYTE_OF, "ab", "abc"])}
    content = as_json("gpt2", vocab, [["a", "b"], ["ab", "c"]], [("<|end|>", 258)])
    content["model"] |= model
    return content


def test_special_tokens(tmp_path):
    end, reserved, pad = "<|end|>", "<|reserved_special_token_0|>", "<pad>"

    def load(content, mask_token="", pad_token="", **configs):
        loaded = Tokenizer.load(save(tmp_path / "one", content, **configs), mask_token, pad_token)
        for path in (tmp_path / "one").iterdir():
            path.unlink()
        return loaded, (loaded.mask_id, loaded.pad_id, loaded.bos_id, loaded.eos_id)

    # What nobody names: mask and eos are new ids, pad and bos are eos.
    loaded, ids = load(small())
    assert ids == (259, 260, 260, 260) and loaded.special_tokens == {end: 258, "[MASK]": 259, "[EOS]": 260}
    assert (loaded.name, loaded.vocab_size) == ("one", 384)
    # By name, by name as an object, by id; an id that is no special token's says nothing.
    content = small()
    content["added_tokens"] += [{"id": 259, "content": reserved}, {"id": 261, "content": pad}]
    config = {"eos_token": end, "pad_token": {"__type": "AddedToken", "content": pad}}
    loaded, ids = load(content, tokenizer_config=config, config={"eos_token_id": 2, "vocab_size": 300})
    assert ids == (259, 261, 258, 258) and loaded.vocab_size == 300 and loaded.special_ids == [258, 259, 261]
    assert load(content, config={"bos_token_id": 1, "eos_token_id": [258, 261]})[1] == (259, 258, 258, 258)
    assert load(content, special_tokens_map={"mask_token": pad, "eos_token": end})[1] == (261, 258, 258, 258)
    assert load(content, generation_config={"eos_token_id": 258}, mask_token=pad)[1] == (261, 258, 258, 258)
    assert load(content, generation_config={"eos_token_id": 258}, pad_token=pad)[1] == (259, 261, 258, 258)
    # A model with fewer rows than there are ids has to grow.
    assert load(small(), tokenizer_config=config | {"pad_token": None}, config={"vocab_size": 259})[0].vocab_size == 384

    with pytest.raises(DataError, match="one/tokenizer_config.json: eos_token '</s>' is not in added_tokens of .*one/"):
        load(content, tokenizer_config={"eos_token": "</s>"})
    with pytest.raises(DataError, match=r"mask_token '<m>' is not a special token of .*; it has <\|end\|>, .*<pad>"):
        load(content, mask_token="<m>")
    with pytest.raises(DataError, match=r"pad_token '<m>' is not a special token"):
        load(content, pad_token="<m>")
    with pytest.raises(DataError, match="eos_token None is not in added_tokens"):
        load(content, tokenizer_config={"eos_token": {"token": end}})
    with pytest.raises(DataError, match=r"config.json: not JSON"):
        load(content, config="{")
    with pytest.raises(DataError, match="mask_token '<m>': a choice for a tokenizer.json only; 'embedded' has its own"):
        Tokenizer.load("embedded", "<m>")
    with pytest.raises(DataError, match="pad_token '<m>': a choice for a tokenizer.json only"):
        Tokenizer.load("embedded", pad_token="<m>")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no tokenizer.json; of hub folders only"):
        Tokenizer.load(tmp_path / "empty")


def test_tokens_that_no_text_makes(tmp_path):
    """They are left out of the ranks: tiktoken would find "xyz" and "Ġb", whole pieces."""
    content = small()
    content["model"]["vocab"] |= {"xyz": 300, "Ġb": 301, "▁": 302}
    loaded = Tokenizer.load(save(tmp_path, content))
    assert loaded.encode("xyz b abc") == [loaded.ranks[c] for c in [b"x", b"y", b"z", b" ", b"b", b" ", b"abc"]]
    assert loaded.decode([300, 302]) == "[UNUSED][UNUSED]"
    content["model"]["ignore_merges"] = True
    del content["model"]["vocab"]["Ġb"]  # which tiktoken would make by a merge too
    loaded = Tokenizer.load(save(tmp_path, content))
    assert loaded.encode("xyz") == [300] and loaded.decode([302]) == "[UNUSED]"


def edited(path, value, content=None):
    """small() with the value at a path such as "model.vocab"."""
    content = content or small()
    *parents, last = path.split(".")
    inner = content
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return content


def without(token):
    content = small()
    del content["model"]["vocab"][token]
    return content


SENTENCEPIECE = small(byte_fallback=True) | {
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {
        "type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, "pre_tokenizer": None}  # fmt: skip
BYTES = {token: i for i, token in enumerate(BYTE_OF)}


@pytest.mark.parametrize(
    "content, message",
    [
        # Llama 2, TinyLlama, Mistral: all reasons at once
        (SENTENCEPIECE, 'byte_fallback is true, it must be off .a SentencePiece model.*; normalizer has {"type": "Prepend", "prepend": "▁"}, it '
                        'must be null or NFC; normalizer has {"type": "Replace".*; pre_tokenizer is null, it must be'),
        (edited("pre_tokenizer", {"type": "Metaspace", "replacement": "▁"}), 'pre_tokenizer is {"type": "Metaspace"'),
        (edited("model", {"type": "Unigram", "vocab": [["a", 0.0]]}), "model.type is 'Unigram', it must be BPE"),
        (edited("model", {"type": "WordPiece", "vocab": {}}), "model.type is 'WordPiece'"),
        (small(dropout=0.1), "model.dropout is 0.1, it must be off"),
        (small(end_of_word_suffix="</w>"), "model.end_of_word_suffix is '</w>'"),
        (small(continuing_subword_prefix="##"), "model.continuing_subword_prefix is '##'"),
        (edited("normalizer", {"type": "NFKC"}), 'normalizer has {"type": "NFKC"}, it must be null or NFC'),
        (edited("pre_tokenizer", BYTE_LEVEL | {"add_prefix_space": True}), '"add_prefix_space": true.* must be Byte'),
        (edited("pre_tokenizer", NO_REGEX), '"use_regex": false'),
        (edited("pre_tokenizer", {"type": "Sequence", "pretokenizers": [split_by(r"\s+"), BYTE_LEVEL]}), r"\\s\+"),
        (edited("pre_tokenizer", split_by(PATTERN, "MergedWithNext")), "MergedWithNext"),
        (edited("pre_tokenizer", {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": False}, BYTE_LEVEL]}), '"individual_digits": false'),
        (edited("pre_tokenizer", split_by(r"\p{N}{1,3}+|\D")), r"has, from '\{1,3\}\+|\\\\D' on, what tiktoken may"),
        (edited("pre_tokenizer", split_by(r"\s+$|\S+|\s+")), r"from '\$\|"),
        (edited("pre_tokenizer", split_by(r"(?m:\S+)|\s+")), r"from '\(\?m"),
        (edited("pre_tokenizer", split_by(r"[a-z&&[^b]]+|\S|\s")), r"from '\[a-z&&"),
        (edited("pre_tokenizer", split_by(r"(\S+|\s+")), "is not accepted by tiktoken: "),
        (edited("pre_tokenizer", split_by(r"\p{L}+|\s+")), "does not match every character"),
        (edited("added_tokens", [{"id": 258, "content": "  ", "normalized": True, "special": False}]),
         "added_tokens has '  ', a word that is made from text before any merge"),
        (edited("model.vocab", BYTES | {"ab": 257, "abc": 256}),
         r"make 'ab' \(id 257\) before 'abc' \(id 256\); the ids must be in the order of the merges"),
        (edited("model.vocab", BYTES | {"ab": 256}), "model.vocab has no 'abc', which is a byte or part of a merge"),
        (without("Ā"), "model.vocab has no 'Ā', which is a byte"),
        (small(merges=["a b", "ab c", "abc d e"]), "not a tokenizer.json: ValueError"),
        # tiktoken would merge a + bc to abc: the list has only ab + c, and there is no ab
        (edited("model.vocab", BYTES | {"bc": 256, "ab": 257, "abc": 258},
                small(merges=["b c", "a b", "ab c"], ignore_merges=True) | {"added_tokens": []}),
         r"model.merges has no pair \(b'a', b'bc'\), which tiktoken would merge"),
        (edited("model.vocab", BYTES | {"bc": 256, "cd": 257, "ab": 258, "abcd": 259, "bcde": 260},
                small(merges=["b c", "c d", "a b", "ab cd"]) | {"added_tokens": []}),
         "model.vocab has b'abcd', which the merges do not make of its bytes"),
        (edited("model.vocab", BYTES | {"ab": 256, "abc": 256}), "must give each token, a string, an id of its own"),
        (edited("model.vocab", BYTES | {"ab": 256, "abc": 258}), "must give each token, a string, an id of its own"),
        (edited("model.vocab", BYTES | {"ab": -1, "abc": 257}), "must give each token, a string, an id of its own"),
        (edited("added_tokens", [{"id": 258, "content": 3}]), "must give each token, a string, an id of its own"),
        ("[1, 2]", "not a tokenizer.json: AttributeError"),
        ("{", "not a tokenizer.json: JSONDecodeError"),
        ({"version": "1.0"}, "not a tokenizer.json: KeyError: 'model'"),
        (edited("normalizer", {"kind": "NFC"}), "not a tokenizer.json: KeyError: 'type'"),
    ],
)  # fmt: skip
def test_refused(content, message, tmp_path):
    with pytest.raises(DataError, match=message) as error:
        Tokenizer.load(save(tmp_path, copy.deepcopy(content)))
    assert str(error.value).startswith(str(tmp_path / "tokenizer.json"))


def test_states_with_and_without_nfc(tmp_path, original):
    embedded_one = Tokenizer.load("embedded")
    assert "nfc" not in embedded_one.state()  # the state of a checkpoint from before is the state of today
    folder, _ = original("qwen")
    one = Tokenizer.load(folder)
    other = Tokenizer.from_state(json.loads(json.dumps(one.state())), one.rank_bytes())
    assert other.state() == one.state() and other.encode("e\u0301") == one.encode("é") != embedded_one.encode("e\u0301")


def test_answers_are_found_in_normalised_text(original):
    """The answer's place is given in the text as it is, the tokens are those of its normal form."""
    from eval.tasks.families import QuestionAnswering

    tokenizer = Tokenizer.load(original("qwen")[0])
    dataset = SimpleNamespace(labels=[], family="qa", train=[])
    context, answer = "cafe\u0301 e\u0301te\u0301, in Orle\u0301ans on Monday", "Orle\u0301ans"
    question = SimpleNamespace(question="Where?", context=context, answers=[(answer, context.index(answer))])
    (item,) = QuestionAnswering(dataset, tokenizer, 100).items(question, "train")
    inside = [i for i, target in zip(item.ids, item.target) if target == 1]
    assert tokenizer.decode(inside).strip() == "Orléans"


def test_prepare_with_a_hub_folder(tmp_path):
    folder = save(tmp_path / "hub", small(), tokenizer_config={"eos_token": "<|end|>"})
    (tmp_path / "a.txt").write_text("\n\n\n".join(f"abc {i} ab" for i in range(200)))
    prepare(str(tmp_path / "a.txt"), str(tmp_path / "out"), str(folder), val_fraction=0.2, progress=False)
    meta = load_meta(tmp_path / "out")
    back = Tokenizer.from_state(meta["tokenizer"], (tmp_path / "out/tokenizer.tiktoken").read_bytes())
    assert back.state() == Tokenizer.load(folder / "tokenizer.json").state() and back.mask_id == 259
    with pytest.raises(DataError, match="mask_token '<m>' is not a special token"):
        prepare(str(tmp_path / "a.txt"), str(tmp_path / "o"), str(folder), mask_token="<m>", progress=False)
    prepare(str(tmp_path / "a.txt"), str(tmp_path / "o"), str(folder), mask_token="<|end|>", val_fraction=0.2,
            pad_token="<|end|>", progress=False)  # fmt: skip
    assert load_meta(tmp_path / "o")["tokenizer"]["mask_id"] == load_meta(tmp_path / "o")["tokenizer"]["pad_id"] == 258


def test_out_and_in_again(tmp_path, original):
    tokenizers = pytest.importorskip("tokenizers")
    plain = Tokenizer.load("embedded")
    ones = [plain, *(Tokenizer.load(original(style)[0]) for style in STYLES)]
    for pattern in TIKTOKEN_PATTERNS:
        ones.append(Tokenizer.from_state(plain.state() | {"pattern": pattern}, plain.rank_bytes()))
    for number, one in enumerate(ones):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(one, folder, max_length=512)
        oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        mask = json.loads((folder / "tokenizer_config.json").read_text())["mask_token"]
        assert oracle.encode(f"The {mask} is").ids == [*one.encode_masked("The [MASK] is"), one.eos_id]
        assert oracle.encode("one", "two").ids == [*one.encode("one"), one.eos_id, *one.encode("two"), one.eos_id]
        assert oracle.decode(one.encode(" café")) == " café"
        oracle.encode_special_tokens = True
        assert_equal(one, oracle, strings(500, number))
        back = Tokenizer.load(folder)
        assert back.ranks == one.ranks and back.special_tokens == one.special_tokens
        for name in "mask_id", "pad_id", "eos_id", "vocab_size", "nfc":
            assert getattr(back, name) == getattr(one, name)
        assert_equal(back, oracle, strings(200, number))
    write(plain, folder, max_length=512, append_eos=False)
    assert tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode("one").ids == plain.encode("one")
    special = {name: i for name, i in plain.special_tokens.items() if name != "[BOS]"} | {"the": plain.bos_id}
    clash = Tokenizer.from_state(plain.state() | {"special_tokens": special}, plain.rank_bytes())
    with pytest.raises(DataError, match="a special token has the name of an ordinary one"):
        write(clash, folder, max_length=512)


def test_transformers_reads_what_is_written(tmp_path, original):
    transformers = pytest.importorskip("transformers")
    for style in STYLES:
        one = Tokenizer.load(original(style)[0])
        write(one, tmp_path, max_length=512)
        other = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert other.is_fast and other.bos_token is None and other.model_max_length == 512
        assert (other.mask_token_id, other.pad_token_id, other.eos_token_id) == (one.mask_id, one.pad_id, one.eos_id)
        for text in ("Hello  world, it's 12345 e\u0301tudes\n\n", "", "日本"):
            assert other(text).input_ids == [*one.encode(text), one.eos_id]
