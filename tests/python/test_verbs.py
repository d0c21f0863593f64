#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The verbs as functions write what the program writes, and report what it reports."""
import filecmp
import gc
import json
import os
import shutil

import common
import fsdpck
from fsdpck import _call, _verbs

MODEL = os.path.join(common.FIXTURES, "tiny-llama-tied")
ADAPTER = os.path.join(common.FIXTURES, "lora-run")


class Verbs(common.Case):
    def same_as_program(self, verb, written, *args, nparts=False):
        """The program makes the same of these arguments. nparts: tensors are stored in parts, which are not counted."""
        common.tool(verb, *args[:-1], self.at("program"), *args[-1])
        self.assertEqual(fsdpck.diff(self.at("python"), self.at("program")), [])
        with fsdpck.open(self.at("python")) as ours, fsdpck.open(self.at("program")) as theirs:
            self.assertEqual([(t.name, t.dtype, t.shape, t.mesh, t.placements) for t in ours.values()],
                             [(t.name, t.dtype, t.shape, t.mesh, t.placements) for t in theirs.values()])
            if not nparts:
                self.assertIn(written.tensors, (len(ours), len(ours) - 1))  # export writes a tied tensor once

    def test_convert(self):
        written = fsdpck.convert(MODEL, self.at("python"), {"dp": 2, "tp": 2}, dtype="fp32", exclude=["*norm*"],
                                 placements={"*.down_proj.weight": {"tp": "shard(1)"}}, replicate=["*embed*"],
                                 rename={"model.": "net."}, compress=True)
        self.same_as_program("convert", written, MODEL, [
            "--mesh", "dp=2,tp=2", "--dtype", "fp32", "--exclude", "*norm*", "--placement",
            "*.down_proj.weight=shard(1)@tp", "--replicate", "*embed*", "--rename", "model.=net.", "--compress"])
        self.assertTrue(any("PyTorch does not" in note for note in written.notes), written.notes)

    def test_convert_by_family(self):
        written = fsdpck.convert(MODEL, self.at("python"), {"dp": 2, "tp": 2}, placements="auto")
        self.same_as_program("convert", written, MODEL, ["--mesh", "dp=2,tp=2", "--placement", "auto"])
        with fsdpck.open(self.at("python")) as made:
            self.assertEqual(made["model.layers.0.mlp.down_proj.weight"].placements, ("shard(0)", "shard(1)"))
        with self.assertRaisesRegex(fsdpck.UsageError, "'auto' and a mapping"):
            fsdpck.convert(MODEL, self.at("other"), {"tp": 2}, placements="tp")

    def test_reshard(self):
        fsdpck.convert(MODEL, self.at("two"), 2)
        written = fsdpck.reshard(self.at("two"), self.at("python"), {"replicate": 2, "shard": 3})
        self.same_as_program("reshard", written, self.at("two"), ["--mesh", "replicate=2,shard=3"])
        with self.assertRaisesRegex(fsdpck.UsageError, "kind 'hf'.*\nhint: convert"):
            fsdpck.reshard(MODEL, self.at("out"), 2)

    def test_values(self):
        """Quantized and back, in part, and completed, from a path and from a source that is open."""
        written = fsdpck.export(MODEL, self.at("python"), quantize="nf4", keep=["*.0.mlp.*"])
        self.same_as_program("export", written, MODEL, ["--quantize", "nf4", "--keep", "*.0.mlp.*"], nparts=True)
        with fsdpck.open(MODEL, quantize="nf4", keep=["*.0.mlp.*"]) as source:
            fsdpck.export(source, self.at("opened"))
        self.assertEqual(fsdpck.diff(self.at("opened"), self.at("python")), [])
        fsdpck.convert(self.at("python"), self.at("fp32"), 2, dequantize="fp32")
        with fsdpck.open(self.at("python"), dequantize="fp32") as source:
            self.assertEqual(fsdpck.diff(source, self.at("fp32")), [])
        fsdpck.export(MODEL, self.at("part"), exclude=["*mlp*"])
        self.assertTrue(fsdpck.diff(self.at("part"), MODEL))
        fsdpck.export(self.at("part"), self.at("whole"), complete_from=MODEL)
        self.assertEqual(fsdpck.diff(self.at("whole"), MODEL), [])

    def test_average(self):
        fsdpck.convert(MODEL, self.at("other"), 2, dtype="fp16")
        fsdpck.export(self.at("other"), self.at("rounded"), dtype="bf16")
        written = fsdpck.average([MODEL, self.at("rounded")], self.at("python"), weights=[0.75, -0.5], mesh=2)
        self.same_as_program("average", written, MODEL, self.at("rounded"), ["--weights", "0.75,-0.5", "--ranks", "2"])
        for wrong in dict(weights=[1.0]), dict(compress=True):
            with self.assertRaises(fsdpck.UsageError):
                fsdpck.average([MODEL, MODEL], self.at("out"), **wrong)

    def test_average_of_open_sources(self):
        """The first one presents the averages afterwards, of sources that may be closed: so it is closed."""
        fsdpck.export(MODEL, self.at("fp32"), dtype="fp32")
        with fsdpck.open(self.at("fp32")) as first, fsdpck.open(self.at("fp32")) as second:
            tensor = first["model.norm.weight"]
            fsdpck.average([first, second, second], self.at("first"))
            for use in (lambda: tensor[...], lambda: tensor.nbytes, lambda: first["model.norm.weight"]):
                with self.assertRaisesRegex(ValueError, "is closed"):
                    use()
            self.assertEqual(fsdpck.diff(second, self.at("first")), [])
            with self.assertRaisesRegex(fsdpck.UsageError, "source 3 of the average is the first one"):
                fsdpck.average([second, self.at("fp32"), second], self.at("refused"))

    def test_plan(self):
        common.tool("convert", MODEL, self.at("model"), "--ranks", "3")
        options = ["--mesh", "dp=2,tp=2", "--placement", "*.down_proj.weight=shard(1)@tp", "--replicate", "*embed*"]
        told = common.told("plan", self.at("model"), *options)["ranks"]
        plans = fsdpck.plan(self.at("model"), {"dp": 2, "tp": 2}, replicate=["*embed*"],
                            placements={"*.down_proj.weight": {"tp": "shard(1)"}})
        self.assertEqual([p.needed_nbytes for p in plans], [r["needed_bytes"] for r in told])
        self.assertEqual([(p.read_nbytes, p.runs, p.files, p.peak_nbytes) for p in plans],
                         [(r["read_bytes"], r["runs"], r["files"], r["peak_bytes"]) for r in told])
        told = common.told("plan", self.at("model"), "--mesh", "dp=2,tp=2", "--placement", "auto")["ranks"]
        plans = fsdpck.plan(self.at("model"), {"dp": 2, "tp": 2}, placements="auto")
        self.assertEqual([p.needed_nbytes for p in plans], [r["needed_bytes"] for r in told])
        with fsdpck.open(self.at("model")) as source:
            part = source.plan([("model.norm.weight", slice(0, 32)), ("model.norm.weight", slice(64, 64))])
        self.assertEqual((part.needed_nbytes, part.files), (64, 1))

    def test_ls(self):
        common.tool("convert", MODEL, self.at("model"), "--ranks", "2")
        os.mkdir(self.at("model.tmp-123e4567-e89b-42d3-a456-426614174000"))
        told = common.told("ls", self.at("model"), "--tensor", "*norm*")
        listing = fsdpck.ls(self.at("model"), tensor="*norm*")
        self.assertEqual([(t.name, t.dtype, list(t.shape)) for t in listing.tensors],
                         [(t["name"], t["dtype"], t["shape"]) for t in told["tensors"]])
        self.assertEqual([f._asdict() for f in listing.files],
                         [{"name": f["name"], "nbytes": f["bytes"], "rank": f.get("rank")} for f in told["files"]])
        self.assertEqual(listing.assets, {a["path"]: a["bytes"] for a in told["assets"]})
        self.assertEqual([x.path for x in listing.leftovers], [x["path"] for x in told["leftovers"]])
        self.assertEqual(len(listing.leftovers), 1)

    def test_export(self):
        with fsdpck.open(MODEL) as source:
            written = fsdpck.export(source, self.at("python"), max_shard_nbytes=500000, include=["model.layers.*"])
        self.same_as_program("export", written, MODEL, ["--max-shard-size", "500000", "--include", "model.layers.*"])
        self.assertEqual(sorted(os.listdir(self.at("python"))), sorted(os.listdir(self.at("program"))))

    def test_export_for_vllm(self):
        fsdpck.export(MODEL, self.at("python"), vllm_ranks=2)
        common.tool("export", MODEL, self.at("program"), "--style", "vllm-sharded", "--tp", "2")
        self.assertEqual(sorted(os.listdir(self.at("python"))), sorted(os.listdir(self.at("program"))))
        with fsdpck.open(self.at("python")) as source:
            self.assertEqual(source.kind, "vllm-sharded")
        self.assertEqual(fsdpck.diff(self.at("python"), MODEL), [])

    def test_notes_of_opening_are_passed_on(self):
        path = os.path.join(common.FIXTURES, "dcp", "slices", "ckpt")
        with fsdpck.open(path) as source:
            self.assertTrue(source.notes)
            self.assertFalse(set(source.notes) & set(fsdpck.export(source, self.at("opened")).notes))
            self.assertTrue(set(source.notes) <= set(fsdpck.export(path, self.at("path")).notes))

    def test_export_lora(self):
        fsdpck.export_lora(ADAPTER, self.at("python"))
        common.tool("export-lora", ADAPTER, self.at("program"))
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            self.assertTrue(filecmp.cmp(self.at("python", name), self.at("program", name), shallow=False), name)

    def test_merge_lora(self):
        written = fsdpck.merge_lora(MODEL, ADAPTER, self.at("python"), mesh=2)
        self.same_as_program("merge-lora", written, MODEL, ADAPTER, ["--ranks", "2"])
        fsdpck.merge_lora(None, ADAPTER, self.at("named"), mesh=2, replicate=["*norm*"])
        self.assertEqual(fsdpck.diff(self.at("named"), self.at("python")), [])

    def test_a_named_base_keeps_its_options(self):
        """The library calls back into them until the base is closed."""
        def alive():
            gc.collect()
            return sum(type(o) is _call.Options for o in gc.get_objects())

        options = _call.Options()
        with fsdpck.open(ADAPTER) as adapter:
            before = alive()
            base = _verbs._named_base(adapter._open(), options)
            self.assertEqual(alive(), before + 1)
            del base
            self.assertEqual(alive(), before)

    def test_config_is_not_ignored(self):
        with fsdpck.open(MODEL) as source:
            for a, b in (MODEL, MODEL), (source, source):
                with self.assertRaisesRegex(fsdpck.UsageError, "config is "):
                    fsdpck.diff(a, b, config=MODEL)
        self.assertEqual(fsdpck.diff(MODEL, MODEL, config=MODEL, names="hf"), [])
        self.assertEqual(len(fsdpck.plan(MODEL, 2, assets=MODEL, names=None)), 2)

    def test_merge_lora_into_an_open_source(self):
        """A quantized base that was opened is itself again after the merge."""
        common.tool("export", MODEL, self.at("base"), "--quantize", "nf4")
        common.tool("export-lora", ADAPTER, self.at("adapter"))
        with fsdpck.open(self.at("base")) as base:
            for out in "once", "again":
                fsdpck.merge_lora(base, self.at("adapter"), self.at(out))
            self.assertEqual(fsdpck.diff(base, self.at("base")), [])
        self.assertEqual(fsdpck.diff(self.at("once"), self.at("again")), [])
        self.assertNotEqual(fsdpck.diff(self.at("once"), self.at("base")), [])

    def test_merge_lora_refuses_other_names(self):
        """A quantized base that was opened under other names is refused, with and without fused experts."""
        os.mkdir(self.at("model"))
        for name in ("config.json", "model.safetensors"):
            shutil.copy(os.path.join(common.FIXTURES, "moe", "mixtral", "hub", name), self.at("model"))
        os.rename(self.at("model", "model.safetensors"), self.at("model", "experts.safetensors"))
        query, expert = "model.layers.0.self_attn.q_proj", "model.layers.0.block_sparse_moe.experts.0.w1"
        common.write_safetensors(self.at("model", "query.safetensors"),
                                 {query + ".weight": ("BF16", (64, 64), b"\x80\x3f" * 4096)})
        common.tool("export", self.at("model"), self.at("base"), "--quantize", "nf4", "--keep", "*experts*")
        os.mkdir(self.at("adapter"))
        with open(self.at("adapter", "adapter_config.json"), "w") as f:
            json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": [expert, query]}, f)
        for module, (rows, cols) in (query, (64, 64)), (expert, (24, 16)):
            common.write_safetensors(self.at("adapter", "adapter_model.safetensors"), {
                "base_model.model.%s.lora_A.weight" % module: ("F32", (1, cols), b"\0\0\x80\x3f" * cols),
                "base_model.model.%s.lora_B.weight" % module: ("F32", (rows, 1), b"\0\0\x80\x3f" * rows)})
            with fsdpck.open(self.at("base"), names="transformers") as base:
                with self.assertRaisesRegex(fsdpck.UnsupportedError, "under their own names only"):
                    fsdpck.merge_lora(base, self.at("adapter"), self.at("refused"))
        self.assertFalse(os.path.exists(self.at("refused")))

    def test_verify(self):
        fsdpck.convert(MODEL, self.at("model"), 2)
        whole = fsdpck.verify(self.at("model"))
        self.assertEqual((whole.problems, whole.hashed), ([], True))
        self.assertFalse(fsdpck.verify(MODEL).hashed)
        path = self.at("model", "__1_0.distcp")
        with open(path, "r+b") as f:
            f.seek(os.path.getsize(path) // 2)
            byte = f.read(1)[0]
            f.seek(-1, 1)
            f.write(bytes([byte ^ 1]))
        problems = [p for p in fsdpck.verify(self.at("model")).problems if p.tensor]
        self.assertEqual([(p.file, p.rank) for p in problems], [("__1_0.distcp", 1)])
        self.assertTrue(problems[0].rows[0] < problems[0].rows[1])
        self.assertEqual(fsdpck.verify(self.at("model"), quick=True).problems, [])

    def test_diff(self):
        fsdpck.convert(MODEL, self.at("a"), 2, include=["*norm*"])
        fsdpck.convert(MODEL, self.at("b"), 3, include=["*layernorm*"], dtype="fp32")
        different = fsdpck.diff(self.at("a"), self.at("b"))
        self.assertIn(("model.norm.weight", ("bfloat16", None), ((128, ), None)), [d[:3] for d in different])
        self.assertEqual({d.dtypes for d in different}, {("bfloat16", None), ("bfloat16", "float32")})

    def test_refused(self):
        for call in (lambda: fsdpck.convert(MODEL, self.at("out"), 0),
                     lambda: fsdpck.convert(MODEL, self.at("out"), {}),
                     lambda: fsdpck.convert(MODEL, self.at("out"), 2, placements={"*": {"shard": "rows"}}),
                     lambda: fsdpck.convert(MODEL, self.at("out"), 2, include=["nothing*"]),
                     lambda: fsdpck.convert(MODEL, self.at("out"), 2, include="*"),
                     lambda: fsdpck.convert(MODEL, self.at("out"), {"shard": -1}),
                     lambda: fsdpck.plan(MODEL, {"a": 1 << 20, "b": 1 << 20}),
                     lambda: fsdpck.plan(MODEL, 2, replicate=["nothing*"]),
                     lambda: fsdpck.ls(MODEL, tensor="nothing*"),
                     lambda: fsdpck.open(MODEL, keep=["*"]),
                     lambda: fsdpck.open(MODEL, quantize="nf5"),
                     lambda: fsdpck.open(MODEL, format="hf\0dcp"),
                     lambda: fsdpck.verify(MODEL, format="hf\0dcp"),
                     lambda: fsdpck.export(MODEL, self.at("out"), dtype="bfloat16\0"),
                     lambda: fsdpck.convert(MODEL, self.at("out"), 2, placements={"*": {"shard": "shard(0)\0"}}),
                     lambda: fsdpck.export(fsdpck.open(MODEL), self.at("out"), names="hf"),
                     lambda: fsdpck.merge_lora(MODEL, ADAPTER, self.at("out"), replicate=["*"]),
                     lambda: fsdpck.diff(MODEL, MODEL, tolerance=-1.0),
                     lambda: fsdpck.export_lora(MODEL, self.at("out"), style="other")):
            with self.assertRaises(ValueError):
                call()
        for wrong in (lambda: fsdpck.export(MODEL, self.at("out"), colour="red"),
                      lambda: fsdpck.export_lora(ADAPTER, self.at("out"), names="hf")):
            with self.assertRaises(TypeError):
                wrong()
        self.assertEqual(os.listdir(self.folder), [])

    def test_stopped(self):
        def progress(done, total):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            fsdpck.convert(MODEL, self.at("out"), 2, progress=progress)
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    common.main(needs_numpy=False)
