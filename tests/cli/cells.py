#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every option of every verb on every kind of source: it is used, refused, or said to have no effect.

usage: cells.py BINARY [VERB[/SOURCE[/OPTION]] ...]

The options of a verb are those of its --help. For each there is a way to try it in OPTIONS below (a value that must
make a difference wherever the option is used), or a reason in UNSEEN why nobody can see it; an option in neither fails
the test. A cell is a verb, a source and an option. It is run with the option and without, and passes where
  - exit code, stdout or what is made differ (it was used),
  - or it exits 2 or 3 and its error or hint names the option, or a note names it (nobody takes it for used).
Where the verb refuses the source without options, only those in ACCEPTING are tried.
"""
import concurrent.futures
import hashlib
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from harness import fixtures, is_roomy
from run_cases import fixtures as write_small
from run_cases import floats, normalise, write_safetensors

FIXTURES = fixtures()
SHARDING = ("convert", "reshard")

# What nobody can see from outside, by nature.
UNSEEN = {
    "quiet": "takes notes and progress off stderr; cases/output.txt",
    "threads": "results are the same with any number; unit tests count threads",
    "memory": "results are the same in any budget; tests of sizes measure it",
    "for": "an adapter that every program loads gives the same result; doctor.py",
    "help": "belongs to every verb",
}
KINDS = ("safetensors", "hf", "dcp", "fsdpck", "pt", "ranks", "deepspeed", "vllm-sharded")


class Source:
    """path: what is given as SOURCE; kind: what it is found to be; name, shape, dtype: of a small tensor; module:
    what the names of that and its fellows of an adapter begin with; trees: those that it has; fuller: a model of the
    same names and one more."""

    def __init__(self, tool, path, kind):
        self.path, self.kind = path, kind
        listed = json.loads(tool("ls", path, "--json")[1])
        assert listed["kind"] == kind, (path, listed["kind"])
        tensors = [t for t in listed["tensors"] if t["dtype"] in ("float32", "bfloat16") and math.prod(t["shape"]) > 1]
        # Large enough that a total of kilobytes shows where it went.
        visible = [t for t in tensors if math.prod(t["shape"]) * 1000 > sum(math.prod(t["shape"]) for t in tensors)]
        smallest = min(visible, key=lambda t: math.prod(t["shape"]))
        self.name, self.shape, self.dtype = smallest["name"], smallest["shape"], smallest["dtype"]
        self.trees = sorted({t["path"][0] for t in listed["tensors"] if len(t["path"]) > 1})
        self.module = self.name.rpartition(".lora_")[0] or self.name
        self.fuller = os.path.join(tool.folder, "fuller-" + path.strip("/").replace("/", "-") + ".safetensors")
        shapes = {t["name"][6 if t["path"][:-1][:1] == ["model"] else 0:]: t["shape"] for t in listed["tensors"]}
        shapes["one.more.weight"] = [16, 16]
        write_safetensors(self.fuller, {n: ("F32", s, bytes(4 * math.prod(s))) for n, s in shapes.items()})


class Tool:
    def __init__(self, binary, folder):
        self.binary, self.folder = os.path.abspath(binary), folder
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_"))}
        self.env.update(LC_ALL="C", HOME=folder)

    def __call__(self, *args, cwd=None):
        p = subprocess.run([self.binary, *map(str, args)], cwd=cwd or self.folder, env=self.env,
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=1800)
        return p.returncode, p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")

    def good(self, *args):
        code, out, err = self(*args)
        if code != 0:
            sys.exit("cells.py: %s: exit %d: %s" % (" ".join(args), code, err))
        return out


def sources(tool, at):
    """Small ones, so that a cell costs what starting the tool costs."""
    write_small(at)
    shutil.copytree(os.path.join(FIXTURES, "tiny-llama-tied"), os.path.join(at, "llama"))
    shutil.copytree(os.path.join(FIXTURES, "lora-run"), os.path.join(at, "lora"))
    write_safetensors(
        os.path.join(at, "lora.safetensors"), {
            "model.layers.%d.self_attn.q_proj.lora_%s.weight" % (layer, which): ("F32", shape, floats([0.5] * 256))
            for layer in (0, 1)
            for which, shape in (("A", [2, 128]), ("B", [128, 2]))
        })
    tool.good("convert", "llama", "sharded", "--ranks", "2")
    tool.good("convert", "llama", "compressed", "--ranks", "2", "--compress")
    tool.good("export", "llama", "vllm", "--style", "vllm-sharded", "--tp", "2")
    tool.good("export-lora", "lora", "adapter")
    os.mkdir(os.path.join(at, "other-assets"))
    with open(os.path.join(at, "other-assets", "config.json"), "w") as f:
        config = json.load(open(os.path.join(at, "llama", "config.json")))
        json.dump(dict(config, other=1), f)
    config = json.load(open(os.path.join(at, "adapter", "adapter_config.json")))
    with open(os.path.join(at, "other_config.json"), "w") as f:
        json.dump(dict(config, lora_alpha=config["lora_alpha"] * 3), f)
    pt, dcp = os.path.join(FIXTURES, "pt"), os.path.join(FIXTURES, "dcp")
    made = {
        "safetensors": ("tiny.safetensors", "safetensors"), "hf": ("llama", "hf"),
        "dcp": (dcp + "/torch-2.15/ckpt", "dcp"), "dcp-slices": (dcp + "/slices/ckpt", "dcp"),
        "pt": (pt + "/training/last.pt", "pt"), "bin": (pt + "/bin_shards", "pt"), "ranks": (pt + "/verl3", "ranks"),
        "deepspeed": (os.path.join(FIXTURES, "deepspeed", "zero2"), "deepspeed"),
        "vllm-sharded": ("vllm", "vllm-sharded"),
        "fsdpck": ("sharded", "fsdpck"), "compressed": ("compressed", "fsdpck"), "lora-run": ("lora", "fsdpck"),
        "adapter": ("adapter", "hf"), "lora-file": ("lora.safetensors", "safetensors")
    }
    return {name: Source(tool, os.path.join(at, path), kind) for name, (path, kind) in made.items()}


# ---- what is run ----

def command(verb, s, at, out, other):
    """The verb's words without options, and options that it wants."""
    ranks = ["--ranks", "2"]
    return {
        "convert": ["convert", s.path, out, *ranks],
        "reshard": ["reshard", s.path, out, *ranks],
        "export": ["export", s.path, out],
        "export-file": ["export", s.path, out + ".safetensors"],
        "export-lora": ["export-lora", s.path, out],
        "merge-lora": ["merge-lora", os.path.join(at, "llama"), s.path, out],
        "merge-sharded": ["merge-lora", os.path.join(at, "llama"), s.path, out, *ranks],
        "average": ["average", s.path, s.path, out],
        "average-sharded": ["average", s.path, s.path, out, *ranks],
        "ls": ["ls", s.path],
        "verify": ["verify", s.path],
        "doctor": ["doctor", s.path],
        "diff": ["diff", s.path, other],
        "plan": ["plan", s.path, *ranks],
        "cat": ["cat", s.path, s.name],
        "clean": ["clean", s.path],
    }[verb]


def other_kinds(verb, s):
    """All of them where that costs least."""
    others = [kind for kind in KINDS if kind != s.kind]
    return [["--from", kind] for kind in (others if verb == "ls" else others[-2:])]


def a_tree(verb, s):
    """Not the model, where that goes out anyway."""
    trees = [t for t in s.trees if t != "model" or verb in SHARDING]
    return [["--select", trees[0] if trees else "nosuch"]]


def without_ranks(words):
    return [w for i, w in enumerate(words) if w != "--ranks" and (i == 0 or words[i - 1] != "--ranks")]


# Option -> what to try: a list of words, or several; each of them makes a difference wherever it is used.
OPTIONS = {
    "json": lambda v, s: [["--json"]],
    "from": other_kinds,
    "no-verify": lambda v, s: [["--no-verify"]],
    # cat: under vLLM's, torchtitan's and Megatron's names there is no tensor of that name.
    # plan: of what vLLM's ranks hold, its joined weights are read from the same bytes as the published ones.
    "names": lambda v, s: [["--names", w] for w in ("hf", "transformers", "vllm", "torchtitan", "megatron")
                           if w in ("hf", "transformers") or
                           (v != "cat" and (v, s.kind, w) != ("plan", "vllm-sharded", "vllm"))],
    "dequantize": lambda v, s: [["--dequantize", "bf16"]],
    "quantize": lambda v, s: [["--quantize", "nf4"]],
    "complete-from": lambda v, s: [["--complete-from", s.fuller]],
    "keep": lambda v, s: [["--keep", s.name]],
    "include": lambda v, s: [["--include", s.module + "*"]],
    "exclude": lambda v, s: [["--exclude", s.module + "*"]],
    "select": a_tree,
    "rename": lambda v, s: [["--rename", (s.module.rpartition(".")[0] or s.module) + "=renamed"]],
    "alias": lambda v, s: [["--alias", "second=" + s.name]],
    "dtype": lambda v, s: [["--dtype", "fp16"]],
    "force": lambda v, s: [["--force"]],
    "dcp": lambda v, s: [["--dcp", "never"]],
    "assets": lambda v, s: [["--assets", "other-assets"]],
    "compress": lambda v, s: [["--compress"]],
    "max-shard-size": lambda v, s: [["--max-shard-size", "1"]],
    "ranks": lambda v, s: [["--ranks", "3"]],
    "mesh": lambda v, s: [["--mesh", "a=2,b=2"]],
    "placement": lambda v, s: [["--placement", s.name + "=replicate"], ["--placement", "auto"]],
    "replicate": lambda v, s: [["--replicate", s.name]],
    "style": lambda v, s: [["--style", w] for w in ("diffusers", "kohya", "comfy")]
                          if v == "export-lora" else [["--style", "vllm-sharded", "--tp", "2"]],
    "tp": lambda v, s: [["--tp", "2", "--style", "vllm-sharded"]],
    "expert-parallel": lambda v, s: [["--tp", "2", "--style", "vllm-sharded", "--expert-parallel"]],
    "adapter": lambda v, s: [["--adapter", "nosuch"]],
    "adapter-config": lambda v, s: [["--adapter-config", "other_config.json"]],
    "expert-order": lambda v, s: [["--expert-order", "slowest"]],
    "alpha": lambda v, s: [["--alpha", "5"]],
    "weights": lambda v, s: [["--weights", "2,1"]],
    "tensor": lambda v, s: [["--tensor", s.name]],
    "quick": lambda v, s: [["--quick"]],
    "html": lambda v, s: [["--html", "."]],  # refused by its name; tests/cli/pages.py looks at pages
    "base": lambda v, s: [["--base", "llama"]],
    "deep": lambda v, s: [["--deep"]],
    "tolerance": lambda v, s: [["--tolerance", "1e30"]],
    "slice": lambda v, s: [["--slice", ",".join(["0:1"] + [":"] * (len(s.shape) - 1))]],
    "raw": lambda v, s: [["--raw"]],
}


def named(option):
    """How an error names it. Errors about aliases and styles go without the dashes, and no other ones have these
    words."""
    return r"%s%s\b" % ("" if option in ("alias", "style") else "--", option)


def help_options(tool, verb):
    return re.findall(r"^ {2}(?:-\w, | {4})--([a-z-]+)", tool.good(verb, "--help"), re.M)


def digest(path):
    with open(path, "rb") as f:
        data = f.read()
    name = os.path.basename(path)
    if name == "index.json":  # of a save: its id and time change
        return re.sub(r'"(save_id|created|hash)":"[^"]*"', "", data.decode())
    if name.endswith((".distcp", ".metadata")):  # hold the save's id; the index says what is in them
        return len(data)
    return hashlib.sha256(data).hexdigest()


def made(out):
    files = {}
    for top in (out, out + ".safetensors"):
        if os.path.isfile(top):
            files[os.path.basename(top)] = digest(top)
        for base, _, names in os.walk(top):
            files.update((os.path.relpath(os.path.join(base, n), out), digest(os.path.join(base, n))) for n in names)
    return files


class Tables:
    def __init__(self, tool, at):
        self.tool, self.at = tool, at
        self.sources = sources(tool, at)
        self.others = {name: self.changed(name, s) for name, s in self.sources.items()}
        self.plain = {}

    def changed(self, name, s):
        """The same tensor with other values, to compare with."""
        path = os.path.join(self.at, "other-%s.safetensors" % name)
        count = math.prod(s.shape)
        code, data = (
            ("F32", floats([3.0] * count))
            if s.dtype == "float32"
            else ("BF16", struct.pack("<%dH" % count, *[0x4040] * count))
        )
        write_safetensors(path, {s.name: (code, s.shape, data)})
        return path

    def run(self, verb, source, more, room, replace=False):
        out = os.path.join(self.at, room, "out")
        shutil.rmtree(os.path.dirname(out), ignore_errors=True)
        os.makedirs(os.path.dirname(out))
        words = command(verb, self.sources[source], self.at, out, self.others[source])
        if more and more[0] in ("--mesh", "--ranks"):
            words = without_ranks(words)
        if replace:
            self.tool(*words)
        code, stdout, stderr = self.tool(*words, *more)
        seen = (code, normalise(stdout, os.path.dirname(out)), made(out))
        shutil.rmtree(os.path.dirname(out), ignore_errors=True)
        return seen, stderr

    def look_plain(self, verb, source):
        """What is seen without options; twice the same, or a difference would tell nothing."""
        seen, again = (self.run(verb, source, [], "plain-%s-%s-%d" % (verb, source, i))[0] for i in (1, 2))
        self.plain[verb, source] = seen
        return None if seen == again else "is not the same twice: %s, %s" % (seen, again)

    def cell(self, verb, source, option, more):
        """None where the option is used or nobody takes it for used, else what went wrong."""
        room = "-".join(["room", verb, source, option, more[-1].replace("/", "_")])[:200]
        replace = option == "force"
        plain = self.plain[verb, source]
        if plain[0] in (2, 3) and option not in ACCEPTING:
            return None
        if replace:
            plain = self.run(verb, source, [], room, replace)[0]
        seen, said = self.run(verb, source, more, room, replace)
        if seen[0] in (2, 3):
            why = "".join(line for line in said.splitlines() if not line.startswith("fsdpck: note: "))
            return (
                None
                if plain[0] in (2, 3) or re.search(named(option), why)
                else "is refused by words that do not name it: " + said
            )
        if re.search(r"note: .*--%s\b" % option, said):
            return None
        return None if seen != plain else "is not used, and nothing is said: exit %d: %s%s" % (seen[0], seen[1][:200],
                                                                                               said)


# With these a verb may take a source that it refuses otherwise.
ACCEPTING = ("from", "names", "alpha", "adapter", "adapter-config", "select", "rename")
VERBS = ("convert", "reshard", "export", "export-file", "export-lora", "merge-lora", "merge-sharded", "average",
         "average-sharded", "ls", "verify", "doctor", "diff", "plan", "cat", "clean")
ALIAS = {"export-file": "export", "merge-sharded": "merge-lora", "average-sharded": "average"}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    failures = []
    quick = "/dev/shm" if is_roomy("/dev/shm") else None  # a disk has every cell wait for it
    with tempfile.TemporaryDirectory(prefix="fsdpck-cells-", dir=quick) as folder:
        folder = os.path.realpath(folder)
        tool = Tool(sys.argv[1], folder)
        tables = Tables(tool, folder)
        if "FSDPCK_SANITIZED" in os.environ:  # slow; the paths are those of other tests
            tables.sources = {name: tables.sources[name] for name in ("hf", "dcp", "lora-run")}
        cells = []
        for verb in VERBS:
            for option in help_options(tool, ALIAS.get(verb, verb)):
                if option not in OPTIONS and option not in UNSEEN:
                    failures.append("%s --%s: nothing here tries it: see OPTIONS and UNSEEN" % (verb, option))
                for source, s in tables.sources.items() if option in OPTIONS else ():
                    cells += [(verb, source, option, more) for more in OPTIONS[option](verb, s)]
        wanted = sys.argv[2:]
        cells = [c for c in cells if not wanted or any("/".join(c[:3]).startswith(w) for w in wanted)]
        pairs = sorted({c[:2] for c in cells})
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for (verb, source), wrong in zip(pairs, pool.map(lambda p: tables.look_plain(*p), pairs)):
                if wrong:
                    failures.append("%s of %s: %s" % (verb, source, wrong))
            for (verb, source, option, more), wrong in zip(cells, pool.map(lambda c: tables.cell(*c), cells)):
                if wrong:
                    failures.append("%s of %s: '%s' %s" % (verb, source, " ".join(more), wrong.strip()))
    for line in failures:
        print("FAIL %s" % line)
    print("%d cells, %d failed" % (len(cells), len(failures)))
    return 1 if failures or not cells else 0


if __name__ == "__main__":
    sys.exit(main())
