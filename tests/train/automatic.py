#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keys that are "auto": the run takes what `plan --search` finds, its ranks agree, and a resumed run keeps its bits.

usage: automatic.py FSDPTRAIN"""
import json, os, pathlib, re, shutil, subprocess, sys, tempfile

from built import has_tsan, joins_mpi

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "fixtures"
MPIRUN = shutil.which("mpirun")
MANY, FEW = 1e12, 1e4  # kernels in a second: with few, a run takes large micro-batches, which need fewer
COPY = ("--ranks", "2", "--gather", "copy")


class Failure(Exception):
    pass


class Automatic:

    def __init__(self, tool, folder):
        self.tool, self.dir = tool, pathlib.Path(folder)
        rows = [{"input_ids": [i * k % 90 + 3 for i in range(24)], "labels": [i + 3 for i in range(24)]}
                for k in range(1, 9)]
        (self.dir / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        self.config = {
            "model": str(FIXTURES / "tiny-llama-tied"), "data": {"train": "rows.jsonl", "seq_len": 24},
            "train": {"max_steps": 4, "global_batch_size": 4, "micro_batch_size": "auto"},
            "lora": {"r": 4, "lora_alpha": 8}, "fsdp": "auto", "checkpoint": {"save_steps": 2},
        }
        self.call("plan", self.write("rates"), cache="cache")
        kept, = (self.dir / "cache/fsdpck").iterdir()
        for name, calls in (("many", MANY), ("few", FEW)):
            rates = json.loads(kept.read_text())
            machine = rates["machine"]
            rates.update(json.loads((FIXTURES / "rates/two-processors.json").read_text()), machine=machine, busy=0)
            rates["rates"]["calls"] = calls
            (self.dir / name / "fsdpck").mkdir(parents=True)
            (self.dir / name / "fsdpck" / kept.name).write_text(json.dumps(rates))

    def write(self, name, **keys):
        path = self.dir / f"{name}.json"
        path.write_text(json.dumps({**self.config, "output_dir": name, **keys}))
        return path

    def env(self, cache):
        return {**os.environ, "XDG_CACHE_HOME": str(self.dir / cache), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def call(self, *args, cache="many", want=0, before=()):
        done = subprocess.run([*before, self.tool, *map(str, args)], cwd=self.dir, env=self.env(cache),
                              capture_output=True, text=True, timeout=300)
        if done.returncode != want:
            raise Failure(f"{args}: exit {done.returncode}, {want} is wanted: {done.stdout}{done.stderr}")
        return done

    def run(self, name, *options, cache="many", before=(), want_adapter=True, **keys):
        """The choice that a run notes, as {key: word}, and its adapter."""
        said = self.call("run", self.write(name, **keys), "--threads", 1, *options, cache=cache, before=before).stderr
        lines = [line for line in said.splitlines() if '"auto" is' in line]
        choice = dict(re.findall(r"(?:fsdp|train)\.(\w+) (\w+),", lines[0])) if lines else {}
        return choice, (self.dir / name / "adapter/adapter_model.safetensors").read_bytes() if want_adapter else None

    def fixed(self, micro):
        train = {**self.config["train"], "micro_batch_size": micro}
        return self.run(f"fixed{micro}", train=train, fsdp={})[1]

    def searched(self):
        """A run takes what the search finds, and has the bits of a run that is told so."""
        found = json.loads(self.call("plan", self.write("found"), *COPY, "--threads", 1, "--search", "--json").stdout)
        best = found["candidates"][found["chosen"]]
        choice, adapter = self.run("chosen", *COPY)
        wanted = {"sharding_strategy": best["sharding_strategy"], "forward_prefetch": f"{best['prefetch']}",
                  "backward_prefetch": f"{best['prefetch']}", "micro_batch_size": f"{best['micro_batch_size']}"}
        if choice != wanted or adapter != self.fixed(best["micro_batch_size"]):
            raise Failure(f"{choice}, and the search says {wanted}")
        plan = self.call("plan", self.write("planned"), *COPY, "--threads", 1).stderr
        if f"fsdp.sharding_strategy {best['sharding_strategy']}," not in plan:
            raise Failure(plan)

    def partly(self):
        """Keys with values keep them; where parameters are mapped, only the micro-batch is chosen."""
        choice, _ = self.run("partly", *COPY, "--set", "fsdp.sharding_strategy=FULL_SHARD", "--set",
                             "train.micro_batch_size=2")
        if set(choice) != {"forward_prefetch", "backward_prefetch"}:
            raise Failure(choice)
        choice, _ = self.run("set", *COPY, "--set", "fsdp=auto", "--set", "fsdp.forward_prefetch=2", fsdp={})
        if set(choice) != {"sharding_strategy", "backward_prefetch", "micro_batch_size"}:
            raise Failure(choice)
        choice, _ = self.run("mapped", "--ranks", "2")
        if set(choice) != {"micro_batch_size"}:
            raise Failure(choice)

    def resumed(self):
        """A resumed run keeps the size of its micro-batches where another would be faster now."""
        choice, whole = self.run("resumed", cache="few")
        if choice.get("micro_batch_size") != "4" or whole != self.fixed(4) or whole == self.fixed(1):
            raise Failure(f"{choice}: not the bits of micro-batches of 4, or those of all sizes")
        shutil.rmtree(self.dir / "resumed/checkpoints/step-000004")
        shutil.rmtree(self.dir / "resumed/adapter")
        choice, again = self.run("resumed")
        if choice or again != whole:
            raise Failure(f"{choice}, or other bits after a resume")
        shutil.rmtree(self.dir / "resumed")
        if self.run("resumed")[0].get("micro_batch_size") != "1":
            raise Failure("the rates make no difference")

    def agreed(self):
        """Ranks of a launcher take the choice of rank 0, whatever the rates of their hosts."""
        if not MPIRUN or not joins_mpi(self.tool):
            return "no Open MPI"
        if has_tsan(self.tool):
            return "Open MPI does not run under ThreadSanitizer"
        shell = ('case $OMPI_COMM_WORLD_RANK in 0) XDG_CACHE_HOME="$PWD/few";; esac; export XDG_CACHE_HOME; exec "$@"')
        before = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", "2", "sh", "-c", shell, "sh"]
        choice, adapter = self.run("agreed", "--gather", "copy", before=before)
        if choice.get("micro_batch_size") != "2" or adapter != self.fixed(2):
            raise Failure(choice)

    def offloaded(self):
        """What does not fit into memory goes to a file, and no more; the bits are those of a run in memory."""
        train = {**self.config["train"], "micro_batch_size": 1}
        keys = {"train": train, "lora": None, "dtype": {"param": "bf16"}}
        path = self.write("it's outside", **keys, fsdp={"offload": "auto", "offload_memory": 65536})
        folder = r"'it'\''s outside/'"  # as a word of a shell's command

        def search(limit, want=0):
            done = self.call("plan", path, "--threads", 1, "--search", "--json", "--memory", limit, want=want)
            found = json.loads(done.stdout)
            return found["candidates"], found["chosen"]
        all_levels, none = search("20kB", 1)
        least = {c["offload"]: min(d["peak_bytes"] for d in all_levels if d["offload"] == c["offload"])
                 for c in all_levels}
        if none is not None or list(least) != ["none", "state", "gradients", "parameters"]:
            raise Failure(least)
        if not least["none"] > least["state"] > least["gradients"]:
            raise Failure(f"nothing is saved: {least}")
        for level in ("none", "state", "gradients"):
            tried, chosen = search(str(least[level]))
            if chosen is None or tried[chosen]["offload"] != level or "parameters" in [c["offload"] for c in tried]:
                raise Failure(f"{level} is enough for {least[level]}: {tried}")
        said = self.call("plan", path, "--threads", 1, "--search", "--memory", str(least["gradients"])).stdout
        if f"--set fsdp.offload={folder} --set fsdp.offload_gradients=true" not in said:
            raise Failure(said)
        elastic = ["plan", path, *COPY, "--elastic", 1, "--set", "checkpoint.memory_every=1"]
        done = json.loads(self.call(*elastic, "--search", "--json", "--memory", "20kB", want=1).stdout)
        enough = min(c["peak_bytes"] for c in done["candidates"] if c["offload"] == "state")
        said = self.call(*elastic, "--memory", str(enough)).stderr
        if "memory_every' has no effect: \"auto\" moves the state to a file" not in said:
            raise Failure(said)
        choice, _ = self.run("roomy", **keys, fsdp={"offload": "auto"}, want_adapter=False)
        if choice != {"offload": "none"}:
            raise Failure(choice)
        if said := self.call("plan", path, "--threads", 1, "--memory", "20kB", want=4).stderr:
            if "a rank needs" not in said:
                raise Failure(said)

    def refused(self):
        """What cannot be chosen is refused in a sentence."""
        path = self.write("refused")
        for sets, words in (
            (["data.seq_len=auto"], "key 'data.seq_len': a whole number is wanted"),
            (["train.micro_batch_size=often"], "a whole number is wanted, or \"auto\""),
            (['fsdp.policy=[{"modules": ["layers.0"], "sharding_strategy": "auto"}]'], "chosen for all groups"),
            (["fsdp=everything"], "key 'fsdp': an object is wanted"),
        ):
            said = self.call("run", path, *[a for s in sets for a in ("--set", s)], want=2).stderr
            if words not in said:
                raise Failure(f"{words} is wanted: {said}")
        said = self.call("plan", path, *COPY, "--memory", "20kB", want=4).stderr
        if "finds no settings that fit: a rank needs 0.00 GiB at least" not in said:
            raise Failure(said)


def main():
    with tempfile.TemporaryDirectory() as folder:
        t, failed = Automatic(os.path.abspath(sys.argv[1]), folder), 0
        # One thread makes a plan; the rates for it are measured with several.
        checks = (t.searched, t.partly, t.resumed, t.agreed, t.offloaded, t.refused)
        for check in checks[:1] if has_tsan(t.tool) else checks:
            try:
                skipped = check()
                print(f"skip  {check.__name__}: {skipped}" if skipped else f"ok    {check.__name__}")
            except Failure as e:
                failed += 1
                print(f"FAIL  {check.__name__}: {e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
