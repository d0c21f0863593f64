#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages in docs/ name every verb and every option. (Every key is in docs/config.md, which pages.py compares with
the parser.)

usage: documented.py DOCS FSDPCK [FSDPTRAIN]"""
import os
import re
import sys

from verbs import options, verbs

PAGES = {"fsdpck": ("cli.md", "lora.md"), "fsdptrain": ("train.md", "gpu.md", "hosts.md", "ui.md", "serve.md")}


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def missing(docs, tool):
    """What the tool has and its pages do not name."""
    name = os.path.basename(tool)
    text = "".join(read(os.path.join(docs, page)) for page in PAGES[name])
    for verb in verbs(tool):
        if not re.search(r"\b%s %s\b" % (name, verb), text):
            yield "%s %s" % (name, verb)
        for _, option, _ in options(tool, verb):
            if option != "help" and not re.search(r"--%s(?![a-z0-9-])" % option, text):
                yield "%s %s --%s" % (name, verb, option)


def main():
    docs, *tools = sys.argv[1:]
    found = [(what, PAGES[os.path.basename(tool)]) for tool in tools for what in missing(docs, tool)]
    for what, pages in found:
        print("%s: none of %s names it" % (what, ", ".join("docs/" + page for page in pages)))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
