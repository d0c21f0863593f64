#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fsdpck.save(): what it takes, what it refuses, and that a save that ends early changes nothing."""
import json
import os
import signal
import sys

import common
import fsdpck
from fsdpck import _call

try:
    import numpy as np
except ImportError:
    np = None


class Saving(common.Case):
    def contents(self, name="out"):
        with fsdpck.open(self.at(name)) as source:
            return {n: a.tolist() for n, a in source.get_tensors().items()}

    def test_strides_nesting_and_scalars(self):
        base = np.arange(24.0).reshape(4, 6)
        tensors = {"turned": base.T, "backwards": base[::-1, ::-2], "model": {"a.b": base[1], "empty": base[:0]},
                   "scalar": np.float32(2.5), "list": np.array(5)}
        saved = fsdpck.save(tensors, self.at("out"), state={"step": 3})
        self.assertEqual((saved.tensors, saved.files), (6, 1))
        want = {"turned": base.T, "backwards": base[::-1, ::-2], "model.a.b": base[1], "model.empty": base[:0],
                "scalar": np.float32(2.5), "list": np.array(5)}
        self.assertEqual(self.contents(), {n: a.tolist() for n, a in want.items()})
        with fsdpck.open(self.at("out")) as source:
            self.assertEqual(json.loads(source.state), {"step": 3})
        common.tool("verify", self.at("out"))

    def test_scalars_have_memory_of_their_own(self):
        want = {"s%d" % i: np.float32(i) for i in range(50)}
        fsdpck.save(want, self.at("out"))
        self.assertEqual(self.contents(), {n: float(a) for n, a in want.items()})

    def test_one_memory_is_stored_once(self):
        a = np.arange(1000.0)
        saved = fsdpck.save({"a": a, "tied": a, "cut": a[:10], "equal": a.copy()}, self.at("out"))
        with fsdpck.open(self.at("out")) as source:
            self.assertEqual([source[n].alias_of for n in ("a", "tied", "cut", "equal")], [None, "a", None, None])
        self.assertLess(saved.written_nbytes, 3 * a.nbytes)

    def test_refused_arrays_are_named(self):
        for value in [1, 2], np.zeros(2, ">f4"), np.array(["x"]), np.array([None]), np.zeros(2, "longdouble"):
            with self.assertRaisesRegex(fsdpck.Error, "^'model.a': ") as caught:
                fsdpck.save({"model": {"a": value}}, self.at("out"))
            self.assertEqual(caught.exception.tensor, "model.a")

    def test_refused(self):
        for tensors in ({"a": [1, 2]}, {"a": {"b": 3}}, {1: np.zeros(2)}, {"a": np.zeros(2, ">f4")},
                        {"a": np.array(["x"])}, {"a": {"b": np.zeros(1)}, "a.b": np.zeros(1)}):
            with self.assertRaises(fsdpck.Error, msg=tensors):
                fsdpck.save(tensors, self.at("out"))
        with self.assertRaises(fsdpck.UsageError):
            fsdpck.save({"a": np.zeros(2)}, self.at("out\0side"))
        for name in "a\0b", "\ud800":
            with self.assertRaises(fsdpck.UsageError):
                fsdpck.save({name: np.zeros(2)}, self.at("out"))
        self.assertEqual(os.listdir(self.folder), [])

    def test_existing(self):
        fsdpck.save({"a": np.zeros(2)}, self.at("out"))
        with self.assertRaises(fsdpck.ExistsError) as caught:
            fsdpck.save({"a": np.ones(2)}, self.at("out"))
        self.assertEqual(caught.exception.file, self.at("out"))
        fsdpck.save({"a": np.ones(2)}, self.at("out"), force=True)
        self.assertEqual(self.contents(), {"a": [1.0, 1.0]})

    def test_stopped_by_the_callback(self):
        fsdpck.save({"a": np.zeros(2)}, self.at("out"))

        def progress(done, total):
            raise RuntimeError("enough")

        with self.assertRaisesRegex(RuntimeError, "enough"):
            fsdpck.save({"a": np.ones(2 << 20)}, self.at("out"), force=True, progress=progress)
        self.assertEqual(self.contents(), {"a": [0.0, 0.0]})
        self.assertEqual(os.listdir(self.folder), ["out"])

    def test_ctrl_c(self):
        """The signal may come too late to stop the save; it is raised all the same, and the checkpoint is whole."""
        fsdpck.save({"a": np.zeros(2)}, self.at("out"))
        with self.assertRaises(KeyboardInterrupt):
            fsdpck.save({"a": np.ones(4 << 20)}, self.at("out"), force=True,
                        progress=lambda done, total: os.kill(os.getpid(), signal.SIGINT))
        self.assertIn(self.contents()["a"][:2], ([0.0, 0.0], [1.0, 1.0]))
        self.assertEqual(os.listdir(self.folder), ["out"])

    def test_ctrl_c_before_the_thread_starts(self):
        """The call ends all the same, and reports the interrupt."""
        def interrupt(frame, event, arg):
            if frame.f_code.co_filename == _call.__file__ and frame.f_code.co_name == "start":
                sys.settrace(None)
                raise KeyboardInterrupt

        before, began = sys.gettrace(), []
        sys.settrace(interrupt)
        try:
            interrupted = _call.Options()._wait(lambda: began.append(1))
        finally:
            sys.settrace(before)
        self.assertIsInstance(interrupted, KeyboardInterrupt)
        self.assertEqual(began, [1])


if __name__ == "__main__":
    common.main()
