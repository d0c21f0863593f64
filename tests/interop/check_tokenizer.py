"""Tokenizers against the tokenizers library: random and adversarial strings, encoded with special tokens and decoded both ways."""
import json, os, random, subprocess, unicodedata

from tokenizers import Tokenizer

ALPHABETS = ["abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJ", "0123456789", " ", " ", "\n\r\t ", ".,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+~`", "éèüößñçåøł", "бвгдежзи",
             "的一是不了人我在有他", "あいうえおアイウ", "ابتثجحخ", "अआइईउ\u093e\u093f\u094d", "😀🎉👍🏽\u200d\ufe0f❤", "\u0300\u0301\u0308\u0327\u0334\u0345",
             "\u00a0\u2009\u200b\u3000\u2028\u0085\u180e", "½²³①Ⅷ٣", "\x00\x07\x1b\x7f", "각가\u1100\u1161\u11a8", "\u09c7\u09be\u0b47\u0b56\u0cc6\u0cc2\u0fb2\u0f71\u0f80",
             "ſKÅΩ\u0344\u0958ﬁß", "▁▁Ġ", "\U0001d7ce\U00010d40\U0002ebf0\u1c89", "\u0898\u08ca\u1ac8\U0001e4ec\U00010efd"]
WORDS = ["the", "quick", " brown", "Fox's", " isn't", "I'LL", "'S", "'ſ", "'re", "\n\n", "    ", "return", "();", " = ", "==", "2026", " 3.5", "naïve", "Straße", " 世界",
         "👩‍🚀", "\r\n", "\t", "https://", "_id", "<0x41>", "<0x0A>", "honey", "<s", "  ", " \n ", "\n "]


def pieces(rng, special):
    """A random string: words, alphabets, code points of all planes, special tokens and their halves."""
    kind, n = rng.random(), rng.randint(1, 12)
    if kind < 0.3:
        return [rng.choice(WORDS) for _ in range(n)]
    if kind < 0.6:
        return ["".join(rng.choice(a) for _ in range(rng.randint(1, 6))) for a in rng.choices(ALPHABETS, k=n)]
    if kind < 0.75:
        return [rng.choice(special)[:rng.choice([2, 99, 99, 99])] if rng.random() < 0.5 else rng.choice(WORDS) for _ in range(n)]
    if kind < 0.9:  # any assigned characters of a block
        base = rng.choice([0, 0x80, 0x300, 0x900, 0x1100, 0x1e00, 0x2000, 0x3000, 0xa000, 0xac00, 0xfb00, 0x10000, 0x11000, 0x1d100, 0x1e000, 0x1f300, 0x20000, 0x30000])
        points = [base + rng.randrange(0x800) for _ in range(n)]
    else:
        points = [rng.randrange(0x110000) for _ in range(n)]
    return [chr(c) for c in points if not 0xD800 <= c <= 0xDFFF]


def strings(count, seed, special):
    rng = random.Random(seed)
    for i in range(count):
        yield "".join(pieces(rng, special)) * (rng.randint(20, 60) if i % 500 == 0 else 1)  # some long ones


def check(binary, path, count, seed):
    """[differences] of one tokenizer.json."""
    tok = Tokenizer.from_file(path)
    special = [t.content for t in tok.get_added_tokens_decoder().values()] or ["<s>"]
    texts = list(strings(count, seed, special))
    p = subprocess.run([binary, path], input="".join(json.dumps(t) + "\n" for t in texts), capture_output=True, text=True, timeout=900)
    if p.returncode:
        return [f"encode_lines ended with {p.returncode}: {p.stderr}"]
    bad, lines = [], p.stdout.splitlines()
    if len(lines) != len(texts):
        return [f"{len(lines)} answers to {len(texts)} strings"]
    for text, line, want in zip(texts, lines, tok.encode_batch(texts)):
        got = json.loads(line)
        expected = [want.ids, tok.decode(want.ids, skip_special_tokens=False), tok.decode(want.ids)]
        bad += [f"{text!r}: {what}: {g!r}, the library says {w!r}" for what, g, w in zip(("ids", "decoded", "without special tokens"), got, expected) if g != w]
    return bad
