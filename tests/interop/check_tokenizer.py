# SPDX-License-Identifier: Apache-2.0
"""Tokenizers, those of the goldens and such as other published models have, against the tokenizers library: random and
adversarial strings, encoded with special tokens and decoded both ways."""
import json, os, random, subprocess

from tokenizers import Tokenizer

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJ", "0123456789", " ", " ", "\n\r\t ", ".,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+~`",
    "éèüößñçåøł", "бвгдежзи", "的一是不了人我在有他", "あいうえおアイウ", "ابتثجحخ", "अआइईउ\u093e\u093f\u094d", "😀🎉👍🏽\u200d\ufe0f❤",
    "\u0300\u0301\u0308\u0327\u0334\u0345", "\u00a0\u2009\u200b\u3000\u2028\u0085\u180e", "½²³①Ⅷ٣", "\x00\x07\x1b\x7f",
    "각가\u1100\u1161\u11a8", "\u09c7\u09be\u0b47\u0b56\u0cc6\u0cc2\u0fb2\u0f71\u0f80", "ſKÅΩ\u0344\u0958ﬁß", "▁▁Ġ",
    "\U0001d7ce\U00010d40\U0002ebf0\u1c89", "\u0898\u08ca\u1ac8\U0001e4ec\U00010efd"
]
WORDS = [
    "the", "quick", " brown", "Fox's", " isn't", "I'LL", "'S", "'ſ", "'re", "\n\n", "    ", "return", "();", " = ",
    "==", "2026", " 3.5", "naïve", "Straße", " 世界", "👩‍🚀", "\r\n", "\t", "https://", "_id", "<0x41>", "<0x0A>", "honey",
    "<s", "  ", " \n ", "\n "
]


def pieces(rng, special):
    """A random string: words, alphabets, code points of all planes, special tokens and their halves."""
    kind, n = rng.random(), rng.randint(1, 12)
    if kind < 0.3:
        return [rng.choice(WORDS) for _ in range(n)]
    if kind < 0.6:
        return ["".join(rng.choice(a) for _ in range(rng.randint(1, 6))) for a in rng.choices(ALPHABETS, k=n)]
    if kind < 0.75:
        return [
            rng.choice(special)[:rng.choice([2, 99, 99, 99])] if rng.random() < 0.5 else rng.choice(WORDS)
            for _ in range(n)
        ]
    if kind < 0.9:  # any assigned characters of a block
        base = rng.choice([
            0, 0x80, 0x300, 0x900, 0x1100, 0x1e00, 0x2000, 0x3000, 0xa000, 0xac00, 0xfb00, 0x10000, 0x11000, 0x1d100,
            0x1e000, 0x1f300, 0x20000, 0x30000
        ])
        points = [base + rng.randrange(0x800) for _ in range(n)]
    else:
        points = [rng.randrange(0x110000) for _ in range(n)]
    return [chr(c) for c in points if not 0xD800 <= c <= 0xDFFF]


# Pre-tokenizers as published models have them, beside those of the goldens.
MARKS = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{MARKS[0]}]*[{MARKS[1]}]+|[^\r\n\p{{L}}\p{{N}}]?[{MARKS[0]}]+[{MARKS[1]}]*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FOLD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{MARKS[0]}]*[{MARKS[1]}]+{FOLD}?|[^\r\n\p{{L}}\p{{N}}]?[{MARKS[0]}]+[{MARKS[1]}]*{FOLD}?|"
    r"\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKED = (
    rf"{FOLD}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PUNCTUATED = (r"[!#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~" + '"' +
              r"][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CATEGORIES = r"\p{Lu}+|\p{Nd}{2}|[\p{Sc}\p{Sk}]|\p{Pd}|[\p{Ps}\p{Pe}]+|\P{Zs}|\p{Cf}+|\p{C}"


def split(*patterns):
    steps = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    return {
        "type": "Sequence", "pretokenizers": [
            *steps, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        ]
    }


def form(*names):
    return {"type": "Sequence", "normalizers": [{"type": n} for n in names]}


# A golden, and what is another than there.
VARIANTS = {
    "tekken": ("llama3", {"pre_tokenizer": split(TEKKEN)}),
    "o200k": ("llama3", {"pre_tokenizer": split(O200K)}),
    "letters with marks": ("qwen2", {"pre_tokenizer": split(MARKED)}),
    "punctuation": ("llama3", {"pre_tokenizer": split(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", PUNCTUATED)}),
    "categories": ("gpt2", {"pre_tokenizer": split(CATEGORIES)}),
    "NFD": ("qwen2", {"normalizer": {"type": "NFD"}}),
    "NFKC": ("qwen2", {"normalizer": {"type": "NFKC"}}),
    "NFKD": ("llama2", {"normalizer": {"type": "NFKD"}}),
    "NFKD, then NFC": ("gpt2", {"normalizer": form("NFKD", "NFC")}),
    "NFKC of Metaspace": ("mistral", {"normalizer": form("NFKC")}),
    "prefix space": (
        "gpt2",
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
    ),
    "digits": (
        "gpt2",
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                ],
            }
        },
    ),
}


def check_variant(binary, goldens, name, work, count, seed):
    """[differences] of one of VARIANTS, made in the folder work."""
    style, other = VARIANTS[name]
    with open(os.path.join(goldens, style, "tokenizer.json"), encoding="utf-8") as f:
        data = {**json.load(f), **other}
    path = os.path.join(work, "tokenizer.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(data, f)
    return check(binary, path, count, seed)


def strings(count, seed, special):
    rng = random.Random(seed)
    for i in range(count):
        yield "".join(pieces(rng, special)) * (rng.randint(20, 60) if i % 500 == 0 else 1)  # some long ones


def check(binary, path, count, seed):
    """[differences] of one tokenizer.json."""
    tok = Tokenizer.from_file(path)
    special = [t.content for t in tok.get_added_tokens_decoder().values()] or ["<s>"]
    texts = list(strings(count, seed, special))
    p = subprocess.run([binary, path], input="".join(json.dumps(t) + "\n" for t in texts), capture_output=True,
                       text=True, timeout=1800)
    if p.returncode:
        return [f"encode_lines ended with {p.returncode}: {p.stderr}"]
    bad, lines = [], p.stdout.splitlines()
    if len(lines) != len(texts):
        return [f"{len(lines)} answers to {len(texts)} strings"]
    for text, line, want in zip(texts, lines, tok.encode_batch(texts)):
        got = json.loads(line)
        expected = [want.ids, tok.decode(want.ids, skip_special_tokens=False), tok.decode(want.ids)]
        bad += [
            f"{text!r}: {what}: {g!r}, the library says {w!r}"
            for what, g, w in zip(("ids", "decoded", "without special tokens"), got, expected)
            if g != w
        ]
    return bad
