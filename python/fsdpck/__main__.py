# SPDX-License-Identifier: Apache-2.0
"""The command fsdpck of an installed package: runs the program that lies in it."""
import os
import sys


def main() -> None:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "fsdpck")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
