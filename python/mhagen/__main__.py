"""`python -m mhagen ...` is the command `mhagen ...`, also where its folder is not in PATH."""
import os
import sys

from . import _build

os.execv(_build.program(), ["mhagen", *sys.argv[1:]])
