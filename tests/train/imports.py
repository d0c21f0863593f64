#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`fsdptrain init --from`: configurations of other trainers in fixtures/trainers/, what each becomes, and files that
are refused.

usage: imports.py FSDPTRAIN"""
import json, pathlib, re, subprocess, sys, tempfile, tomllib

from imports_cases import REFUSED, TAKEN
from imports_small import SMALL

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "fixtures"


class Failure(Exception):
    pass


def leaves(tree, prefix=""):
    """The keys of a file: every key of the top level, and those inside where the report names these."""
    for key, value in tree.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from leaves(value, prefix + key + ".")


def flat_yaml(text):
    """The keys of the YAML fixtures, which have two levels."""
    section = ""
    for line in text.splitlines():
        found = re.match(r"(\s*)(\w+):\s*(.*)$", line)
        if found and not found[1]:
            section = found[2] + "."
            yield found[2]
        elif found and not line.lstrip().startswith("-"):
            yield section + found[2]


class Imports:

    def __init__(self, tool, folder):
        self.tool, self.dir = tool, pathlib.Path(folder)

    def init(self, *args, want=0):
        done = subprocess.run([self.tool, "init", *map(str, args), "--out", "out.json", "--force"],
                              cwd=self.dir,
                              capture_output=True,
                              text=True,
                              timeout=60)
        if done.returncode != want:
            raise Failure(f"exit {done.returncode}, {want} is wanted: {done.stdout[-600:]}{done.stderr[-600:]}")
        return done

    def written(self):
        config = json.loads((self.dir / "out.json").read_text())
        return {k: v for k, v in config.items() if k != "//"}

    def taken(self, files, config, notes):
        done = self.init(*[a for f in files for a in ("--from", FIXTURES / "trainers" / f)])
        if self.written() != config:
            raise Failure(f"{files}: {self.written()}, and {config} is wanted")
        lines = [line.split(": ", 1)[1] for line in done.stdout.splitlines() if line.startswith(str(FIXTURES))]
        said = [
            line for line in lines[1:]
            if not re.match(r"taken over: |asks for nothing here: |left out, and taken over", line)
        ]
        if len(said) != len(notes) or not all(line.startswith(note) for line, note in zip(sorted(said), sorted(notes))):
            raise Failure(f"{files}: notes {said}, and {notes} are wanted")
        self.all_named(FIXTURES / "trainers" / files[0], lines)

    def all_named(self, path, lines):
        """No key of the file goes without a word."""
        text = path.read_text()
        keys = leaves(json.loads(text)) if path.suffix == ".json" else leaves(
            tomllib.loads(text)) if path.suffix == ".toml" else flat_yaml(text)
        named = {word for line in lines for word in re.findall(r"[\w.]+", line)}
        missing = [
            k for k in keys
            if k not in named and k.rsplit(".", 1)[0] not in named and not any(n.startswith(k + ".") for n in named)
        ]
        if missing:
            raise Failure(f"{path.name}: nothing is said of {missing}")

    def together(self):
        """accelerate's number of processes makes the batch, --ranks does without it, and two files may not contradict
        each other."""
        files = [
            "--from", FIXTURES / "trainers/accelerate-fsdp1.yaml", "--from", FIXTURES / "trainers/training_args.json"
        ]
        self.init(*files)
        if self.written()["train"]["global_batch_size"] != 2 * 4 * 4 or self.written()["dtype"]["reduce"] != "bf16":
            raise Failure(f"batch of four processes: {self.written()}")
        self.init("--from", FIXTURES / "trainers/training_args.json", "--ranks", 3)
        if self.written()["train"]["global_batch_size"] != 2 * 4 * 3:
            raise Failure(f"batch of three ranks: {self.written()}")
        for name, text in (("a.yaml", "learning_rate: 1e-4\nfp16: true\n"), ("b.yaml", "learning_rate: '2e-4'\n"),
                           ("c.yaml", "output_dir: x\nlearning_rate: 0.0001\n")):
            (self.dir / name).write_text(text)
        done = self.init("--from", "a.yaml", "--from", "b.yaml", want=3)
        if done.stderr != ("fsdptrain: b.yaml: key 'learning_rate' makes train.learning_rate 0.0002, and a.yaml: "
                           "learning_rate makes it 0.0001: take out one of the two\n"):
            raise Failure(done.stderr)
        (self.dir / "d.yaml").write_text("distributed_type: FSDP\nmixed_precision: 'no'\n")
        (self.dir / "e.yaml").write_text("max_length: 9\n")
        self.init("--from", "d.yaml", "--from", "e.yaml")
        if self.written()["dtype"]["param"] != "bf16":
            raise Failure(f"TRL computes in bf16 unless told otherwise, also beside 'no': {self.written()}")
        self.init("--from", "a.yaml", "--from", "c.yaml")
        if self.written()["train"]["learning_rate"] != 1e-4:
            raise Failure(f"an equal value: {self.written()}")
        done = self.init("--from", "a.yaml")
        if "dtype" in self.written() or "fp16 true: fsdptrain computes in bf16 or fp32" not in done.stdout:
            raise Failure(f"fp16: {self.written()}")

    def planned(self):
        """With a model and data, the config is planned and runs; the command line goes over the files."""
        model, data = FIXTURES / "tiny-llama-tied", FIXTURES / "chat.jsonl"
        done = self.init(model, data, "--from", FIXTURES / "trainers/sft.yaml", "--output-dir", "runs/here")
        config = self.written()
        if config["model"] != str(model) or config["output_dir"] != "runs/here" or config["train"][
                "global_batch_size"] != 16 or "warmup_ratio" not in config["train"]:
            raise Failure(f"planned: {config}")
        if "MODEL, DATA and --output-dir of the command line replace those of the files" not in done.stdout:
            raise Failure(done.stdout)
        if "--ranks 1" not in done.stdout.splitlines()[-1]:
            raise Failure(done.stdout[-300:])
        self.init(model, data, "--from", FIXTURES / "trainers/accelerate-fsdp1.yaml", "--from",
                  FIXTURES / "trainers/training_args.json", "--full")
        config = self.written()
        if "num_train_epochs" in config["train"] or "lora" in config or config["train"]["learning_rate"] != 1e-4:
            raise Failure(f"max_steps, --full: {config}")
        done = self.init(model, data, "--from", FIXTURES / "trainers/sft.yaml", "--full", want=2)
        if "--full trains every parameter, and the files of --from set up an adapter" not in done.stderr:
            raise Failure(done.stderr)
        run = subprocess.run([self.tool, "plan", "out.json", "--ranks", "4", "-q"],
                             cwd=self.dir,
                             capture_output=True,
                             text=True,
                             timeout=60)
        if run.returncode:
            raise Failure(f"the config does not plan: {run.stderr}")
        done = subprocess.run([self.tool, "init", model], cwd=self.dir, capture_output=True, text=True, timeout=60)
        if done.returncode != 2 or "DATA is missing; usage: fsdptrain init MODEL DATA" not in done.stderr:
            raise Failure(done.stderr)

    def local_data(self):
        """A data set that is a file here is taken over."""
        (self.dir / "d.jsonl").write_text('{"text": "a b c"}\n' * 4)
        (self.dir / "sft.yaml"
         ).write_text(f"model_name_or_path: {FIXTURES / 'tiny-llama-tied'}\ndataset_name: d.jsonl\nmax_length: 128\n")
        done = self.init("--from", "sft.yaml")
        config = self.written()
        if config["data"]["train"] != "d.jsonl" or config["lora"] is not None or "4 documents" not in done.stdout:
            raise Failure(f"{config} {done.stdout}")

    def quantized(self):
        """load_in_4bit of a model that is quantized already asks for nothing more."""
        export = [self.tool.with_name("fsdpck"), "export", FIXTURES / "tiny-llama-tied", "nf4"]
        subprocess.run([*export, "--quantize", "nf4", "-q"], cwd=self.dir, check=True, timeout=60,
                       stdout=subprocess.DEVNULL)
        (self.dir / "qlora.yaml").write_text("base_model: nf4\nadapter: qlora\nload_in_4bit: true\n"
                                             "lora_target_linear: true\nsequence_len: 128\n")
        done = self.init("nf4", FIXTURES / "chat.jsonl", "--from", "qlora.yaml")
        if "dtype" in self.written() or "the model is quantized already, and stays as it is stored" not in done.stdout:
            raise Failure(f"{self.written()} {done.stdout}")
        self.init(FIXTURES / "tiny-llama-tied", FIXTURES / "chat.jsonl", "--from", "qlora.yaml")
        if self.written()["dtype"] != {"base": "nf4"}:
            raise Failure(self.written())

    def small(self, text, keys, note):
        """Keys that need more than a copy."""
        (self.dir / "small.yaml").write_text(text)
        done = self.init("--from", "small.yaml")
        config = self.written()
        for key, value in keys.items():
            section, _, name = key.rpartition(".")
            got = (config.get(section) or {} if section else config).get(name)
            if got != value:
                raise Failure(f"{text!r}: {key} is {got}, {value} is wanted: {config}")
        if note and f"\nsmall.yaml: {note}" not in done.stdout:
            raise Failure(f"{text!r}: '{note}' is wanted: {done.stdout}")

    def refused(self, text, words):
        (self.dir / "bad.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        (self.dir / "out.json").unlink(missing_ok=True)
        done = self.init("--from", "bad.yaml", want=3)
        if words not in done.stderr or not done.stderr.startswith("fsdptrain: bad.yaml") or done.stderr.count(
                "\n") != 1 or done.stdout:
            raise Failure(f"{text[:60]!r}: '{words}' is wanted in one line: {done.stderr[:400]}{done.stdout}")
        if list(self.dir.glob("out.json*")):
            raise Failure(f"{text[:60]!r}: refused, and {list(self.dir.glob('out.json*'))} is left")


def main():
    with tempfile.TemporaryDirectory() as folder:
        t = Imports(pathlib.Path(sys.argv[1]).resolve(), folder)
        checks = [(t.taken, case)
                  for case in TAKEN] + [(t.together, ()), (t.planned, ()),
                                        (t.local_data, ()), (t.quantized, ())] + [(t.small, case)
                                                               for case in SMALL] + [(t.refused, case)
                                                                                     for case in REFUSED]
        failed = 0
        for check, case in checks:
            try:
                check(*case)
            except (Failure, subprocess.TimeoutExpired) as e:
                failed += 1
                print(f"FAIL {check.__name__}: {e}")
        print(f"{len(checks) - failed} passed, {failed} failed")
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
