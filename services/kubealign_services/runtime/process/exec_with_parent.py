"""Executes a program that the kernel ends together with its parent.

Arguments: PARENT, PROGRAM, the program's own.
"""

import os
import sys

from kubealign.local.processes.parent_death import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
