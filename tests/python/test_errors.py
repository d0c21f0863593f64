#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Errors as exceptions, and the package without NumPy and PyTorch."""
import errno
import importlib.util
import os
import pickle
import subprocess
import sys
import unittest

import common
import fsdpck

MODEL = os.path.join(common.FIXTURES, "tiny-llama-tied")


class Errors(common.Case):
    @unittest.skipUnless(importlib.util.find_spec("numpy"), "there is no numpy")
    def test_flipped_byte(self):
        common.tool("convert", MODEL, self.at("model"), "--ranks", "2")
        path = self.at("model", "__1_0.distcp")
        with open(path, "r+b") as f:
            f.seek(os.path.getsize(path) // 2)
            byte = f.read(1)[0]
            f.seek(-1, 1)
            f.write(bytes([byte ^ 1]))
        damaged = []
        with fsdpck.open(self.at("model")) as source:
            for name, tensor in source.items():
                try:
                    tensor.numpy(raw=True)
                except fsdpck.DamagedError as e:
                    self.assertEqual((e.tensor, e.file), (name, path))
                    self.assertIsInstance(e.offset, int)
                    self.assertIn(name, str(e))
                    damaged.append(e)
        self.assertTrue(damaged)
        with fsdpck.open(self.at("model"), verify=False) as source:
            source[damaged[0].tensor].numpy(raw=True)

    def test_missing_and_malformed(self):
        with self.assertRaises(fsdpck.MissingError) as caught:
            fsdpck.open(self.at("nothing"))
        self.assertEqual(caught.exception.file, self.at("nothing"))
        with open(self.at("text.safetensors"), "wb") as f:
            f.write(b"\xff" * 100)
        with self.assertRaises(fsdpck.Error):
            fsdpck.open(self.at("text.safetensors"))
        with self.assertRaises(fsdpck.UsageError):
            fsdpck.open(MODEL, "abacus")
        with self.assertRaises(fsdpck.UsageError):
            fsdpck.open(MODEL, format="pickle")
        with self.assertRaises(fsdpck.UsageError):
            fsdpck.open(MODEL, config=MODEL)

    def test_missing_name(self):
        with fsdpck.open(MODEL) as source:
            with self.assertRaises(KeyError) as caught:
                source["model.norm.weigth"]
            self.assertIn("the nearest is 'model.norm.weight'", str(caught.exception))
            self.assertNotIn("model.norm.weigth", source)
            for name in "model.norm.weight\0", "\ud800", "\udcff", "", 3:
                self.assertNotIn(name, source)
                self.assertIsNone(source.get(name))

    def test_exceptions_survive_pickle(self):
        with self.assertRaises(fsdpck.Error) as caught:
            fsdpck.open(self.at("nothing"))
        copy = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(copy), str(copy), copy.__dict__),
                         (type(caught.exception), str(caught.exception), caught.exception.__dict__))

    @unittest.skipIf(os.geteuid() == 0, "root may open every file")
    def test_errno(self):
        common.write_safetensors(self.at("m.safetensors"), {})
        os.chmod(self.at("m.safetensors"), 0)
        with self.assertRaises(fsdpck.FileError) as caught:
            fsdpck.open(self.at("m.safetensors"))
        self.assertEqual(caught.exception.errno, errno.EACCES)


class Package(unittest.TestCase):
    def test_import_needs_nothing(self):
        code = "import sys, fsdpck; sys.exit(int('numpy' in sys.modules or 'torch' in sys.modules))"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)

    def test_program(self):
        run = subprocess.run([*common.PROGRAM, "--version"], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stdout.split()), (0, ["fsdpck", fsdpck.__version__]))
        self.assertEqual(subprocess.run([*common.PROGRAM, "ls", "/nowhere"], stderr=subprocess.DEVNULL).returncode, 3)


if __name__ == "__main__":
    common.main(needs_numpy=False)
