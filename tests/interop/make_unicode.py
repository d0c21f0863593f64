#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the tokenizers library takes for a letter, a number, white space and so on, asked of it code point by code
point.

usage: make_unicode.py RANGES.inc CATEGORIES.inc        (unicode_ranges.inc and unicode_categories.inc of
src/train/text/tokenizer are its output)

The library mixes three engines (Oniguruma, Rust's char, Rust's regex) of three versions of Unicode; only asking shows
what each of them thinks."""
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
# their order is unicode.h's
CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
LETTER, NUMBER, SPACE, NUMERIC, WORD, JOINS, CHANGES, DECOMPOSES = (1 << i for i in range(8))


def blocks(n=5000):
    for i in range(0, len(POINTS), n):
        yield POINTS[i:i + n]


def by_regex(pattern):
    """Oniguruma: what Split removes."""
    pre, rest = pre_tokenizers.Split(Regex(pattern), behavior="removed"), set()
    for part in blocks():
        for piece, _ in pre.pre_tokenize_str("".join(map(chr, part))):
            rest.update(map(ord, piece))
    return set(POINTS) - rest


def write_categories(path):
    """Oniguruma's general categories, as code points where another one begins: point times 32, and the category."""
    category, starts = [0] * 0x110000, []
    for number, name in enumerate(CATEGORIES[1:], 1):
        for c in by_regex(r"\p{%s}" % name):
            category[c] = number
    for c in range(0x110000):
        if c == 0 or category[c] != category[c - 1]:
            starts.append("%#x" % (c << 5 | category[c]))
    with open(path, "w") as f:
        f.write(
            "/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by tests/interop/make_unicode.py: the first code point"
            " of each run, times 32, and its category. */\n"
        )
        for i in range(0, len(starts), 16):
            f.write(",".join(starts[i:i + 16]) + ",\n")
    print(f"{len(starts)} runs of categories")


def numeric():
    """What Digits splits off."""
    pre = pre_tokenizers.Digits(individual_digits=True)
    return {
        ord(p)
        for part in blocks()
        for p, _ in pre.pre_tokenize_str("aa" + "aa".join(map(chr, part)) + "aa")
        if len(p) == 1
    }


def beside_added_tokens():
    """What keeps a single_word token from being one, and what lstrip takes."""
    tok = Tokenizer(models.BPE(vocab={"x": 0}, merges=[]))
    tok.add_tokens([AddedToken("qq", single_word=True), AddedToken("ww", lstrip=True)])
    word = {c for c in POINTS if not tok.encode("qq" + chr(c)).tokens}
    space = {c for c in POINTS if (e := tok.encode(chr(c) + "ww").offsets) and e[0][0] == 0} - {ord("w"), ord("x")}
    return word, space


def nfc():
    """Code points that NFC changes alone, and those that may join with, or change places with, what stands before them.
    The library's NFC is of an older Unicode than the rest of it: marks that are newer stay where they are."""
    one = normalizers.NFC().normalize_str
    changes = {c for c in POINTS if one(chr(c)) != chr(c)}
    joins = {
        c
        for c in POINTS
        if c not in changes
        and (one("\u0345" + chr(c)) != "\u0345" + chr(c) or one(chr(c) + "\u0334") != chr(c) + "\u0334")
    }
    joins |= set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for c in POINTS:
        parts = unicodedata.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<") and c not in changes and one("".join(
                chr(int(p, 16)) for p in parts)) == chr(c):
            joins.add(int(parts[1], 16))
    joins |= {c for c in changes if ord(one(chr(c))[0]) in joins}
    return changes, joins


def decomposes():
    """Code points that NFKD changes alone, or that NFD may move. Any other stands for itself, whatever a newer Unicode
    says of it."""
    nfd, nfkd = normalizers.NFD().normalize_str, normalizers.NFKD().normalize_str
    return {
        c
        for c in POINTS
        if nfkd(chr(c)) != chr(c) or nfd("\u0345" + chr(c)) != "\u0345" + chr(c) or nfd(chr(c) + "\u0334") != chr(c) +
        "\u0334"
    }


def main():
    word, space = beside_added_tokens()
    if space != by_regex(r"\s"):
        sys.exit("the engines disagree about white space")
    changes, joins = nfc()
    sets = [(LETTER, by_regex(r"\p{L}")), (NUMBER, by_regex(r"\p{N}")), (SPACE, space), (NUMERIC, numeric()),
            (WORD, word), (JOINS, joins), (CHANGES, changes), (DECOMPOSES, decomposes())]
    bits = [0] * 0x110000
    for bit, members in sets:
        for c in members:
            bits[c] |= bit
    ranges, start = [], 0
    for c in range(1, 0x110001):
        if c == 0x110000 or bits[c] != bits[start]:
            if bits[start]:
                ranges.append("{%#x,%#x,%d}" % (start, c - 1, bits[start]))
            start = c
    with open(sys.argv[1], "w") as f:
        f.write(
            "/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by tests/interop/make_unicode.py: first, last, bits."
            " */\n"
        )
        for i in range(0, len(ranges), 8):
            f.write(",".join(ranges[i:i + 8]) + ",\n")
    print(f"{len(ranges)} ranges")
    write_categories(sys.argv[2])


if __name__ == "__main__":
    main()
