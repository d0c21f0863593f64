# SPDX-License-Identifier: Apache-2.0
"""What a program says of itself: its verbs, and the options of each."""
import re
import subprocess


def ask(tool, *args):
    return subprocess.run([tool, *args], check=True, stdout=subprocess.PIPE, text=True).stdout


def verbs(tool):
    return dict(re.findall(r"^  ([a-z-]+) +(.+)$", ask(tool), re.M))


def options(tool, verb):
    """[(letter or "", name, value or "")] in the order of --help."""
    found = re.findall(r"^ {2}(?:-(\w), | {4})--([a-z0-9-]+)(?: (\S+))?(?:  |$)", ask(tool, verb, "--help"), re.M)
    return [(letter, name, value) for letter, name, value in found]
