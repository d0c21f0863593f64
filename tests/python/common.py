# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: a folder for each test, sources with known contents, the last line."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

FIXTURES = os.environ["FSDPCK_FIXTURES"]
PROGRAM = [sys.executable, "-m", "fsdpck"]


class Folder(tempfile.TemporaryDirectory):
    def __init__(self):
        super().__init__(prefix="fsdpck-python-")

    def at(self, *names):
        return os.path.join(self.name, *names)


class Case(unittest.TestCase):
    def setUp(self):
        folder = Folder()
        self.addCleanup(folder.cleanup)
        self.folder, self.at = folder.name, folder.at


def tool(*args):
    subprocess.run([*PROGRAM, *args, "-q"], check=True, stdout=subprocess.DEVNULL)


def told(*args):
    """What the program prints with --json."""
    run = subprocess.run([*PROGRAM, *args, "-q", "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(run.stdout)


def write_safetensors(path, tensors):
    """tensors: {name: (safetensors dtype, shape, bytes)}."""
    header, payload = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(payload), len(payload) + len(data)]}
        payload += data
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + payload)


def main(needs_numpy=True):
    if needs_numpy:
        try:
            import numpy  # noqa: F401
        except ImportError:
            print("SKIP the Python package: %s has no numpy" % sys.executable)
            sys.exit(77)
    program = unittest.main(exit=False)
    nfailed = len(program.result.failures) + len(program.result.errors)
    for test, why in program.result.skipped:
        print("skipped: %s: %s" % (test.id(), why))
    print("%d passed, %d failed" % (program.result.testsRun - nfailed - len(program.result.skipped), nfailed))
    sys.exit(nfailed != 0)
