#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples of --help and of the man pages work, in a folder where their files exist.

usage: examples.py FIXTURES FSDPCK [FSDPTRAIN]"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from verbs import ask, verbs

fixtures, *tools = map(os.path.abspath, sys.argv[1:])


def prepare(cwd):
    model = os.path.join(cwd, "model")
    shutil.copytree(os.path.join(fixtures, "tiny-llama-tied"), model)
    for other in ("tuned", "model-a", "model-b"):
        os.symlink("model", os.path.join(cwd, other))
    shutil.copytree(os.path.join(fixtures, "lora-run"), os.path.join(cwd, "lora-run"))
    os.symlink(os.path.join(fixtures, "tiny-flux2"), os.path.join(cwd, "flux2-klein"))
    os.symlink(os.path.join(fixtures, "pictures"), os.path.join(cwd, "pictures"))
    os.symlink("model", os.path.join(cwd, "tiny-llama-tied"))  # the base that lora-run names
    shutil.copy(os.path.join(fixtures, "chat.jsonl"), cwd)
    shutil.copy(os.path.join(fixtures, "trainers", "accelerate-fsdp1.yaml"), os.path.join(cwd, "accelerate.yaml"))
    shutil.copy(os.path.join(fixtures, "trainers", "training_args.json"), cwd)
    for run in ("first", "second"):
        os.makedirs(os.path.join(cwd, "runs", run))
        with open(os.path.join(cwd, "runs", run, "metrics.jsonl"), "w", encoding="utf-8") as f:
            f.write('{"step": 1, "loss": 2.5}\n')
    for args in (["export", model, "full.safetensors"], ["convert", model, "step-000200", "--ranks", "2"]):
        subprocess.run([tools[0], *args], cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def examples(tool, verb):
    said = ask(tool, verb, "--help").split("\nExamples:\n")
    return re.findall(r"^  (.*)$", said[1], re.M) if len(said) > 1 else []


def run(line, cwd, env):
    done = subprocess.run(line, shell=True, cwd=cwd, env=env, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def serve(line, cwd, env):
    """A server prints its address, and ends when it is asked to. Its port may be taken, or it was built without."""
    p = subprocess.Popen("exec " + line, shell=True, cwd=cwd, env=env, text=True, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = p.stdout.readline()
    p.terminate()
    said += p.communicate()[0]
    excused = "already in use" in said or "built without it" in said
    return 0 if excused else p.returncode, said


def main():
    bad = count = 0
    bin_path = os.pathsep.join({os.path.dirname(tool) for tool in tools})
    env = dict(os.environ, PATH=bin_path + os.pathsep + os.environ["PATH"])
    order = ["init"]  # writes the config of the others
    with tempfile.TemporaryDirectory() as cwd:
        prepare(cwd)
        env["HOME"] = env["XDG_STATE_HOME"] = cwd
        for tool in tools:
            for verb in sorted(verbs(tool), key=lambda v: v not in order):
                found = examples(tool, verb)
                if not found:
                    print("%s has no example" % verb)
                    bad += 1
                for line in found:
                    code, said = serve(line, cwd, env) if verb in ("ui", "serve") else run(line, cwd, env)
                    count += 1
                    if code:
                        print("%s\n%s= %d" % (line, said, code))
                        bad += 1
    print("%d examples, %d bad" % (count, bad))
    return bad > 0


sys.exit(main())
