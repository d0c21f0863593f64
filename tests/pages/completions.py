#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completions, as a user gets them: typed into a shell on a terminal, with the Tab key.

usage: completions.py bash|zsh|fish FOLDER FSDPCK [FSDPTRAIN]"""
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from verbs import options, verbs

shell, folder, *tools = sys.argv[1:]
LIMIT_S = 1800

# Each shell takes the completions, and has functions instead of the tools that print their arguments.
SHOW = "fsdpck() { printf 'AR''GS'; printf '<%s>' \"$@\"; printf ' EN''D\\n'; }\nfsdptrain() { fsdpck \"$@\"; }\n"
START = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        "for f in fsdpck fsdptrain; do [ -e FOLDER/$f ] && source FOLDER/$f; done\n" + SHOW,
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        "fpath=(FOLDER $fpath); autoload -Uz compinit; compinit -u -D\n" "unsetopt beep auto_remove_slash\n" + SHOW,
    ),
}


class Terminal:
    def __init__(self, command, cwd):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.environ.update(TERM="dumb", PS1="> ", PROMPT="> ", INPUTRC="/dev/null", HOME=cwd, LC_ALL="C.UTF-8",
                              HISTFILE="")
            os.execvp(command[0], command)
        self.seen = ""

    def send(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern):
        end = time.monotonic() + LIMIT_S
        while not (found := re.search(pattern, self.seen)):
            if not select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]:
                sys.exit("nothing like %s came within %d s, but:\n%s" % (pattern, LIMIT_S, self.seen[-2000:]))
            self.seen += os.read(self.fd, 65536).decode(errors="replace")
        self.seen = self.seen[found.end():]
        return found

    def typed(self, line):
        """The arguments after what was typed, Tabs included, and Enter."""
        self.send(line + "\n")
        return re.findall(r"<([^>]*)>", self.expect(r"ARGS((?:<[^>]*>)*) END")[1])


def unique(names):
    """Those that stay the only match without their last letter."""
    return [n for n in names if sum(other.startswith(n[:-1]) for other in names) == 1]


def cases():
    yield "fsdpck conv\t", ["convert"]
    yield "fsdpck help conv\t", ["help", "convert"]
    yield "fsdpck convert full.s\tout --ranks 2", ["convert", "full.safetensors", "out", "--ranks", "2"]
    yield "fsdpck convert --dcp al\t", ["convert", "--dcp", "always"]
    yield "fsdpck convert --dcp=ne\t", ["convert", "--dcp=never"]
    yield "fsdpck convert --assets fol\t", ["convert", "--assets", "folder/"]
    if len(tools) > 1:
        yield from train_cases()
    for tool in tools:
        name = os.path.basename(tool)
        for verb in verbs(tool):
            for option in unique(["--" + o for _, o, _ in options(tool, verb)]):
                yield "%s %s %s\t" % (name, verb, option[:-1]), [verb, option]


def train_cases():
    yield "fsdptrain tok\t", ["tokenize"]
    yield "fsdptrain run conf\t--set train.max_s\t3", ["run", "config.json", "--set", "train.max_steps=3"]
    yield "fsdptrain run --set fsdp.reduction=\t", ["run", "--set", "fsdp.reduction=invariant"]
    yield "fsdptrain run --set=log.j\tx", ["run", "--set=log.jsonl=x"]
    yield "fsdptrain run --resume ne\t", ["run", "--resume", "never"]
    yield "fsdptrain run --resume fol\t", ["run", "--resume", "folder/"]


def on_terminal(cwd):
    command, setup = START[shell]
    terminal = Terminal(command, cwd)
    terminal.send(setup.replace("FOLDER", shlex.quote(folder)) + "echo REA''DY\n")
    terminal.expect("READY\r?\n")
    for line, wanted in cases():
        yield line, terminal.typed(line), wanted
    terminal.send("exit\n")
    os.waitpid(terminal.pid, 0)


def fish_says(cwd, line):
    """fish's own answer: the completions of a line. fish 4 adds words that only contain what was typed."""
    script = "for f in %s/*.fish; source $f; end; complete -C $argv[1]" % shlex.quote(folder)
    said = subprocess.run(["fish", "-N", "-c", script, line], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, HOME=cwd))
    words = [row.split("\t")[0] for row in said.stdout.splitlines()]
    return [word for word in words if word.startswith(line.split(" ")[-1])]


def on_fish(cwd):
    for line, wanted in cases():
        if line.endswith("\t"):
            yield line, fish_says(cwd, line[:-1]), [wanted[-1]]
    for tool in tools:
        name = os.path.basename(tool)
        yield name, sorted(fish_says(cwd, name + " ")), sorted(verbs(tool))
        for verb in verbs(tool):
            line = "%s %s --" % (name, verb)
            yield line, sorted(fish_says(cwd, line)), sorted("--" + o for _, o, _ in options(tool, verb))


def main():
    if not shutil.which(shell):
        print("SKIP completions: there is no %s" % shell)
        return 77
    count = bad = 0
    with tempfile.TemporaryDirectory() as cwd:
        os.mkdir(os.path.join(cwd, "folder"))
        for name in ("full.safetensors", "config.json"):
            open(os.path.join(cwd, name), "w").close()
        for line, found, wanted in on_fish(cwd) if shell == "fish" else on_terminal(cwd):
            count += 1
            if found != wanted:
                bad += 1
                print("%r: found %s, wanted %s" % (line, found, wanted))
    print("%d completions, %d wrong" % (count, bad))
    return bad > 0


sys.exit(main())
