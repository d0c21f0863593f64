#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lines of Python and YAML end at column 120, as clang-format has it for C.

usage: columns.py SOURCE_ROOT"""
import os
import re
import sys

LIMIT = 120
FOLDERS = ("corpus", "beside", "goldens", "fixtures", "build", "subprojects", ".git", "__pycache__")


def is_checked(path):
    if "." in os.path.basename(path):
        return path.endswith((".py", ".yml"))
    with open(path, "rb") as f:
        return bool(re.match(rb"#!.*\bpython3$", f.readline().rstrip()))


def too_long(path):
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f.read().split("\n"), 1):
            if len(line) > LIMIT:
                yield "%s:%d: %d columns, at most %d are wanted" % (path, number, len(line), LIMIT)


def main():
    os.chdir(sys.argv[1])
    found = []
    for folder, folders, names in os.walk("."):
        folders[:] = sorted(n for n in folders if n not in FOLDERS and not n.startswith("build"))
        for name in sorted(names):
            path = os.path.normpath(os.path.join(folder, name))
            if os.path.isfile(path) and is_checked(path):
                found += too_long(path)
    print(*found, sep="\n")
    return bool(found)


sys.exit(main())
