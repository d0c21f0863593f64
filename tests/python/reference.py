#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the reference of docs/python.md from the docstrings of the package, between the two comments in the page.

usage: reference.py PAGE [--check]   (--check: exit 1 if the page says something else)"""
import inspect
import re
import sys

import fsdpck

BEGIN, END = "<!-- reference: made by tests/python/reference.py -->", "<!-- end of the reference -->"
CLASSES = (fsdpck.Source, fsdpck.Tensor)
FUNCTIONS = (fsdpck.open, fsdpck.save, fsdpck.convert, fsdpck.reshard, fsdpck.export, fsdpck.export_lora,
             fsdpck.merge_lora, fsdpck.average, fsdpck.verify, fsdpck.diff, fsdpck.plan, fsdpck.ls)
RESULTS = (fsdpck.Written, fsdpck.Verified, fsdpck.Problem, fsdpck.Difference, fsdpck.Plan, fsdpck.Listing, fsdpck.File,
           fsdpck.Leftover)


def sentences(docstring):
    """A docstring with one sentence on each line, as the pages have it; "name: text" lines become a list."""
    out = []
    for paragraph in re.split(r"\n\n|\n(?=[a-z_, ]+: )", inspect.cleandoc(docstring)):
        text = " ".join(paragraph.split())
        argument = re.match(r"([a-z_, ]+): (.*)", text)
        first = argument and not (out and out[-1].lstrip("\n").startswith("- "))
        if argument:
            text = "%s- `%s`: %s" % ("\n" if first else "", *argument.groups())
        else:
            text = ("\n" if out else "") + re.sub(r"(?<=\.) (?=[A-Z])", "\n", text)
        out.append(text)
    return "\n".join(out)


def signature(function):
    """The arguments without their annotations."""
    parameters = inspect.signature(function).parameters.values()
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters if p.name != "self"]))


def members(kind):
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not getattr(function, "__doc__", None):
            continue
        shown = name if isinstance(member, property) else name + signature(function)
        yield "| `%s` | %s |" % (shown, " ".join(function.__doc__.split()))


def reference():
    parts = ["### fsdpck.%s%s\n\n%s" % (f.__name__, signature(f), sentences(f.__doc__)) for f in FUNCTIONS]
    for kind in CLASSES:
        rows = "\n".join(members(kind))
        parts.append("### fsdpck.%s\n\n%s\n\n| | |\n|---|---|\n%s" % (kind.__name__, sentences(kind.__doc__), rows))
    for kind in RESULTS:
        parts.append("### fsdpck.%s(%s)\n\n%s" % (kind.__name__, ", ".join(kind._fields), sentences(kind.__doc__)))
    errors = {n: e for n, e in vars(fsdpck).items() if inspect.isclass(e) and issubclass(e, fsdpck.Error)}
    rows = ["| `%s` | %s |" % (name, " ".join(e.__doc__.split())) for name, e in sorted(errors.items())]
    return "\n\n".join(parts + ["### Errors\n\n| | |\n|---|---|\n" + "\n".join(rows)])


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        page = f.read()
    before, rest = page.split(BEGIN)
    made = before + BEGIN + "\n\n" + reference() + "\n\n" + END + rest.split(END)[1]
    if "--check" in sys.argv:
        sys.exit(made != page and "%s differs from the docstrings: run tests/python/reference.py" % sys.argv[1])
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        f.write(made)


main()
