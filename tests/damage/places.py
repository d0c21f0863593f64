#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The places where a checkpoint can be put: ".", links, empty and other directories, read-only parents, and real mount
points, which cannot be renamed. Mounting needs root or user namespaces; where neither is allowed, those cases are
skipped, and a line says so.

usage: places.py BINARY [mounts]
"""
import os
import re
import shutil
import subprocess
import sys

from harness import fixtures, flip, read, run_checks, tree, write, write_safetensors

TINY = os.path.join(fixtures(), "tiny-llama-tied")
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
NOBODY = 65534
SKIPPED = 77


class Places:
    def __init__(self, t):
        self.t = t
        self.good = t.path("good")
        t.good("convert", TINY, self.good, "--ranks", 3)
        t.good("export", self.good, t.path("truth"))
        self.truth = tree(t.path("truth"))
        write_safetensors(t.path("plain.safetensors"), {"a": ("F32", [64, 4], 4)})

    def same(self, what, folder):
        """Every byte comes back."""
        out = self.t.path("exported")
        shutil.rmtree(out, ignore_errors=True)
        self.t.good("export", folder, out, what="%s: export" % what)
        self.t.check(os.path.isdir(out) and tree(out) == self.truth, "%s: the right bytes" % what)

    def same_to_pytorch(self, what, folder):
        """.metadata names the files that are there, and the places in them."""
        out = self.t.path("exported")
        shutil.rmtree(out, ignore_errors=True)
        self.t.good("verify", "--from", "dcp", folder, what="%s: verify as DCP" % what)
        self.t.good("export", "--from", "dcp", folder, out, what="%s: export as DCP" % what)
        self.t.good("diff", out, self.good, what="%s: the same tensors as DCP" % what)

    def complete(self, what, folder, nranks, in_place, others=(), metadata=True, assets=True):
        """A good checkpoint, and nothing else but `others`."""
        self.t.good("verify", folder, what="%s: verify" % what)
        id_ = "-" + UUID if in_place else ""
        want = (
            [r"index\.json"] + [r"__%d_0%s\.distcp" % (r, id_) for r in range(nranks)] + [re.escape(n) for n in others]
        )
        want += [r"\.metadata"] * metadata + ["assets" + id_] * assets
        names = sorted(os.listdir(folder))
        matched = [n for n in names if any(re.fullmatch(w, n) for w in want)]
        self.t.check(matched == names and len(names) == len(want), "%s: holds what it should" % what, names)

    def alone(self, what, folder, *names):
        """Nothing is left beside the output."""
        found = sorted(os.listdir(folder))
        self.t.check(found == sorted(names), "%s: nothing is left beside it" % what, found)


def room(p, name):
    """A new empty folder to work in."""
    to = p.t.path(name)
    os.makedirs(to)
    return to


# ---- places that need no mount ----

def plain_places(p):
    t, base = p.t, room(p, "plain")
    empty, target, link = (os.path.join(base, n) for n in ("empty", "target", "link"))
    os.mkdir(empty)
    t.good("convert", TINY, empty, "--ranks", 2)
    p.complete("an empty directory", empty, 2, False)
    os.mkdir(target)
    os.symlink("target", link)
    t.good("convert", TINY, link, "--ranks", 2)
    p.complete("a link to an empty directory", target, 2, False)
    t.check(os.path.islink(link) and os.readlink(link) == "target", "a link to an empty directory: the link stays")
    p.same("a link to an empty directory", link)
    t.good("convert", TINY, link, "--ranks", 3, "--force")
    p.complete("a link to a checkpoint, --force", target, 3, False)
    t.check(os.path.islink(link), "a link to a checkpoint: the link stays")
    t.good("convert", TINY, os.path.join(base, "slash") + "//", "--ranks", 2)
    p.complete("a trailing slash", os.path.join(base, "slash"), 2, False)
    t.good("convert", TINY, os.path.join(base, "a", "b", "c"), "--ranks", 1)
    p.complete("missing parents", os.path.join(base, "a", "b", "c"), 1, False)
    t.good("reshard", target, target, "--ranks", 2, "--force")
    p.complete("resharded onto itself", target, 2, False)
    p.same("resharded onto itself", target)
    p.alone("all of these", base, "a", "empty", "link", "slash", "target")


def here(p):
    """OUT is ".": replacing that directory would leave the shell in one that is gone."""
    t, base = p.t, room(p, "here")
    inode = os.stat(base).st_ino
    t.good("convert", TINY, ".", "--ranks", 3, cwd=base)
    p.complete("'.'", base, 3, True)
    p.same("'.'", base)
    t.check(os.stat(base).st_ino == inode, "'.': the same directory")
    before = tree(base)
    r = t.run("convert", TINY, ".", "--ranks", 2, cwd=base)
    t.check(r.status == 2 and tree(base) == before, "'.' again: refused, untouched", r)
    t.good("convert", TINY, "../here/", "--ranks", 2, "--force", cwd=base)
    p.complete("'.' by another name, --force", base, 2, True)
    p.same("'.' by another name, --force", base)


def refusals(p):
    t, base = p.t, room(p, "refusals")
    full, file = os.path.join(base, "full"), os.path.join(base, "file")
    write(os.path.join(full, "notes.txt"), b"mine")
    write(file, b"mine")
    bad, old = t.fresh(p.good, "refusals/bad"), t.fresh(p.good, "refusals/old")
    flip(os.path.join(bad, "__1_0.distcp"), 5000)
    before = tree(base)
    t.refused("a directory that is not empty", "convert", TINY, full, "--ranks", 2, status=2, saying="not empty",
              naming=full)
    t.refused("a file", "convert", TINY, file, "--ranks", 2, status=2, naming=file)
    t.refused("a file, --force", "convert", TINY, file, "--ranks", 2, "--force", status=2, naming=file)
    t.refused("no name", "convert", TINY, "", "--ranks", 2, status=2)
    t.refused("a damaged source", "reshard", bad, os.path.join(base, "p", "q"), "--ranks", 2, naming="__1_0.distcp")
    t.refused("a damaged source, --force", "reshard", bad, old, "--ranks", 2, "--force", naming="__1_0.distcp")
    t.refused("export to a directory that is not empty", "export", p.good, full, status=2, naming=full)
    t.check(tree(base) == before, "refusals leave everything as it was", sorted(tree(base)))
    p.alone("refusals", base, "bad", "file", "full", "old")


def writers(p):
    """Four programs write one OUT at once: with a new name one of them wins and the others are told; with --force some
    do, and what stands is whole."""
    t, base = p.t, room(p, "writers")
    for name, options, statuses in (("new", [], (2, 4)), ("forced", ["--force"], (4,))):
        out = os.path.join(base, name)
        running = [
            subprocess.Popen(
                [t.binary, "convert", TINY, out, "--ranks", str(n), "-q", *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for n in (1, 2, 3, 4)
        ]
        ended = [(w, *w.communicate()) for w in running]
        won = [i for i, (w, _, _) in enumerate(ended) if w.returncode == 0]
        told = [err for w, _, err in ended if w.returncode in statuses and out in err and len(err.splitlines()) <= 2]
        t.check(
            len(won) >= 1 and len(won) + len(told) == 4 and (options or len(won) == 1),
            "four writers (%s): one wins, the others are told" % name, [(w.returncode, err) for w, _, err in ended])
        t.good("verify", out, what="four writers (%s): verify" % name)
        p.same("four writers (%s)" % name, out)
    p.alone("four writers", base, "forced", "new")


def as_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def read_only_parent(p):
    """OUT is there and may be written, what is around it may not: written in place."""
    t, base = p.t, room(p, "parent")
    out = os.path.join(base, "out")
    os.mkdir(out)
    root = os.geteuid() == 0
    if root:
        try:
            usable = subprocess.run([t.binary, "ls", TINY], preexec_fn=as_nobody, capture_output=True).returncode == 0
        except (OSError, subprocess.SubprocessError):
            usable = False
        if not usable:
            print("SKIP read-only parent: nobody but root can run the binary")
            return
        os.chmod(t.folder, 0o755)
        os.chown(out, NOBODY, NOBODY)
    os.chmod(base, 0o555)
    def run(*args):
        return subprocess.run([t.binary, *args], preexec_fn=as_nobody if root else None, capture_output=True, text=True)
    for ranks, force in (("3", []), ("2", ["--force"])):
        r = run("convert", TINY, out, "--ranks", ranks, *force)
        t.check(r.returncode == 0, "read-only parent: convert", r.stderr)
        p.complete("read-only parent", out, int(ranks), True)
        p.same("read-only parent", out)
    r = run("convert", TINY, os.path.join(base, "new"), "--ranks", "2")
    t.check(r.returncode == 4 and len(r.stderr.splitlines()) <= 2, "read-only parent, no OUT: refused", r.stderr)
    os.chmod(base, 0o755)
    p.alone("read-only parent", base, "out")


# ---- mount points ----

class Mount:
    """A tmpfs."""

    def __init__(self, path, size="16m"):
        self.path = path
        os.makedirs(path, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + size, "none", path], check=True)

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        subprocess.run(["umount", self.path], check=True)


def mount_point(p):
    t, base = p.t, room(p, "mounted")
    with Mount(os.path.join(base, "out")) as out:
        t.good("convert", TINY, out, "--ranks", 3)
        p.complete("a mount point", out, 3, True)
        p.same("a mount point", out)
        p.same_to_pytorch("a mount point", out)
        before = tree(out)
        t.refused("a mount point that is not empty", "convert", TINY, out, "--ranks", 5, status=2, saying="not empty")
        t.check(tree(out) == before, "a mount point that is not empty: untouched")
        t.good("convert", TINY, out + "/", "--ranks", 5, "--force")
        p.complete("a mount point, --force", out, 5, True)
        p.same("a mount point, --force", out)
        p.same_to_pytorch("a mount point, --force", out)
        t.good("reshard", out, out, "--ranks", 2, "--force")
        p.complete("a mount point resharded onto itself", out, 2, True)
        p.same("a mount point resharded onto itself", out)
        write(out + "/notes.txt", b"mine")
        t.good("convert", TINY, out, "--ranks", 1, "--force", "--dcp", "never")
        p.complete("a mount point, --dcp never", out, 1, True, others=["notes.txt"], metadata=False)
        t.good("convert", TINY, out, "--ranks", 2, "--force", "--compress")
        p.complete("a mount point, --compress", out, 2, True, others=["notes.txt"], metadata=False)
        p.same("a mount point, --compress", out)
        t.good("convert", t.path("plain.safetensors"), out, "--ranks", 2, "--force")
        p.complete("a mount point, no assets", out, 2, True, others=["notes.txt"], assets=False)
        t.check(read(out + "/notes.txt") == b"mine", "a mount point: what is not ours stays")
        p.alone("a mount point", base, "out")


def mount_over_staged(p):
    """A checkpoint that was written beside, and is now under a mount point: its names carry no save id."""
    t, base = p.t, room(p, "bound")
    out = os.path.join(base, "out")
    t.good("convert", TINY, out, "--ranks", 4)
    subprocess.run(["mount", "--bind", out, out], check=True)
    try:
        t.good("convert", TINY, out, "--ranks", 2, "--force")
        p.complete("a mount point with a checkpoint from before", out, 2, True)
        p.same("a mount point with a checkpoint from before", out)
    finally:
        subprocess.run(["umount", out], check=True)
    t.good("reshard", out, out, "--ranks", 3, "--force")
    p.complete("and staged again", out, 3, False)
    p.same("and staged again", out)


def mount_failures(p):
    """What fails leaves a mount point as it was."""
    t, base = p.t, room(p, "failures")
    bad = t.fresh(p.good, "failures/bad")
    flip(os.path.join(bad, "__1_0.distcp"), 5000)
    with Mount(os.path.join(base, "out")) as out:
        t.refused("a mount point, a damaged source", "reshard", bad, out, "--ranks", 2, naming="__1_0.distcp")
        t.check(os.listdir(out) == [], "a mount point, a damaged source: empty as before", os.listdir(out))
        t.good("convert", TINY, out, "--ranks", 3)
        before = tree(out)
        t.refused("a mount point, a damaged source, --force", "reshard", bad, out, "--ranks", 2, "--force",
                  naming="__1_0.distcp")
        t.check(tree(out) == before, "a mount point, a damaged source, --force: as before", sorted(os.listdir(out)))
    with Mount(os.path.join(base, "out"), "1800k") as out: # room for one, not for two
        t.good("convert", TINY, out, "--ranks", 3)
        before = tree(out)
        t.refused("a full mount point", "convert", TINY, out, "--ranks", 2, "--force", status=4, saying="No space")
        t.check(tree(out) == before, "a full mount point: as before", sorted(os.listdir(out)))
        p.same("a full mount point", out)


def mount_odd(p):
    t, base = p.t, room(p, "odd")
    with Mount(os.path.join(base, "out")) as out:
        os.mkdir(out + "/lost+found")
        t.good("convert", TINY, out, "--ranks", 2, what="a new file system with lost+found")
        p.complete("a new file system with lost+found", out, 2, True, others=["lost+found"])
    with Mount(os.path.join(base, "out")) as out:
        os.symlink("out", base + "/link")
        t.good("convert", TINY, base + "/link/.", "--ranks", 2, what="a link to a mount point")
        p.complete("a link to a mount point", out, 2, True)
    with Mount(os.path.join(base, "out")) as out:
        t.good("convert", TINY, out + "/inner", "--ranks", 2)
        p.complete("inside a mount point", out + "/inner", 2, False)
        p.alone("inside a mount point", out, "inner")
    with Mount(os.path.join(base, "fixed")) as fixed, Mount(fixed + "/out") as out:
        subprocess.run(["mount", "-o", "remount,bind,ro", fixed], check=True)
        t.good("convert", TINY, out, "--ranks", 2, what="a mount point on a read-only one")
        p.complete("a mount point on a read-only one", out, 2, True)
        t.refused("a read-only file system", "convert", TINY, fixed + "/new", "--ranks", 2, status=4,
                  saying="Read-only")


def mount_exports(p):
    t, base = p.t, room(p, "exports")
    with Mount(os.path.join(base, "out")) as out:
        t.good("export", p.good, out)
        names = sorted(tree(out))
        t.good("diff", out, p.good, what="export to a mount point: the same tensors")
        t.check(
            all(
                tree(out).get(n) == data
                for n, data in p.truth.items()
                if not n.endswith((".safetensors", ".index.json"))
            ),
            "export: assets",
            names,
        )
        t.refused("export to a mount point that is not empty", "export", p.good, out, status=2)
        t.good("export", p.good, out, "--force", "--max-shard-size", "500KB")
        t.good("diff", out, p.good, what="export to a mount point, --force: the same tensors")
        left = [n for n in os.listdir(out) if "tmp-" in n or n.startswith(".")]
        t.check(not left, "export to a mount point: nothing is left", left)


# ---- the whole ----

def namespace():
    """A command that gives its program mounts of its own, or None."""
    for prefix in (["unshare", "-m"], ["unshare", "-rm"]):
        try:
            if subprocess.run(prefix + ["mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0:
                return prefix
        except OSError:
            return None
    return None


def run_cases(*cases):
    def run(t):
        p = Places(t)
        for case in cases:
            case(p)
    return run_checks(run)


def main():
    """With `mounts` it runs itself again, where it may mount."""
    binary, what = os.path.abspath(sys.argv[1]), sys.argv[2:]
    if what == ["--own-mounts"]:
        return run_cases(mount_point, mount_over_staged, mount_failures, mount_odd, mount_exports)
    if what != ["mounts"]:
        return run_cases(plain_places, here, refusals, writers, read_only_parent)
    prefix = namespace()
    if prefix is None:
        print("SKIP mount points: this user may not mount")
        return SKIPPED
    return subprocess.run(prefix + [sys.executable, os.path.abspath(__file__), binary, "--own-mounts"]).returncode


if __name__ == "__main__":
    sys.exit(main())
