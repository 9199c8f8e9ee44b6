"""tests/fuzz.py: which configs an ISA gets."""
import itertools
from types import SimpleNamespace

import fuzz


def test_shares_of_isas():
    """Of the pairs each config is of one ISA; drawn ones are others for each, and half as many in an emulator."""
    native, emulated = [SimpleNamespace(runner=())], [SimpleNamespace(runner=("qemu",))]
    chains = {"scalar": native, "avx2": native, "neon": emulated, "neon_fp16": emulated}
    configs = [{"h": 1, "d_model": 8, "dk": 8, "seq": i + 1} for i in range(120)]
    large = [{"h": 1, "d_model": 1024, "dk": 64, "seq": 512}]
    given = fuzz.shares(SimpleNamespace(pairs=True, seed=5), configs, chains)
    assert sorted(itertools.chain(*given.values()), key=lambda config: config["seq"]) == configs
    assert [len(given[isa]) for isa in chains] == [40, 40, 20, 20]
    given = fuzz.shares(SimpleNamespace(pairs=False, grid=12, replay=None, seed=5), configs, chains)
    assert [len(given[isa]) for isa in chains] == [10, 10, 5, 5] and given["scalar"] != given["avx2"]
    given = fuzz.shares(SimpleNamespace(pairs=False, grid=2, replay=None, seed=5), large, chains)
    assert [len(given[isa]) for isa in chains] == [1, 1, 0, 0]
    given = fuzz.shares(SimpleNamespace(pairs=False, grid=1, replay=None, seed=5), configs, chains)
    assert all(given[isa] == configs for isa in chains)
