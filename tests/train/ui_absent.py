#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ui_absent.py FSDPTRAIN: a program that was built without the server says so in one line, and what it needs."""
import subprocess, sys

done = subprocess.run([sys.argv[1], "ui"], capture_output=True, text=True)
if done.returncode != 3 or "built without it" not in done.stderr or "libmicrohttpd" not in done.stderr or done.stdout:
    sys.exit(f"ui-absent: exit code {done.returncode}, {done.stdout}{done.stderr}")
print("ui-absent: it says so")
