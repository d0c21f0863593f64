# SPDX-License-Identifier: Apache-2.0
"""What the damage tests share: running the tool under limits, small sources, and counting what fails. Standard library
only."""
import json
import multiprocessing
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading

LIMIT_S = 1800           # a command that takes longer hangs
MEMORY_MAX = 64 << 20    # resident, for what is small or refused
SANITIZED = "FSDPCK_SANITIZED" in os.environ  # its memory is not ours to judge
# What a sanitizer finds must not look like one of the tool's own exit codes.
ENVIRONMENT = dict(
    os.environ, **{
        name: os.environ.get(name, "") + ":halt_on_error=1:exitcode=99:allocator_may_return_null=1"
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS")
    })


class Result:
    def __init__(self, status, out, err, rss):
        self.status, self.out, self.err, self.rss = status, out, err, rss

    def __str__(self):
        return "exit %d\n  stdout: %s\n  stderr: %s" % (self.status, self.out.strip(), self.err.strip())


def command(argv, cwd, limits):
    """Runs it to its end, which comes within LIMIT_S."""
    def limit():
        for which, value in limits:
            resource.setrlimit(which, (value, value))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        p = subprocess.Popen(argv, stdout=out, stderr=err, cwd=cwd, env=ENVIRONMENT,
                             preexec_fn=limit if limits else None)
        watch = threading.Timer(LIMIT_S, p.kill)
        watch.start()
        _, wait, usage = os.wait4(p.pid, 0)
        watch.cancel()
        p.returncode = os.waitstatus_to_exitcode(wait)
        out.seek(0), err.seek(0)
        return Result(p.returncode,
                      out.read().decode(errors="replace"),
                      err.read().decode(errors="replace"), usage.ru_maxrss * 1024)


class Launcher:
    """A process that does nothing but start commands, and stays small: to Linux, a command's peak of memory is at least
    that of the process which it was before exec, a copy of the one that starts it; and a test may hold much."""

    def __init__(self):
        fork = multiprocessing.get_context("fork")
        self.asked, theirs = fork.Pipe()
        self.process = fork.Process(target=self.serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def serve(self, asked):
        self.asked.close()  # so that the tester's end, however it comes, is seen here
        while True:
            try:
                request = asked.recv()
            except EOFError:
                return
            try:
                asked.send(command(*request))
            except OSError as e:
                asked.send(e)

    def run(self, *request):
        self.asked.send(request)
        said = self.asked.recv()
        if isinstance(said, Exception):
            raise said
        return said


def is_roomy(folder):
    """Containers have a /dev/shm of 64 MiB, or none."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize >= 4 << 30


class Tester:
    """Runs one binary in one temporary folder; keeps the count."""

    def __init__(self, binary):
        self.binary, self.launcher = os.path.abspath(binary), Launcher()
        self.folder, self.nchecks, self.failures = None, 0, []
        self.move("/dev/shm" if is_roomy("/dev/shm") else tempfile.gettempdir())

    def move(self, where):
        """Goes on in a new folder there."""
        if self.folder:
            shutil.rmtree(self.folder)
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="fsdpck-damage-", dir=where))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def run(self, *args, cwd=None, limits=(), program=None):
        """fsdpck ARGS. Its peak of resident memory is measured. limits: (resource, value) to set for it."""
        return self.launcher.run([program or self.binary, *map(str, args)], cwd or self.folder, limits)

    def check(self, ok, what, *details):
        self.nchecks += 1
        if not ok:
            self.failures.append(what)
            print("FAIL %s" % what, *details, sep="\n  ", file=sys.stderr)
        return ok

    def good(self, *args, what=None, **kwargs):
        r = self.run(*args, **kwargs)
        self.check(r.status == 0, what or "fsdpck " + " ".join(map(str, args)), r)
        return r

    def problems(self, folder, *options):
        """What verify says of a damaged checkpoint: the problems as data."""
        r = self.run("verify", folder, "--json", *options)
        if not self.check(r.status == 1, "verify %s finds damage" % os.path.basename(str(folder)), r):
            return []
        return json.loads(r.out)["problems"]

    def refused(self, what, *args, status=3, saying="", naming=""):
        """The command fails with one line (and a hint, at most), in little memory."""
        r = self.run(*args)
        lines = r.err.splitlines()
        self.check(r.status == status, "%s: exit %d" % (what, status), r)
        self.check(
            len(lines) in (1, 2) and lines[0].startswith("fsdpck: "), "%s: one line and perhaps a hint" % what, r)
        self.check(saying in r.err, "%s: says '%s'" % (what, saying), r)
        self.check(naming in r.err, "%s: names '%s'" % (what, naming), r)
        self.check(SANITIZED or r.rss <= MEMORY_MAX, "%s: takes %d bytes of memory" % (what, r.rss))
        return r

    def fresh(self, template, name="damaged"):
        """A copy of a checkpoint, to be damaged."""
        to = self.path(name)
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(template, to, symlinks=True)
        return to

    def finish(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        print("%d checks, %d failed" % (self.nchecks, len(self.failures)))
        return 1 if self.failures else 0


def run_checks(*checks):
    """Each check, in one folder, of the binary that the command line begins with. Returns the exit status."""
    t = Tester(sys.argv[1])
    try:
        for check in checks:
            check(t)
    finally:
        status = t.finish()
    return status


def fixtures():
    return os.environ.get("FSDPCK_FIXTURES") or os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "..", "..", "fixtures"
    )


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def patch(path, at, data):
    """Overwrites bytes of a file; a negative place counts from its end."""
    with open(path, "r+b") as f:
        f.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        f.write(data)


def flip(path, at):
    data = read(path)
    patch(path, at, bytes([data[at] ^ 1]))


def tree(folder):
    """Every file below a folder: relative path -> bytes."""
    found = {}
    for base, _, names in os.walk(folder):
        for n in names:
            p = os.path.join(base, n)
            found[os.path.relpath(p, folder)] = read(p)
    return found


def write_safetensors(path, tensors, seed=1, byte=None):
    """tensors: name -> (dtype, shape, bytes an element). The data are random; with `byte`, each element's last byte is
    that or the next."""
    header, blob, rng = {}, b"", random.Random(seed)
    for name, (dtype, shape, nbytes) in tensors.items():
        n = nbytes
        for d in shape:
            n *= d
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + n]}
        data = bytearray(rng.randbytes(n))
        if byte is not None:
            data[nbytes - 1::nbytes] = bytes(rng.choices((byte, byte + 1), k=n // nbytes))
        blob += data
    text = json.dumps(header).encode()
    write(path, struct.pack("<Q", len(text)) + text + blob)
