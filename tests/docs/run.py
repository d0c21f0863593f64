#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what README.md and the pages in docs/ show, and checks what they name.

usage: run.py page PAGE.md --tool FILE ... [--lib FILE] [--cc "CC ..."] [--write]
           run the commands of a page, compare their output. FILE: the programs that are built, the library
       run.py check [--tool FILE ...]
           every page: paths, links, quoted messages, options of commands, length of README.md

A page runs in an empty folder of its own that holds a copy of fixtures/. Its fenced blocks are taken in order:

    ```console              commands, each on a line that begins with `$ ` (and `> ` lines after a trailing backslash),
    then
                            their output: standard output and standard error together, as on a terminal
    ```LANGUAGE file=NAME   the block is written to the file NAME
    ```text                 neither commands nor a program: a layout, a picture
    ```json                 an example of JSON, which must parse
    ```LANGUAGE needs=WHAT  not run: it needs WHAT, one of NEEDS below

Any other block is an error. The character `…` in an expected line stands for any text within that line: times, rates,
sizes of memory, ids, digits that depend on the processor. All else must be equal. A command that fails must be followed
by `$ echo $?`. --write puts the real output into the page; its author reads it and puts in the `…`.

Exit code: 0 all is well, 1 it is not, 77 the page needs a program that is not built.
"""
import argparse
import difflib
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 1800  # a command that takes longer hangs
README_LINES = 150

NEEDS = {
    "gpu": "an NVIDIA GPU",
    "cuda": "a build with nvcc",
    "network": "a network",
    "model": "a model larger than a test may download",
    "root": "the right to install packages or files",
    "mpi": "Open MPI, and several hosts",
    "slurm": "Slurm",
    "package": "the Python package: tests/python runs these blocks",
    "tinker": "the tinker package, and a server",
    "torch": "PyTorch, or transformers and PEFT",
    "build": "a build from scratch, which takes minutes",
    "hours": "hours, or a machine on which nothing else runs",
    "input": "a checkpoint of the reader's own",
    "run": "a training run that is under way",
}

SKIP = 77

PKG_CONFIG = """Name: fsdpck
Description: the library as it lies in the build folder
Version: 0
Cflags: -I%s
Libs: -L%s -lfsdpck
"""


def pages():
    return [ROOT / "README.md"] + sorted((ROOT / "docs").glob("*.md"))


class Block:
    def __init__(self, page, line, info):
        self.page, self.line, self.lines = page, line, []
        words = info.split()
        self.language = words[0] if words else ""
        self.options = dict(w.split("=", 1) for w in words[1:] if "=" in w)

    def where(self):
        return "%s:%d" % (self.page.relative_to(ROOT), self.line)


def blocks_of(page):
    """The fenced blocks of a page, and the lines outside of them with their numbers."""
    blocks, outside, block = [], [], None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if block is None and line.startswith("```"):
            block = Block(page, number, line[3:])
        elif block is not None and line == "```":
            blocks.append(block)
            block = None
        elif block is not None:
            block.lines.append(line)
        else:
            outside.append((number, line))
    if block is not None:
        sys.exit("%s: the block never ends" % block.where())
    return blocks, outside


def wrong_json(text):
    try:
        json.loads(text)
    except ValueError as e:
        return "no JSON: %s" % e
    return None


def wrong_block(block):
    """Why a block is refused, or None."""
    needs = block.options.get("needs")
    if needs is not None:
        return None if needs in NEEDS else "needs=%s: none of %s" % (needs, ", ".join(NEEDS))
    if block.language == "text":
        return "commands in a block of text" if any(l.startswith("$ ") for l in block.lines) else None
    if block.language == "json" and "file" not in block.options:
        return wrong_json("\n".join(block.lines))
    if block.language == "console":
        return None if block.lines and block.lines[0].startswith("$ ") else "it does not begin with a command"
    return None if "file" in block.options else "neither console, file=NAME, text, json nor needs=WHAT"


class Step:
    def __init__(self, number, command):
        self.number, self.command, self.wanted = number, command, []


def steps_of(block):
    steps, more = [], False
    for number, line in enumerate(block.lines, block.line + 1):
        if more:
            steps[-1].command += "\n" + line[2:]
        elif line.startswith("$ "):
            steps.append(Step(number, line[2:]))
        else:
            steps[-1].wanted.append(line)
            continue
        more = line.endswith("\\")
    return steps


def same(wanted, found):
    pattern = "\n".join("[^\n]*".join(re.escape(part) for part in line.split("…")) for line in wanted)
    return re.fullmatch(pattern, "\n".join(found)) is not None


class Page:
    """A folder to work in, and the commands of one page in it."""

    def __init__(self, folder, args):
        self.folder, self.last = folder / "page", 0
        self.folder.mkdir()
        shutil.copytree(ROOT / "fixtures", self.folder / "fixtures")
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        for tool in args.tool:
            (bin_folder / tool.name).symlink_to(tool.resolve())
        # ccache, too, must not find this script
        path = shlex.quote(os.environ["PATH"])
        (bin_folder / "cc").write_text('#!/bin/sh\nPATH=%s\nexec %s "$@"\n' % (path, args.cc))
        (bin_folder / "cc").chmod(0o755)
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "FSDPTRAIN_"))}
        self.env = dict(keep, PATH=str(bin_folder) + os.pathsep + keep["PATH"], HOME=str(folder), LC_ALL="C.UTF-8",
                        CUDA_VISIBLE_DEVICES="")
        if args.lib:  # as if it were installed
            # where no path has a space, which $(pkg-config) would split
            include, lib = folder / "include", folder / "lib"
            include.symlink_to(ROOT / "src/ckpt/include")
            lib.symlink_to(args.lib.resolve().parent)
            (folder / "fsdpck.pc").write_text(PKG_CONFIG % (include, lib))
            self.env.update(PKG_CONFIG_PATH=str(folder), LD_LIBRARY_PATH=str(lib))

    def run(self, command):
        """The lines that a command prints. $? is the exit code of the command before."""
        shell = ["bash", "-c", '(exit $1); eval "$0"', command, str(self.last)]
        p = subprocess.Popen(shell, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, start_new_session=True)
        try:
            out, _ = p.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            return ["no end after %d s" % LIMIT_S]
        self.last = p.returncode
        return [line.rstrip() for line in out.decode("utf-8", "replace").splitlines()]


def missing_program(block, tools):
    """A program of ours that the block calls and that is not built."""
    commands = "\n".join(line for line in block.lines if line.startswith("$ "))
    called = set(re.findall(r"\bfsdp(?:ck|train)(?=\s)", commands))
    return min(called - {tool.name for tool in tools}, default=None)


def run_page(path, args):
    blocks, _ = blocks_of(path)
    failed = ncommands = 0
    new = path.read_text(encoding="utf-8").splitlines()
    edits = []
    for block in blocks:
        why = wrong_block(block)
        if why:
            print("%s: %s" % (block.where(), why))
            failed += 1
        elif "needs" in block.options:
            print("%s: not run, it needs %s" % (block.where(), NEEDS[block.options["needs"]]))
    runnable = [b for b in blocks if "needs" not in b.options and (b.language == "console" or "file" in b.options)]
    for block in runnable:
        program = missing_program(block, args.tool)
        if program and not failed:
            print("SKIP %s: %s is not built" % (path.relative_to(ROOT), program))
            return SKIP
    with tempfile.TemporaryDirectory(prefix="fsdpck-docs-") as base:
        page = Page(pathlib.Path(base).resolve(), args)
        for block in runnable:
            if "file" in block.options:
                (page.folder / block.options["file"]).write_text("\n".join(block.lines) + "\n", encoding="utf-8")
                continue
            for step in steps_of(block):
                asks = step.command == "echo $?"
                if page.last != 0 and not asks:
                    print("%s:%d: no 'echo $?' shows that the command before ended with %d" %
                          (path.name, step.number, page.last))
                    failed += 1
                found = page.run(step.command)
                ncommands += 1
                if not same(step.wanted, found):
                    failed += 1
                    print("%s:%d: $ %s" % (path.name, step.number, step.command))
                    print("".join("    %s\n" % l for l in difflib.ndiff(step.wanted, found) if l[0] != "?"), end="")
                    first = step.number + step.command.count("\n")
                    edits.append((first, len(step.wanted), found))
        if page.last != 0:
            print("%s: the last command failed with %d" % (path.name, page.last))
            failed += 1
    for first, count, found in reversed(edits):
        new[first : first + count] = found
    if args.write and edits:
        path.write_text("\n".join(new) + "\n", encoding="utf-8")
    print("%s: %d commands, %d failed" % (path.relative_to(ROOT), ncommands, failed))
    return 1 if failed else 0


# What pages name

FOLDER = r"(?:src|kernels|tests|bench|docs|fixtures|\.ci|\.github)/"
PATH = re.compile(r"`(%s[\w.*/+-]*)`" % FOLDER)
TYPED = re.compile(r"(?:^|\s)(%s[\w./+-]*)" % FOLDER)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchor(heading):
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", lambda m: m.group(1) or "", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def anchors(path):
    return {anchor(line.lstrip("#").strip()) for _, line in blocks_of(path)[1] if line.startswith("#")}


def check_paths(path):
    """Paths and links of a page that lead nowhere."""
    blocks, outside = blocks_of(path)
    for block in blocks:
        commands = [line for line in block.lines if block.language == "console" and line.startswith("$ ")]
        for name in TYPED.findall("\n".join(commands)):
            if not any(ROOT.glob(name.rstrip("/"))):
                yield "%d: there is no %s" % (block.line, name)
    for number, line in outside:
        for name in PATH.findall(line):
            if not any(ROOT.glob(name.rstrip("/"))):
                yield "%d: there is no %s" % (number, name)
        for link in LINK.findall(line):
            target, _, fragment = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            there = (path.parent / target).resolve() if target else path
            if not there.exists():
                yield "%d: the link %s leads nowhere" % (number, link)
            elif fragment and fragment not in anchors(there):
                yield "%d: %s has no heading #%s" % (number, there.name, fragment)


TYPED_VERB = re.compile(r"\b(fsdpck|fsdptrain) ([a-z][a-z-]*)((?: [^|;`]*)?)")


def check_options(path, tools):
    """Options that a page shows in a command, run or not, and that the verb does not have."""
    blocks, outside = blocks_of(path)
    shown = [(n, span) for n, line in outside for span in re.findall(r"`(fsdp(?:ck|train) [^`]+)`", line)]
    shown += [(b.line, line) for b in blocks if b.language == "console" for line in b.lines if line.startswith("$ ")]
    for number, text in shown:
        for program, verb, rest in TYPED_VERB.findall(text):
            tool = next((t for t in tools if t.name == program), None)
            options = re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", rest)
            if tool and options:
                yield from missing_options(number, tool, verb, options)


@functools.lru_cache(None)
def help_of(tool, verb):
    return subprocess.run([tool, verb, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def missing_options(number, tool, verb, options):
    known = set(re.findall(r"--[a-z][a-z-]*", help_of(tool, verb)))
    for option in options:
        if option not in known:
            yield "%d: %s %s has no option %s" % (number, tool.name, verb, option)


STRING = r'"(?:[^"\\\n]|\\.)*"'
LITERAL = re.compile(r'%s(?:\s*(?:%s|PRI[a-zA-Z0-9]+))*' % (STRING, STRING))
CONVERSION = re.compile(r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t)?[a-zA-Z]")
ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "'": "'"}


def literals():
    """Every string of the sources, its parts joined, with … where printf puts something."""
    out = []
    for folder in ("src", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.[ch]")):
            for match in LITERAL.finditer(path.read_text(encoding="utf-8")):
                parts = re.findall(STRING + "|PRI", match.group(0))
                text = "".join("u" if part == "PRI" else part[1:-1] for part in parts)
                text = re.sub(r"\\(.)", lambda m: ESCAPES.get(m.group(1), m.group(0)), text)
                for counted in {text, re.sub("(?<=[a-z])%s", "s", text)}:  # pages quote plurals: "steps" for "step%s"
                    out.append(CONVERSION.sub("…", counted.replace("%%", "\0")).replace("\0", "%"))
    return "\n".join(out)


def check_messages(path, known):
    """Lines of the page that are a quoted message and nothing else: each must be in the sources."""
    quotes = 0
    for number, line in blocks_of(path)[1]:
        if not (line.startswith("`") and line.endswith("`")):
            continue
        quotes += 1
        text = line[1:-1]
        if len(text.replace("…", "")) < 16:
            yield "%d: too little of the message is quoted: %s" % (number, text)
        elif not re.search("[^\n]*".join(re.escape(part) for part in text.split("…")), known):
            yield "%d: no such message in the sources: %s" % (number, text)
    if not quotes:
        yield "1: it quotes no message"


def check(tools):
    problems = []
    known = literals()
    for path in pages():
        name = path.relative_to(ROOT)
        problems += ["%s: %s" % (b.where(), wrong_block(b)) for b in blocks_of(path)[0] if wrong_block(b)]
        problems += ["%s:%s" % (name, p) for p in check_paths(path)]
        problems += ["%s:%s" % (name, p) for p in check_options(path, tools)]
        indented = [n for n, line in blocks_of(path)[1] if line.startswith("    ")]
        problems += ["%s:%d: an indented block: use a fence" % (name, n) for n in indented]
    listed = (ROOT / "tests/docs/meson.build").read_text(encoding="utf-8")
    names = [str(p.relative_to(ROOT)) for p in pages()]
    problems += ["%s: tests/docs/meson.build does not list it" % n for n in names if "'%s'" % n not in listed]
    troubles = ROOT / "docs/troubleshooting.md"
    problems += ["%s:%s" % (troubles.relative_to(ROOT), p) for p in check_messages(troubles, known)]
    nlines = len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())
    if nlines > README_LINES:
        problems.append("README.md has %d lines, and %d are allowed" % (nlines, README_LINES))
    print("".join(p + "\n" for p in problems) + "%d pages, %d problems" % (len(pages()), len(problems)))
    return 1 if problems else 0


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["page", "check"])
    ap.add_argument("page", nargs="?", type=pathlib.Path)
    ap.add_argument("--tool", type=pathlib.Path, action="append", default=[])
    ap.add_argument("--lib", type=pathlib.Path)
    ap.add_argument("--cc", default="cc")
    ap.add_argument("--write", action="store_true")
    args = ap.parse_args()
    if args.what == "check":
        return check([tool.resolve() for tool in args.tool])
    if not args.page:
        ap.error("no PAGE.md")
    return run_page(args.page.resolve(), args)


if __name__ == "__main__":
    sys.exit(main())
