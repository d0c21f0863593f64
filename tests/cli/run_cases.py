#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fsdpck tool on the cases in tests/cli/cases/*.txt and compares stdout, stderr and exit code.

usage: run_cases.py BINARY [CASE.txt ...]

A case file is a list of commands with what they must print. Every file runs in an empty folder of its own, which holds
what fixtures() below writes, with the tool as `fsdpck` on the PATH:

    # a comment
    $ fsdpck convrt                 a command for /bin/sh
    | one line of its stdout
    ! one line of its stderr
    = 2                             its exit code; 0 where no line says it

`tty$` instead of `$` gives the command a terminal of 100 columns for stdout and stderr; what it prints there are the
`|` lines. A line `| ...` stands for any number of lines, `<*>` inside a line for any text. Before comparing, what
changes from run to run is replaced: the folder by <TMP>, UUIDs by <ID>, seconds by <T>, rates by <RATE>. `flip FILE
HEX` (on the PATH too) inverts the first byte of the only place in FILE that holds these bytes. `tensors FILE
NAME=SHAPE:VALUE …` writes a safetensors file of float32 tensors, all elements VALUE: `tensors a.safetensors
l.0.q.lora_A.weight=2,4:0.5`; NAME=SHAPE:i8 makes them int8 zeros, NAME=SHAPE:F8_E4M3 (or another name of safetensors
for a dtype) zeros of that dtype, and F8_E4M3@38 bytes of 0x38.
"""
import difflib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 1800  # a command that takes longer hangs

DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I8": 1, "I32": 4, "I64": 8}

FLIP = """#!{python}
import sys
name, pattern = sys.argv[1], bytes.fromhex(sys.argv[2])
data = bytearray(open(name, "rb").read())
if data.count(pattern) != 1:
    sys.exit("flip: %s holds these bytes %d times" % (name, data.count(pattern)))
data[data.index(pattern)] ^= 0xFF
open(name, "wb").write(data)
"""

TENSORS = """#!{python}
import sys
sys.path.insert(0, {here!r})
from run_cases import DTYPE_BYTES, floats, write_safetensors
out = {{}}
for spec in sys.argv[2:]:
    name, _, rest = spec.rpartition("=")
    shape, _, value = rest.partition(":")
    shape = [int(n) for n in shape.split(",") if n]
    count = 1
    for n in shape:
        count *= n
    dtype, _, byte = ("I8" if value == "i8" else value).partition("@")
    if dtype in DTYPE_BYTES:
        out[name] = (dtype, shape, bytes([int(byte or "0", 16)]) * (count * DTYPE_BYTES[dtype]))
    else:
        out[name] = ("F32", shape, floats([float(value)] * count))
write_safetensors(sys.argv[1], out)
"""


def write_safetensors(path, tensors, metadata=None):
    header, blob = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)


def floats(values):
    return struct.pack("<%df" % len(values), *values)


def fixtures(folder):
    """tiny.safetensors, other.safetensors (weight differs in two elements, step is missing), types.safetensors,
    big.safetensors (256 MiB of zeros, sparse), hf/."""
    tiny = {
        "layer.weight": ("F32", [6, 4], floats([i / 4 for i in range(24)])),
        "layer.bias": ("F32", [6], floats([0.1, -0.2, 0.3, 1e-7, 1e20, -0.0])),
        "norm": ("BF16", [3], struct.pack("<3H", 0x3F80, 0x3DCD, 0x4000)),
        "step": ("I64", [], struct.pack("<q", 7)),
    }
    other = dict(tiny)
    other["layer.weight"] = ("F32", [6, 4], floats([i / 4 + (0.5 if i in (3, 20) else 0) for i in range(24)]))
    other["norm"] = ("F32", [3], floats([1.0, 0.1, 2.0]))
    other["extra"] = ("U8", [2], b"\1\2")
    del other["step"]
    types = {
        "f64": ("F64", [4], struct.pack("<4d", 0.1, 1e-300, 123456789.125, float("inf"))),
        "f16": ("F16", [3], struct.pack("<3e", 0.1, 65504.0, float("nan"))),
        "i8": ("I8", [3], struct.pack("<3b", -128, 0, 127)),
        "u64": ("U64", [2], struct.pack("<2Q", 0, 2**64 - 1)),
        "bool": ("BOOL", [2], b"\1\0"),
        "c64": ("C64", [2], floats([1.0, -2.0, 0.5, 3.0])),
        "empty": ("F32", [0, 3], b""),
        "grid": ("I32", [2, 2, 2], struct.pack("<8i", *range(8))),
        "long": ("I32", [200, 200], struct.pack("<40000i", *range(40000))),
        "evil\x1b[2J\nname": ("U8", [1], b"\5"),
    }
    write_safetensors(os.path.join(folder, "tiny.safetensors"), tiny)
    write_safetensors(os.path.join(folder, "other.safetensors"), other)
    write_safetensors(os.path.join(folder, "types.safetensors"), types)
    with open(os.path.join(folder, "big.safetensors"), "wb") as f:
        text = json.dumps({"zeros": {"dtype": "F32", "shape": [8192, 8192], "data_offsets": [0, 4 << 26]}}).encode()
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + (4 << 26))
    os.mkdir(os.path.join(folder, "hf"))
    write_safetensors(os.path.join(folder, "hf", "model.safetensors"), tiny, {"format": "pt"})
    with open(os.path.join(folder, "hf", "config.json"), "w") as f:
        json.dump({"model_type": "llama", "dtype": "float32"}, f)


def cached_model(folder):
    """org/name with refs/main, org/two with two snapshots and no refs, org/bad whose refs/main leads out of the
    cache."""
    hub = os.path.join(folder, "hub")
    for model, snapshots, ref in [("name", ["0123abc"], "0123abc\n"), ("two", ["aaa", "bbb"], None),
                                  ("bad", ["aaa"], "../../..")]:
        base = os.path.join(hub, "models--org--" + model)
        for snapshot in snapshots:
            shutil.copytree(os.path.join(folder, "hf"), os.path.join(base, "snapshots", snapshot))
        if ref:
            os.mkdir(os.path.join(base, "refs"))
            with open(os.path.join(base, "refs", "main"), "w") as f:
                f.write(ref)


class Step:
    def __init__(self, line, command, tty):
        self.line, self.command, self.tty = line, command, tty
        self.stdout, self.stderr, self.code = [], [], 0


def parse(path):
    steps = []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            line = line.rstrip("\n")
            mark, _, text = line.partition(" ")
            if mark in ("$", "tty$"):
                steps.append(Step(number, text, mark == "tty$"))
            elif not line or mark == "#":
                continue
            elif mark not in ("|", "!", "=") or not steps:
                sys.exit("%s:%d: no such kind of line" % (path, number))
            elif mark == "|":
                steps[-1].stdout.append(text)
            elif mark == "!":
                steps[-1].stderr.append(text)
            else:
                steps[-1].code = int(text)
    return steps


def normalise(text, folder):
    text = text.replace(folder, "<TMP>")
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<ID>", text)
    text = re.sub(r"\bin \d+(\.\d+)? s\b", "in <T>", text)
    text = re.sub(r"\(\d+(\.\d+)? [kMGT]?B/s\)", "(<RATE>)", text)
    return re.sub(r'"seconds":[0-9.e+-]+', '"seconds":<T>', text)


def matches(wanted, found):
    """Whether the lines found are the lines wanted, '...' being any number of them."""
    pattern = ""
    for line in wanted:
        pattern += (
            r"(?:[^\n]*\n)*?" if line == "..." else ".*".join(re.escape(part) for part in line.split("<*>")) + r"\n"
        )
    return re.fullmatch(pattern, "".join(line + "\n" for line in found)) is not None


def run_plain(command, folder, env):
    p = subprocess.run(["/bin/sh", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True,
                       timeout=LIMIT_S)
    return p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace"), p.returncode


def run_tty(command, folder, env):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 30, 100, 0, 0))
    p = subprocess.Popen(["/bin/sh", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=slave,
                         stderr=slave)
    os.close(slave)
    out = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # EIO: the last user of the terminal is gone
            break
        if not piece:
            break
        out += piece
    os.close(master)
    return out.decode("utf-8", "replace").replace("\r\n", "\n"), "", p.wait(timeout=LIMIT_S)


def compare(name, wanted, found):
    if matches(wanted, found):
        return ""
    return "  %s:\n%s" % (name, "".join("    %s\n" % line for line in difflib.ndiff(wanted, found) if line[0] != "?"))


def run_file(path, env, bin_folder):
    failed = passed = 0
    with tempfile.TemporaryDirectory(prefix="fsdpck-cli-") as base:
        folder = os.path.realpath(base)
        fixtures(folder)
        cached_model(folder)
        case_env = dict(env, PATH=bin_folder + os.pathsep + env["PATH"], HOME=folder,
                        HF_HUB_CACHE=os.path.join(folder, "hub"))
        for step in parse(path):
            stdout, stderr, code = (run_tty if step.tty else run_plain)(step.command, folder, case_env)
            report = compare("stdout", step.stdout, normalise(stdout, folder).splitlines())
            report += compare("stderr", step.stderr, normalise(stderr, folder).splitlines())
            if code != step.code:
                report += "  exit code: wanted %d, found %d\n" % (step.code, code)
            if report:
                print("%s:%d: %s\n%s" % (os.path.basename(path), step.line, step.command, report), end="")
                failed += 1
            else:
                passed += 1
    return passed, failed


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    binary = os.path.abspath(sys.argv[1])
    if not os.access(binary, os.X_OK):
        sys.exit("run_cases.py: %s cannot be executed" % binary)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        # nohup and background shells hand on that these are ignored; the cases mean a plain shell
        signal.signal(number, signal.SIG_DFL)
    cases = sys.argv[2:] or sorted(
        os.path.join(HERE, "cases", n) for n in os.listdir(os.path.join(HERE, "cases")) if n.endswith(".txt"))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_"))}
    env["LC_ALL"] = "C"
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="fsdpck-bin-") as bin_folder:
        os.symlink(binary, os.path.join(bin_folder, "fsdpck"))
        for name, text in (("flip", FLIP), ("tensors", TENSORS)):
            script = os.path.join(bin_folder, name)
            with open(script, "w") as f:
                f.write(text.format(python=sys.executable, here=HERE))
            os.chmod(script, stat.S_IRWXU)
        for case in cases:
            p, f = run_file(case, env, bin_folder)
            passed, failed = passed + p, failed + f
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
