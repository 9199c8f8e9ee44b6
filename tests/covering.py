"""A covering array: few configs in which every pair of values of two options stands once at least, but for pairs that
the rows of `mhagen schema --json` exclude (greedy, as Cohen et al., The AETG System, 1997, but with one candidate).
"""
import itertools


def levels(row, draw):
    """The values of an option that an array has; None is its default."""
    if "of" in row["draw"]:
        values = row["draw"]["of"][:2]
    elif row["kind"] == "choice":
        values = [*row.get("hooks", []), *row["choices"]][:4]
    else:
        values = [draw(row)]
    return [None, *dict.fromkeys(value for value in values if value != row.get("default"))]


def pairs_of(chosen):
    return {frozenset(pair) for pair in itertools.combinations(chosen.items(), 2)}


def in_order(pair):
    return sorted((key, str(value)) for key, value in pair)


class Array:
    """configs: each is a base config with values of all options in `levels`, { key: values }; missed: the pairs that
    none has. broken(config) is how many of its keys cannot stand beside the others."""

    def __init__(self, base, levels, broken, rng):
        self.base, self.levels, self.broken, self.rng = base, levels, broken, rng
        self.wanted = {frozenset([(a, x), (b, y)]) for a, b in itertools.combinations(levels, 2)
                       for x in levels[a] for y in levels[b]}
        self.missed, self.configs = [], []
        for pair in sorted(self.wanted, key=in_order):
            if pair not in self.wanted:
                continue
            for _ in range(8):  # what one order of the options makes impossible another one may not
                chosen = self.fill(dict(pair))
                if not self.broken(self.config(chosen)):
                    self.wanted -= pairs_of(chosen)
                    self.configs.append(self.config(chosen))
                    break
            else:
                self.missed.append(dict(pair))
        # The config of a later pair may have it.
        self.missed = [pair for pair in self.missed if frozenset(pair.items()) in self.wanted]

    def config(self, chosen):
        return {**self.base, **{key: value for key, value in chosen.items() if value is not None}}

    def fill(self, chosen):
        """Values of all options beside those of a pair: what breaks no rule, and has most pairs still wanted."""
        keys = [key for key in self.levels if key not in chosen]
        self.rng.shuffle(keys)
        for key in keys:
            def merit(value):
                return (-self.broken(self.config({**chosen, key: value})),
                        sum(frozenset([(key, value), other]) in self.wanted for other in chosen.items()))
            chosen[key] = max(self.levels[key], key=merit)
        return chosen
