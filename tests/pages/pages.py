#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Man pages and docs/config.md say what the programs say.

usage: pages.py FOLDER CONFIG.md FSDPCK [FSDPTRAIN]

FOLDER holds the pages that the build made, CONFIG.md is the committed page."""
import os
import re
import subprocess
import sys
import tempfile

from verbs import ask, options, verbs

folder, config_md, *tools = sys.argv[1:]
failures = []


def check(what, found, wanted):
    if found != wanted:
        failures.append("%s:\n  found  %s\n  wanted %s" % (what, found, wanted))


def read(name):
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return f.read()


def plain(roff):
    """The text of man(7) source."""
    text = re.sub(r"\\f[BRI]", "", roff)
    text = re.sub(r"\\\[u([0-9A-F]+)\]", lambda m: chr(int(m[1], 16)), text)
    for escape, is_ in {r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(dq": '"', r"\(ha": "^", r"\(ti": "~", r"\&": "",
                        r"\e": "\\"}.items():
        text = text.replace(escape, is_)
    return text


def check_defaults(tool, name, verb):
    """The parser accepts the defaults that the help states, and no help states one that the option's row does not have:
    the program appends those of the row."""
    text = re.sub(r"\n {28}", " ", ask(tool, verb, "--help"))
    for option, value, help_text in re.findall(r"^ {2}(?:-\w, | {4})--([a-z0-9-]+)(?: (\S+))? +(.*)$", text, re.M):
        stated = re.search(r"[(] ?default (\S+)[)]$|; default (\S+)[)]$", help_text)
        what = "%s %s --%s" % (name, verb, option)
        if stated:
            typed = [tool, verb, "--" + option, stated[1] or stated[2], "--help"]
            check(what + ": exit code with its default", subprocess.run(typed, stdout=subprocess.DEVNULL).returncode, 0)
        elif not re.search(r"[(;] ?default: [^()]+[)]$", help_text):
            check(what + ": defaults in its own words", re.findall(r"default[^-].*", help_text), [])


def check_verb(tool, name, verb, summary):
    page = plain(read("%s-%s.1" % (name, verb)))
    check("%s %s: its name" % (name, verb), re.search(r"\.SH NAME\n(.*)", page)[1],
          "%s-%s - %s" % (name, verb, summary))
    shown = re.findall(r"^\.TP\n(?:-(\w), )?--([a-z0-9-]+)(?: (\S+))?$", page, re.M)
    check("%s %s: the options of its page" % (name, verb), shown, options(tool, verb))
    check_defaults(tool, name, verb)


def check_tool(tool, name):
    known = verbs(tool)
    pages = {f[len(name) + 1:-2] for f in os.listdir(folder) if f.startswith(name + "-") and f.endswith(".1")}
    check("%s: pages of verbs" % name, pages, set(known))
    page = plain(read(name + ".1")).split(".SH SEE ALSO")[0]
    check("%s(1): verbs" % name, re.findall(r"^\.BR %s-([a-z-]+) \(1\)$" % name, page, re.M), list(known))
    for verb, summary in known.items():
        check_verb(tool, name, verb, summary)


def parser_keys():
    """Every key that the parser knows: it lists those of a section where a name is far from all of them."""
    far = "a-name-that-is-far-from-all"
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "c.json")
        with open(path, "w") as f:
            f.write("{}")

        def plan(setting):
            return subprocess.run([tools[1], "plan", path, "--set", setting], stderr=subprocess.PIPE, text=True).stderr

        def members(name):
            said = plan(name + "=1")
            return re.search(r"unknown key '[^']*'; (?:a config|\w+) has (.*)", said)[1].split(", ")

        for top in members(far):
            if "an object is wanted" in plan(top + "=[0.5]"):
                yield from (top + "." + key for key in members(top + "." + far))
            else:
                yield top


def check_keys():
    keys = sorted(parser_keys())
    page = plain(read("fsdptrain-config.5"))
    check("keys of docs/config.md", sorted(re.findall(r"^\| `([a-z0-9_.]+)` \|", read("config.md"), re.M)), keys)
    check("keys of fsdptrain-config(5)", sorted(re.findall(r"^\.TP\n\.B ([a-z0-9_.]+)$", page, re.M)), keys)
    for completion in ("fsdptrain", "_fsdptrain", "fsdptrain.fish"):
        line = re.search(r"^.*output_dir=.*$", read(completion), re.M)[0]
        words = set(re.findall(r"[ ']([a-z0-9_.]+)=[A-Za-z0-9_]*(?=[ '])", line))
        check("keys of the completion " + completion, sorted(words), keys)
    with open(config_md, encoding="utf-8") as f:
        if f.read() != read("config.md"):
            failures.append("docs/config.md is not what the table says: `ninja -C build config-md` writes it anew")


for tool in tools:
    check_tool(tool, os.path.basename(tool))
if len(tools) > 1:
    check_keys()
for failure in failures:
    print(failure)
sys.exit(bool(failures))
