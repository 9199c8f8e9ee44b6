"""Further rows of sounds and of series of numbers, as families.py has them."""

ROWS = []
INPUTS = {}
BUILT_BY = {}
PARTS = []
OF_TWO = set()
WITHOUT_CACHE = set()
