#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sessions of docs/python.md give what the page shows, and its reference is that of the docstrings.

usage: test_page.py [--torch]   (--torch: the blocks that need PyTorch too)"""
import doctest
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import common

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "python.md"


def run_sessions(needs):
    """Runs the blocks that need one of these, in order, in one namespace and one folder. Returns the failures."""
    blocks = re.findall(r"^```python needs=(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    runner, names = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), {}
    with tempfile.TemporaryDirectory(prefix="fsdpck-page-") as folder:
        shutil.copytree(common.FIXTURES, os.path.join(folder, "fixtures"))
        os.chdir(folder)
        for i, (need, text) in enumerate(blocks):
            if need in needs:
                test = doctest.DocTestParser().get_doctest(text, names, "%s, block %d" % (PAGE.name, i + 1), None, 0)
                runner.run(test, clear_globs=False)
                names = test.globs
        os.chdir(HERE)
    return runner.summarize()


def main():
    try:
        import numpy  # noqa: F401
    except ImportError:
        print("SKIP docs/python.md: %s has no numpy" % sys.executable)
        sys.exit(77)
    needs = ["package"]
    if "--torch" in sys.argv:
        import torch  # noqa: F401
        needs.append("torch")
    failed, attempted = run_sessions(needs)
    code = subprocess.run([sys.executable, str(HERE / "reference.py"), str(PAGE), "--check"]).returncode
    sys.exit(int(failed > 0 or attempted == 0 or code != 0))


main()
