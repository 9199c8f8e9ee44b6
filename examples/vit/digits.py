"""1,797 handwritten digits of 8 x 8 pixels, of which the model has not seen the last 360.

digits.csv.gz is as scikit-learn has it: a part of E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits,
UCI Machine Learning Repository, 1998, doi 10.24432/C50P49, licensed under CC BY 4.0.
"""
import gzip
from pathlib import Path

import numpy as np

UNSEEN = 360
SIDE, PATCH = 8, 2


def load():
    """Images [n][8][8] from -1 to 1, and what they are."""
    with gzip.open(Path(__file__).parent / "digits.csv.gz") as lines:
        rows = np.loadtxt(lines, delimiter=",")
    return (rows[:, :-1].reshape(-1, SIDE, SIDE) / 8 - 1).astype(np.float32), rows[:, -1].astype(int)
