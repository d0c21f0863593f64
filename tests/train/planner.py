#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`fsdptrain plan` with rates: the times that it predicts, and files of rates that are damaged, lie or cannot be kept.

usage: planner.py FSDPTRAIN [--quick]: one plan of each kind, and all files"""
import json, os, pathlib, subprocess, sys, tempfile

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "fixtures"
RATES = FIXTURES / "rates/two-processors.json"
DEVICE = FIXTURES / "rates/h100.json"


class Failure(Exception):
    pass


class Planner:

    def __init__(self, tool, folder):
        self.tool, self.dir = tool, pathlib.Path(folder)
        rows = [{"input_ids": [i + 3 for i in range(24)], "labels": [i + 3 for i in range(24)]}] * 8
        (self.dir / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        config = {
            "model": str(FIXTURES / "tiny-llama-tied"), "output_dir": "out",
            "data": {"train": "rows.jsonl", "seq_len": 24},
            "train": {"max_steps": 2, "global_batch_size": 4, "micro_batch_size": 1},
        }
        (self.dir / "full.json").write_text(json.dumps(config))
        config["lora"] = {"r": 4, "lora_alpha": 8}
        (self.dir / "lora.json").write_text(json.dumps(config))

    def call(self, *args, want=0, cache="cache", home=None):
        env = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "HOME")}
        env.update({"XDG_CACHE_HOME": str(self.dir / cache)} if cache else {}, **({"HOME": home} if home else {}))
        done = subprocess.run([self.tool, "plan", *map(str, args)], cwd=self.dir, env=env, capture_output=True,
                              text=True, timeout=300)
        if want is not None and done.returncode != want:
            raise Failure(f"{args}: exit {done.returncode}, {want} is wanted: {done.stdout}{done.stderr}")
        return done

    def plan(self, *args, rates=RATES, **more):
        return json.loads(self.call(*args, "--json", "--rates", rates, **more).stdout)

    def write_rates(self, name, change):
        rates = json.loads(RATES.read_text())
        change(rates)
        path = self.dir / name
        path.write_text(json.dumps(rates))
        return path

    def same_rates(self):
        """The same rates give the same times, and the bytes do not depend on them."""
        for config in ("lora.json", "full.json"):
            first, again = (self.plan(config, "--ranks", 2, "--gather", "copy") for _ in range(2))
            if first != again or not first["step_seconds"] > first["exposed_seconds"] > 0:
                raise Failure(f"{first} {again}")
            without = json.loads(self.call(config, "--ranks", 2, "--gather", "copy", "--json", cache=None).stdout)
            if without["step_seconds"] is not None:
                raise Failure("a time without rates")
            if any(without[k] != first[k] for k in first if k not in (
                    "step_seconds", "exposed_seconds", "tokens_per_step")):
                raise Failure("other bytes with rates than without")

    def proportions(self):
        """Twice the rates take half the time; a rank with half the threads takes longer; so do more tokens, and
        recomputed blocks."""
        twice = self.write_rates(
            "twice.json", lambda r: r.update(rates={k: 2 * v for k, v in r["rates"].items()}))
        for rates, factor in ((RATES, 1), (twice, 2)):
            seconds = factor * self.plan("lora.json", rates=rates)["step_seconds"]
            if factor == 1:
                one = seconds
            elif abs(seconds / one - 1) > 1e-9:
                raise Failure(f"{one} and {seconds}")
        for more in (["--threads", 1], ["--set", "train.global_batch_size=8"],
                     ["--set", "fsdp.activation_checkpointing=block"], ["--set", "dtype.param=fp32"]):
            if not self.plan("lora.json", *more)["step_seconds"] > 1.001 * one:
                raise Failure(f"{more} costs nothing")

    def devices(self):
        """Where each rank has a device, a slower link is never faster, and only what is exposed costs."""
        seconds = []
        for link in (1e15, 1e11, 1e9, 1e7):
            def change(rates):
                rates["cores"] = 0
                rates["rates"]["link"] = link
            rates = self.write_rates("link.json", change)
            plan = self.plan("full.json", "--ranks", 4, "--gather", "copy", rates=rates)
            seconds.append((plan["step_seconds"], plan["exposed_seconds"]))
        if seconds != sorted(seconds) or not seconds[-1][0] > 2 * seconds[0][0]:
            raise Failure(f"{seconds}")
        if abs((seconds[-1][0] - seconds[0][0]) / (seconds[-1][1] - seconds[0][1]) - 1) > 1e-6:
            raise Failure(f"other differences: {seconds}")
        if not self.plan("full.json", rates=DEVICE)["step_seconds"] > 0:
            raise Failure("a device")

    def disks(self):
        """A slow disk costs the time of all that passes through it, and without fsdp.offload none."""
        rates = [self.write_rates(f"disk{i}.json", lambda r, d=disk: r["rates"].update(disk=d))
                 for i, disk in enumerate((1e15, 1e6))]
        state = ["--set", f"fsdp.offload={self.dir}/", "--set", "fsdp.offload_memory=100000"]
        slower = []
        for more in ([], state, [*state, "--set", "fsdp.offload_gradients=true"],
                     [*state, "--set", "fsdp.offload_gradients=true", "--set", "fsdp.offload_params=true"]):
            plans = [self.plan("full.json", *more, rates=r) for r in rates]
            slower.append(plans[1]["step_seconds"] - plans[0]["step_seconds"])
        if slower[0] != 0 or slower != sorted(set(slower)):
            raise Failure(f"{slower}")
        seconds = 2 * plans[0]["offload_bytes_per_step"] / 1e6
        if not 0.5 * seconds < slower[1] <= seconds:
            raise Failure(f"{seconds} {slower}")

    def hosts(self):
        """Ranks of a host share the ring and the parameters; a slower network is never faster; what cannot be is
        refused."""
        def several(*args, **more):
            return self.plan("full.json", "--ranks", 8, "--ranks-per-host", 4, "--set", "train.global_batch_size=8",
                             *args, **more)
        copies = self.plan("full.json", "--ranks", 8, "--gather", "copy")
        two, whole = several(), several("--set", "fsdp.sharding_strategy=HYBRID_SHARD")
        if two["gather_buffer_bytes"] != copies["gather_buffer_bytes"] // 4 or not two["exchange_buffer_bytes"]:
            raise Failure(f"{two}")
        if whole["gather_buffer_bytes"] or whole["gathered_bytes_per_step"] or whole["groups"][0]["when"] != (
                "never: whole on every host"):
            raise Failure(f"{whole}")
        traffic = [x["from_hosts_bytes_per_step"] for x in (copies, several("--gather", "copy"), two)]
        if traffic[:2] != [0, None] or not traffic[2]:
            raise Failure(f"bytes between hosts: none, not known, and some are wanted: {traffic}")
        if copies["exchange_buffer_bytes"] or whole["shard_bytes"] != 2 * two["shard_bytes"]:
            raise Failure("shards of a host, or buffers between hosts on one host")
        seconds = []
        for network in (1e15, 1e10, 1e8, 1e6):
            rates = self.write_rates("network.json", lambda r: r["rates"].update(network=network))
            seconds.append([several(*a, rates=rates)["step_seconds"]
                            for a in ((), ("--set", "fsdp.sharding_strategy=HYBRID_SHARD"))])
        if any(b < a for x, y in zip(seconds, seconds[1:]) for a, b in zip(x, y)) or not (
                seconds[-1][0] > seconds[-1][1] > 2 * seconds[0][1]):
            raise Failure(f"{seconds}")
        shape = ["full.json", "--set", f"model={FIXTURES / 'shapes/llama-8b'}"]
        paper = self.call(*shape, "--ranks", 65536, "--ranks-per-host", 8, "--rates", DEVICE)
        if "no weights: config.json alone is planned" not in paper.stderr or "(predicted)" not in paper.stdout:
            raise Failure(paper.stderr)
        for args, words, code in (((*shape, "--ranks", 65537), "65537 ranks: at most 65536", 2),
                                  (("full.json", "--ranks", 8, "--ranks-per-host", 3), "the same number of ranks", 2)):
            if words not in self.call(*args, "--rates", DEVICE, want=code).stderr:
                raise Failure(f"{words} is wanted")

    def many_groups(self):
        """More groups of other kinds than the table has rows: the row of those that it cannot tell apart says so."""
        model = self.dir / "deep"
        model.mkdir()
        config = json.loads((FIXTURES / "shapes/llama-8b/config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 130}))
        policy = [{"modules": [f"model.layers.{i}" for i in range(0, 130, 2)], "sharding_strategy": "NO_SHARD",
                   "param_dtype": "fp32"}]
        rows = self.plan("full.json", "--ranks", 4, "--gather", "copy", "--set", f"model={model}", "--set",
                         f"fsdp.policy={json.dumps(policy)}", rates=DEVICE)["groups"]
        words = [(r["strategy"], r["param_dtype"], r["when"]) for r in rows[1:-1]]
        if sum(r["groups"] for r in rows) != 132 or set(words[-1]) != {"several"} or any(
                ("several" in w) or w != words[i % 2] for i, w in enumerate(words[:-1])):
            raise Failure(f"{[r['groups'] for r in rows]} {words}")

    def search(self, *args, want=0):
        return json.loads(self.call(*args, "--search", "--json", "--rates", RATES, want=want).stdout)

    def searched(self):
        """Each candidate is what plan says of its settings, only what fits is chosen, and the fastest of that."""
        options = ["full.json", "--ranks", 4, "--gather", "copy", "--set", "train.micro_batch_size=4",
                   "--set", "train.global_batch_size=16"]
        largest = max(c["peak_bytes"] for c in self.search(*options, "--memory", "1GB")["candidates"])
        for limit in (1 << 30, largest - 1, largest // 2, largest // 8):
            known = self.limited(options, limit)
        if known["chosen"] is not None:
            raise Failure("something fits into an eighth")
        for more in (["--set", "fsdp.dp_shard_size=2"], ["--set", "fsdp.reshard_after_forward=2"]):
            passed = [c for c in self.search(*options, *more)["candidates"] if not c["valid"]]
            if not passed or any("key 'fsdp." not in c["why"] or c["fits"] for c in passed):
                raise Failure(f"{more}: {passed}")
        if {c["sharding_strategy"] for c in self.search("full.json", "--ranks", 2)["candidates"]} != {"FULL_SHARD"}:
            raise Failure("strategies are searched where ranks map each other's parameters")
        said = self.call(*options, "--search", "--rates", RATES, "--memory", "1GB", "-q").stdout
        if "chosen" not in said or "--set fsdp.sharding_strategy=" not in said:
            raise Failure(said)

    def limited(self, options, limit):
        memory = ["--memory", f"{limit}"]
        done = [self.call(*options, *memory, "--search", "--json", "--rates", RATES, want=None) for _ in range(2)]
        known = json.loads(done[0].stdout)
        if done[0].stdout != done[1].stdout or done[0].returncode != (1 if known["chosen"] is None else 0):
            raise Failure("another choice from the same rates, or the exit code")
        fitting = [c for c in known["candidates"] if c["fits"]]
        for c in known["candidates"]:
            plan = self.plan(*options, *memory, *self.keys(c))
            if any(plan[k] != c[k] for k in ("peak_bytes", "step_seconds", "exposed_seconds", "blocks_recomputed")):
                raise Failure(f"{c} and {plan}")
            if c["fits"] != (c["peak_bytes"] <= limit):
                raise Failure(f"{limit}: {c}")
        if fitting:
            chosen, fastest = known["candidates"][known["chosen"]], min(c["step_seconds"] for c in fitting)
            if not chosen["fits"] or chosen["step_seconds"] > 1.05 * fastest or chosen["why"] != "chosen":
                raise Failure(f"{limit}: {chosen}")
            if any(c["step_seconds"] <= 1.05 * fastest for c in known["candidates"][:known["chosen"]] if c["fits"]):
                raise Failure("one that comes before is as fast")
        return known

    @staticmethod
    def keys(c):
        prefetch = c["prefetch"]
        return ["--set", f"fsdp.sharding_strategy={c['sharding_strategy']}",
                "--set", f"fsdp.activation_checkpointing={c['activation_checkpointing']}",
                "--set", f"fsdp.forward_prefetch={prefetch}", "--set", f"fsdp.backward_prefetch={prefetch}"]

    def kept(self):
        """This machine's rates are measured once, kept whole, and measured again where the file is no good."""
        folder = self.dir / "kept/fsdpck"
        self.call("lora.json", "-q", cache="kept")
        path, = folder.iterdir()
        told = json.loads(path.read_text())
        if not told.pop("busy") >= 0:
            raise Failure("busy")
        path.write_text(json.dumps({"busy": 1e9, **told}, indent=2))
        self.call("lora.json", "-q", cache="kept")
        if json.loads(path.read_text())["busy"] >= 1e8:
            raise Failure("not measured again on a calmer machine")
        path.write_text(json.dumps({"busy": 0, **told}, indent=2))  # whatever else runs now
        before = path.read_bytes()
        if any(not v > 0 for v in told["rates"].values()) or told["cores"] < 1:
            raise Failure(before)
        if self.call("lora.json", cache="kept").stderr or path.read_bytes() != before:
            raise Failure("measured twice")
        for damage in (before[:100], b"", b"[]", before.replace(b'"version": 3', b'"version": 2')):
            path.write_bytes(damage)
            if "measured again" not in self.call("lora.json", cache="kept").stderr:
                raise Failure(f"nothing is told of {damage[:20]}")
            if json.loads(path.read_text())["machine"] != told["machine"] or len(list(folder.iterdir())) != 1:
                raise Failure("not replaced")
        path.write_bytes(before.replace(told["machine"].encode(), b"another machine"))
        self.call("lora.json", cache="kept")
        if json.loads(path.read_text())["machine"] != told["machine"]:
            raise Failure("the rates of another machine are used")

    def not_kept(self):
        """Rates that cannot be kept are used all the same, with a note; without a folder nothing is predicted."""
        (self.dir / "file").write_text("")
        done = self.call("lora.json", cache="file")
        if "measured anew each time" not in done.stderr or "(predicted)" not in done.stdout:
            raise Failure(done.stderr)
        if "(predicted)" in self.call("lora.json", cache=None).stdout:
            raise Failure("predicted without a folder")
        if "chosen" not in self.call("lora.json", "--search", cache=None).stdout:
            raise Failure("no search without a folder")
        self.call("lora.json", cache=None, home=str(self.dir / "home"))
        if not (self.dir / "home/.cache/fsdpck").is_dir():
            raise Failure("HOME is not used")

    def hostile(self):
        """Each file of rates that is no good is refused in one sentence."""
        def rate(value):
            return lambda r: r["rates"].update({"product.bf16": value})
        cases = [
            (lambda r: r.update(version=7), "rates of version 7"),
            (lambda r: r.pop("version"), "rates of version 0"),
            (lambda r: r.update(busy=-1), "less than 0"),
            (lambda r: r.update(machine=3), "names no machine"),
            (lambda r: r.update(machine="x" * 300), "names no machine"),
            (lambda r: r.update(cores=-1), "no number of processors"),
            (lambda r: r.update(cores=1 << 40), "no number of processors"),
            (lambda r: r.update(cores="2"), "no number of processors"),
            (lambda r: r.update(rates=[]), "lacks some"),
            (lambda r: r["rates"].pop("adamw"), "lacks some"),
            (lambda r: r["rates"].update(more=1), "lacks some"),
            (lambda r: r["rates"].update(more=r["rates"].pop("adamw")), "there is no rate 'adamw'"),
            (rate(0), "rate 'product.bf16'"), (rate(-1), "rate 'product.bf16'"), (rate(1e300), "rate 'product.bf16'"),
            (rate("4e11"), "rate 'product.bf16'"), (rate(None), "rate 'product.bf16'"),
        ]
        for i, (change, words) in enumerate(cases):
            self.refused(self.write_rates(f"hostile{i}.json", change), words)
        path = self.dir / "text.json"
        for text, words in ((b"", "no JSON"), (b"\xff\xfe", "no JSON"), (b"[" * 5000, "no JSON"), (b"3", "no JSON"),
                            (b" " * (1 << 16), "too long"), (b'{"version": 1, "version": 1}', "no JSON")):
            path.write_bytes(text)
            self.refused(path, words)
        os.mkfifo(self.dir / "pipe")
        self.refused(self.dir / "pipe", "it is no file")
        self.refused(self.dir, "it is no file")
        self.refused(self.dir / "nowhere.json", "nowhere.json")

    def refused(self, path, words):
        said = self.call("lora.json", "-q", "--rates", path, want=3).stderr
        if words not in said or len(said.splitlines()) > 2:
            raise Failure(f"{words} is wanted: {said}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        t, failed = Planner(os.path.abspath(sys.argv[1]), folder), 0
        checks = (t.same_rates, t.proportions, t.devices, t.disks, t.hosts, t.many_groups, t.searched, t.kept,
                  t.not_kept, t.hostile)
        for check in (t.same_rates, t.disks, t.not_kept, t.hostile) if "--quick" in sys.argv else checks:
            try:
                check()
                print(f"ok    {check.__name__}")
            except Failure as e:
                failed += 1
                print(f"FAIL  {check.__name__}: {e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
