#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text to ids on one thread, against the tokenizers library: text_ids.py BUILD TOKENIZER.json TEXT, with a Python that
has tokenizers and numpy.

The library gets the text as documents of 10,000 characters (one call on everything is slower for it), the best of its
ways counts; ids are compared on the whole text."""
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import numpy
from tokenizers import Tokenizer


def seconds(work):
    start = time.monotonic()
    work()
    return time.monotonic() - start


def main():
    build, path, text_path = sys.argv[1:4]
    with tempfile.NamedTemporaryFile() as ids:
        said = json.loads(
            subprocess.run(
                [os.path.join(build, "bench", "tokenize"), path, text_path, ids.name],
                check=True,
                stdout=subprocess.PIPE,
            ).stdout
        )
        ours = numpy.fromfile(ids.name, numpy.uint32)
    tok, text = Tokenizer.from_file(path), open(text_path, encoding="utf-8", newline="").read()
    documents = [text[i:i + 10000] for i in range(0, len(text), 10000)]
    same = numpy.array_equal(ours, numpy.array(tok.encode(text, add_special_tokens=False).ids, numpy.uint32))
    theirs = min(
        seconds(lambda: [tok.encode(d, add_special_tokens=False) for d in documents]),
        seconds(lambda: tok.encode_batch_fast(documents, add_special_tokens=False)),
    )
    print(
        f"tokenizing {said['bytes'] / 1e6:.1f} MB, {said['tokens']} tokens, ids {'equal' if same else 'DIFFER'}:"
        f" {said['seconds']:.3f} s, {said['bytes'] / said['seconds'] / 1e6:.0f} MB/s; the library {theirs:.3f} s:"
        f" {theirs / said['seconds']:.1f}"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
