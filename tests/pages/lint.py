#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""groff and mandoc have no complaint about the man pages, and groff breaks no name at a hyphen of its own.

usage: lint.py FOLDER"""
import glob
import os
import shutil
import subprocess
import sys

pages = sorted(glob.glob(os.path.join(sys.argv[1], "*.[15]")))
bad = tried = 0


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


for page in pages:
    said = ""
    if shutil.which("groff"):
        tried |= 1
        said += run("groff", "-man", "-Tutf8", "-ww", "-z", page)
        # Every hyphen of the text is escaped, so a U+2010 is one that groff put in; narrow lines give it many places.
        broken = [line for line in run("groff", "-man", "-Tutf8", "-rLL=44n", page).splitlines() if "\u2010" in line]
        said += "".join("hyphenated: %s\n" % line.strip() for line in broken)
    if shutil.which("mandoc"):
        tried |= 2
        lines = run("mandoc", "-T", "lint", "-W", "warning", page).splitlines(True)
        # A date would make two builds of one source differ.
        said += "".join(line for line in lines if "missing date" not in line)
    if said:
        print(page, said, sep="\n")
        bad += 1
print("%d pages%s" % (len(pages), "" if tried == 3 else "; not tried: %s" % ("groff" if tried == 2 else "mandoc")))
sys.exit(bad > 0 if tried else print("SKIP man pages: there is no groff and no mandoc") or 77)
