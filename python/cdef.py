#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of the extension module fsdpck._native, from the public headers of libfsdpck.

usage: cdef.py INCLUDE_FOLDER OUT.c OUT.d   (OUT.d: what OUT.c was made from, for ninja)

cffi parses declarations, but runs no preprocessor. So this takes each header once, in the order of its includes, and
removes what cffi does not read: comments, directives, attributes, inline functions."""
import re
import sys

import cffi

# Functions of Python that the library calls, defined in fsdpck/_call.py, _checks.py, torch/_boxes.py and
# torch/_memory.py.
CALLBACKS = """
extern "Python" void fsdpck_py_progress(void *ctx, uint64_t done_nbytes, uint64_t total_nbytes);
extern "Python" void fsdpck_py_note(void *ctx, const char *line);
extern "Python" void fsdpck_py_problem(void *ctx, const struct fsdpck_problem *problem);
extern "Python" void fsdpck_py_difference(void *ctx, const struct fsdpck_difference *difference);
extern "Python" void fsdpck_py_leftover(void *ctx, const struct fsdpck_leftover *leftover);
extern "Python" int fsdpck_py_box(void *ctx, const uint64_t *offset, const uint64_t *size);
extern "Python" int fsdpck_py_read(void *ctx, const struct fsdpck_save_box *box, uint64_t first, uint64_t nelem,
                                   void *dst, struct fsdpck_error *err);
"""


def declarations(folder, name, seen):
    """The declarations of a header, after those of the headers that it includes."""
    if name in seen:
        return ""
    seen.add(name)
    with open("%s/%s" % (folder, name), encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/", " ", f.read(), flags=re.S)
    before = "".join(declarations(folder, n, seen) for n in re.findall(r"#include <(fsdpck/\w+\.h)>", text))
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    constants = re.findall(r"#define (FSDPCK_\w+) +(\d+)u?\s*$", text, flags=re.M)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    text = re.sub(r"\bFSDPCK_API\b|\bFSDPCK_PRINTF\([^)]*\)", "", text)
    text = re.sub(r"static inline .*?\n}", "", text, flags=re.S)
    return before + "".join("#define %s %s\n" % c for c in constants) + text


def main():
    folder, out, depends = sys.argv[1:]
    headers = set()
    ffi = cffi.FFI()
    ffi.cdef(declarations(folder, "fsdpck/fsdpck.h", headers) + CALLBACKS)
    ffi.set_source("fsdpck._native", "#include <fsdpck/fsdpck.h>")
    ffi.emit_c_code(out)
    with open(depends, "w", encoding="utf-8") as f:
        f.write("%s: %s\n" % (out, " ".join(("%s/%s" % (folder, h)).replace(" ", "\\ ") for h in sorted(headers))))


main()
