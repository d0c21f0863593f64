#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fsdpck.open(): slices against NumPy's own, of every layout; memory of the caller's; threads, fork, closing."""
import asyncio
import os
import pickle
import random
import threading
import unittest

import common
import fsdpck

try:
    import numpy as np
except ImportError:
    np = None

SHAPES = [(), (1,), (7,), (12, 5), (6, 1, 9), (3, 4, 5, 2), (0, 4), (40, 300)]
DTYPES = ["float64", "float32", "float16", "int64", "int8", "uint16", "bool", "complex64"]


def random_index(rng, shape):
    entries = []
    for n in shape[:rng.randint(0, len(shape))]:
        kind = rng.choice(["int", "slice", "slice", "all"])
        if kind == "int" and n:
            entries.append(rng.randrange(-n, n))
        elif kind == "all":
            entries.append(slice(None))
        else:
            entries.append(slice(rng.choice([None, rng.randint(-n - 2, n + 2)]),
                                 rng.choice([None, rng.randint(-n - 2, n + 2)]), rng.choice([None, 1, 2, 3, -1, -2])))
    if rng.random() < 0.3:
        entries.insert(rng.randint(0, len(entries)), None)
    if rng.random() < 0.4:
        last = [rng.randrange(n) for n in shape[len(entries):][-1:] if n] if None not in entries else []
        entries += [Ellipsis] + last
    return tuple(entries)


class Slices(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = common.Folder()
        cls.at = cls.made.at
        generator = np.random.default_rng(7)
        cls.arrays = {}
        for i, (shape, dtype) in enumerate(zip(SHAPES, DTYPES)):
            cls.arrays["t%d.%s" % (i, dtype)] = np.asarray(generator.integers(0, 100, shape).astype(dtype))
        fsdpck.save(cls.arrays, cls.at("one"))
        common.tool("reshard", cls.at("one"), cls.at("three"), "--ranks", "3")
        common.tool("reshard", cls.at("three"), cls.at("small"), "--mesh", "replicate=2,shard=2", "--compress")
        common.tool("export", cls.at("one"), cls.at("folder"))

    @classmethod
    def tearDownClass(cls):
        cls.made.cleanup()

    def same(self, got, want, what):
        self.assertEqual((got.shape, got.dtype), (want.shape, want.dtype), what)
        self.assertEqual(got.tobytes(), want.tobytes(), what)

    def test_random_indices(self):
        rng = random.Random(5)
        for path in ("one", "three", "small", "folder"):
            with fsdpck.open(self.at(path)) as source:
                self.assertEqual(set(source), set(self.arrays))
                for _ in range(150):
                    name = rng.choice(list(self.arrays))
                    index = random_index(rng, self.arrays[name].shape)
                    self.same(source[name][index], np.asarray(self.arrays[name][index]), (path, name, index))

    def test_many_at_once(self):
        rng = random.Random(6)
        requests = [(n, random_index(rng, a.shape)) for n, a in self.arrays.items() for _ in range(20)]
        with fsdpck.open(self.at("three")) as source:
            for (name, index), got in zip(requests, source.read(requests)):
                self.same(got, np.asarray(self.arrays[name][index]), (name, index))
            for name, got in source.get_tensors().items():
                self.same(got, self.arrays[name], name)

    def test_out_has_any_strides(self):
        array = self.arrays["t7.complex64"]
        with fsdpck.open(self.at("three")) as source:
            tensor = source["t7.complex64"]
            for index in (np.s_[3:20, 100:200], np.s_[::-3, 5:9], np.s_[4], np.s_[None, :, 7]):
                want = array[index]
                memory = np.full([2 * n for n in want.shape], -1, array.dtype)
                out = memory[tuple(slice(1, None, 2) for _ in want.shape)][::-1]
                self.assertIs(tensor.numpy(index, out=out), out)
                self.same(out, want, index)
                self.assertEqual(int((memory != -1).sum()), want.size, "written beside out")

    def test_out_that_does_not_fit(self):
        with fsdpck.open(self.at("one")) as source:
            tensor = source["t3.int64"]
            closed = np.zeros(tensor.shape, "int64")
            closed.flags.writeable = False
            repeated = np.lib.stride_tricks.as_strided(np.zeros(5, "int64"), tensor.shape, (0, 8))
            for out in (np.zeros((5, 12), "int64"), np.zeros(tensor.shape, "int32"), np.zeros(tensor.shape, ">i8"),
                        closed, repeated, [0] * 60):
                for step in 1, -1, 2:
                    with self.assertRaisesRegex(fsdpck.UsageError, "'t3.int64': ") as caught:
                        tensor.numpy(np.s_[::step], out=out if step < 2 else out[::2])
                    self.assertEqual(caught.exception.tensor, "t3.int64")

    def test_bad_indices(self):
        with fsdpck.open(self.at("one")) as source:
            for index in (12, -13, (0, 0, 0), (..., ...), "a", [1, 2], True, 1.5):
                with self.assertRaises(IndexError, msg=index):
                    source["t3.int64"][index]

    def test_threads(self):
        source, failures = fsdpck.open(self.at("three")), []

        def work(seed):
            rng = random.Random(seed)
            try:
                for _ in range(100):
                    name = rng.choice(list(self.arrays))
                    index = random_index(rng, self.arrays[name].shape)
                    self.same(source[name][index], np.asarray(self.arrays[name][index]), (name, index))
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_after_fork(self):
        source = fsdpck.open(self.at("three"))
        source.get_tensors()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                got = source.get_tensors()
                code = int(any(got[n].tobytes() != a.tobytes() for n, a in self.arrays.items()))
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_pickle_says_why_not(self):
        with fsdpck.open(self.at("one")) as source:
            for value in (source, source["t3.int64"]):
                with self.assertRaisesRegex(TypeError, "open it where it is used"):
                    pickle.dumps(value)

    def test_closed(self):
        with fsdpck.open(self.at("three")) as source:
            tensor, array = source["t7.complex64"], source["t7.complex64"][2:4]
        for use in (lambda: source["t7.complex64"], lambda: tensor[0], lambda: tensor.placements, lambda: len(source)):
            with self.assertRaisesRegex(ValueError, "closed"):
                use()
        self.same(array, self.arrays["t7.complex64"][2:4], "an array outlives its source")

    def test_facts(self):
        with fsdpck.open(self.at("small")) as source:
            tensor = source["t3.int64"]
            self.assertEqual((tensor.shape, tensor.dtype, tensor.nbytes, len(tensor)), ((12, 5), "int64", 480, 12))
            self.assertEqual(tensor.mesh, {"replicate": 2, "shard": 2})
            self.assertEqual(tensor.placements, ("replicate", "shard(0)"))
            self.assertEqual((source.kind, source.nranks), ("fsdpck", 4))
            self.assertEqual((tensor.get_dtype(), tensor.get_shape()), ("I64", [12, 5]))
            self.assertTrue(np.array_equal(np.asarray(tensor), self.arrays["t3.int64"]))

    def test_stopping_one_read_stops_no_other(self):
        """Both reads are at work when the first one is stopped by its callback."""
        fsdpck.save({"a": np.ones(9 << 20, "uint8"), "b": np.ones(48 << 20, "uint8")}, self.at("two"))
        second_began, first_ended, got = threading.Event(), threading.Event(), []

        def progress(done, total):
            if total == 9 << 20:
                second_began.wait()
                raise RuntimeError("enough")
            second_began.set()
            first_ended.wait()

        source = fsdpck.open(self.at("two"), threads=1, progress=progress)
        thread = threading.Thread(target=lambda: got.append(source["b"][...].all()))
        thread.start()
        try:
            with self.assertRaisesRegex(RuntimeError, "enough"):
                source["a"][...]
        finally:
            first_ended.set()
            thread.join()
        self.assertEqual(got, [True])

    def test_asyncio(self):
        """Reads in threads of an event loop."""
        async def read_all(source):
            names = list(self.arrays)
            return dict(zip(names, await asyncio.gather(*(asyncio.to_thread(source.get_tensor, n) for n in names))))

        with fsdpck.open(self.at("three")) as source:
            for name, got in asyncio.run(read_all(source)).items():
                self.same(got, self.arrays[name], name)

    def test_a_thousand_opens_leak_nothing(self):
        def opens(n):
            for _ in range(n):
                fsdpck.open(self.at("three"))["t7.complex64"][0]
            return len(os.listdir("/proc/self/fd")), memory_nbytes()

        descriptors, nbytes = opens(100)
        after = opens(1000)
        self.assertEqual(after[0], descriptors)
        self.assertLess(after[1] - nbytes, 1000 * os.path.getsize(self.at("three", "index.json")) // 2)


def memory_nbytes():
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Dtypes(common.Case):
    def test_bits_of_what_numpy_lacks(self):
        data = bytes(range(16))
        common.write_safetensors(self.at("m.safetensors"), {"b": ("BF16", (2, 4), data), "f": ("F8_E4M3", (16,), data)})
        with fsdpck.open(self.at("m.safetensors")) as source:
            self.assertEqual((source["b"].dtype, source["f"].dtype), ("bfloat16", "float8_e4m3fn"))
            raw = source["b"].numpy(np.s_[1, ::2], raw=True)
            self.assertEqual((raw.dtype, raw.tolist()), (np.uint16, [0x0908, 0x0D0C]))
            out = np.zeros(16, np.uint8)
            self.assertEqual(source["f"].numpy(out=out, raw=True).tobytes(), data)
            try:
                import ml_dtypes
                self.assertEqual(source["b"][...].dtype, ml_dtypes.bfloat16)
            except ImportError:
                with self.assertRaisesRegex(fsdpck.UnsupportedError, "ml_dtypes"):
                    source["b"][...]

    def test_tied_names(self):
        with fsdpck.open(os.path.join(common.FIXTURES, "tiny-llama-tied")) as source:
            self.assertEqual(source["lm_head.weight"].alias_of, "model.embed_tokens.weight")
            self.assertEqual(source["lm_head.weight"].numpy(0, raw=True).tobytes(),
                             source["model.embed_tokens.weight"].numpy(0, raw=True).tobytes())


if __name__ == "__main__":
    common.main()
