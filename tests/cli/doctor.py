#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""doctor.py BINARY: `fsdpck doctor` makes no false alarm on good folders, and finds each defect, and only that one."""
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

from doctor_defects import COMPARED, DEEP, DEFECTS, RUNS, fused_adapter, make_other_family, new_tokens, row_of
from doctor_folders import FIXTURES, Model, make_runs, make_sources
from doctor_models import check_models, make_model

GOLDENS = os.path.join(os.path.dirname(FIXTURES), "tests", "train", "goldens")


def run(binary, folder, *more):
    p = subprocess.run([binary, "doctor", folder, "--json", *more], capture_output=True, text=True, timeout=60)
    return p.returncode, json.loads(p.stdout), p.stderr


def good_folders(at):
    for name in ("llama", "fp8", "fp8-mixed", "zero", "megatron", "adapter", "moe", "qwen3_5_moe", "another", "whole"):
        yield os.path.join(at, name)
    for top in (FIXTURES, GOLDENS):
        for folder, _, files in os.walk(top):
            if any(f.endswith(".safetensors") for f in files):
                yield folder


def check_good(binary, at):
    failures = []
    code, said, _ = run(binary, os.path.join(at, "dcp"))
    if code != 0 or said["findings"] or said["tensors"] == 0:
        failures.append("a DCP directory is good: exit %d, %s" % (code, said))
    for folder in good_folders(at):
        code, said, _ = run(binary, folder, "--deep")
        if folder.endswith("dcp/slices/ckpt"):
            if code != 3 or "slices" not in said["error"]:
                failures.append("%s is no model: exit %d, %s" % (folder, code, said))
        elif os.path.basename(folder) == "start_adapter" and code == 1:
            failures += ["%s: %s" % (folder, f) for f in said["findings"] if f["check"] != "lora-untrained"]
        elif code != 0 or [f for f in said["findings"] if f["check"] != "lora-consumer"]:
            failures.append("%s is good: exit %d, %s" % (folder, code, said))
    trained = os.path.join(at, "trained")
    shutil.copytree(os.path.join(at, "llama"), trained)
    new_tokens(Model(trained), lambda data, n: row_of(data, n, 6) + row_of(data, n, 7))
    shutil.copytree(os.path.join(at, "adapter"), os.path.join(at, "fused-adapter"))
    fused_adapter()(Model(os.path.join(at, "fused-adapter")))
    for name, base, *more in (("llama", "llama", "--deep"), ("trained", "llama", "--deep"), ("fp8", "fp8", "--deep"),
                              ("adapter", "llama", "--deep"), ("fused-adapter", "qwen3_5_moe")):
        code, said, _ = run(binary, os.path.join(at, name), "--base", os.path.join(at, base), *more)
        if code != 0 or [f for f in said["findings"] if f["check"] != "unchanged"]:
            failures.append("%s is good beside %s: exit %d, %s" % (name, base, code, said))
    return failures


def check_defect(binary, at, source, base, severity, check, subject, spoil, *more, count=1):
    folder = os.path.join(at, "it's spoiled; exit")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(at, source), folder)
    spoil(Model(folder))
    code, said, _ = run(binary, folder, *(["--base", os.path.join(at, base)] if base else []), *more)
    found = [(f["severity"], f["check"]) for f in said.get("findings", [])]
    title = "%s of %s (%s)" % (check, source, subject)
    if found != [(severity, check)] * count:
        return ["%s: exit %d, found %s" % (title, code, said)]
    f = next(f for f in said["findings"] if f["check"] == check)
    failures = [] if subject is None or f["subject"] == subject else ["%s: the subject is %s" % (title, f)]
    if code != (1 if severity == "error" else 0):
        failures.append("%s: exit %d" % (title, code))
    if not (f["found"] and f["expected"] and f["mend"]):
        failures.append("%s: half a finding: %s" % (title, f))
    return failures + check_mend(binary, folder, f["mend"], os.path.join(at, base or source))


# Advices that begin with another step, or are for an adapter whose base is not at hand. A command that shows
# differences exits with 1.
PREPARED = ("put the adapter's adapter_config.json", "put the writer's release", "if fsdpck verify finds nothing wrong",
            "for other programs")


def check_mend(binary, folder, mend, good):
    """A command at the end of an advice can be typed. Where it is all of the advice, it makes a good folder. The good
    folder is its BASE."""
    if "fsdpck " not in mend or mend.startswith(PREPARED):
        return []
    mended = folder + "-mended"
    shutil.rmtree(mended, ignore_errors=True)
    begin = mend.index("mv '" if " mv '" in mend else "fsdpck ")
    words = [{"OUT": mended, "BASE": good}.get(word, word) for word in shlex.split(mend[begin:])]
    p = subprocess.run(" ".join("&&" if w == "&&" else shlex.quote(binary if w == "fsdpck" else w) for w in words),
                       shell=True, capture_output=True, text=True)
    if not mend.startswith("fsdpck export "):
        return [] if p.returncode in (0, 1) else ["'%s' cannot be typed: %s" % (mend, p.stderr)]
    code, said, _ = run(binary, mended) if p.returncode == 0 else (3, p.stderr, "")
    return [] if code == 0 and not said["findings"] else ["'%s' mends nothing: %s" % (mend, said)]


def check_consumers(binary, at):
    """--for makes errors of what this program refuses or ignores, and of nothing else."""
    folder = os.path.join(at, "for")
    shutil.copytree(os.path.join(at, "adapter"), folder)
    Model(folder).json("adapter_config.json", alpha_pattern={"q_proj": 3}, use_rslora=True)
    failures = []
    for consumer, wanted in (("vllm", []), ("llama.cpp", ["use_rslora", "alpha_pattern"]),
                             ("peft-0.5", ["use_rslora", "alpha_pattern"])):
        code, said, _ = run(binary, folder, "--for", consumer)
        found = [f["subject"] for f in said["findings"] if f["severity"] == "error"]
        if found != wanted or code != (1 if wanted else 0):
            failures.append("--for %s: exit %d, found %s" % (consumer, code, said))
    code, said, _ = run(binary, os.path.join(at, "llama"), "--for", "vllm")
    if code != 2 or "is no adapter" not in said["error"]:
        failures.append("--for of a model: exit %d, %s" % (code, said))
    return failures


def check_refused(binary, at):
    empty = os.path.join(at, "empty")
    os.mkdir(empty)
    for more in (["--deep"], ["--base", os.path.join(at, "llama")]):
        code, said, _ = run(binary, os.path.join(at, "dcp"), *more)
        if code != 2 or more[0] + " is for models" not in said["error"]:
            return ["%s of a training's folder: %d, %s" % (more[0], code, said)]
    code, said, _ = run(binary, empty)
    return [] if code == 3 and "is no Hugging Face folder" in said["error"] else ["empty folder: %d, %s" % (code, said)]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    binary = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="fsdpck-doctor-") as at:
        make_sources(binary, at)
        make_runs(at)
        make_model(os.path.join(at, "whole"), "qwen3_5_moe_text")
        shutil.copytree(os.path.join(at, "llama"), os.path.join(at, "another"))
        make_other_family(Model(os.path.join(at, "another")))
        failures = check_good(binary, at) + check_refused(binary, at) + check_consumers(binary, at)
        failures += check_models(lambda folder: run(binary, folder)[1]["findings"], at)
        for source, severity, check, subject, spoil, *count in DEFECTS + RUNS:
            failures += check_defect(binary, at, source, None, severity, check, subject, spoil, count=sum(count) or 1)
        for row in COMPARED:
            failures += check_defect(binary, at, *row)
        for row in DEEP:
            failures += check_defect(binary, at, *row, "--deep")
    for line in failures:
        print("FAIL %s" % line)
    print("%d defects, %d failures" % (len(DEFECTS) + len(RUNS) + len(COMPARED) + len(DEEP), len(failures)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
