"""The floor: how often a kernel does each operation, and which port that fills."""
import re

import pytest

from tools import FACTS, ISAS, MHAGEN, in_turn, run

PORTS = ["fma", "vector", "shuffle", "load", "store", "tile"]


def floor(*words):
    """{ phase: (cycles, port, the counts by port) } of a kernel, and the sum of the cycles."""
    told = run(MHAGEN, "explain", *words)
    table = told.split("\nfloor (")[1].split("\nchoices")[0].replace(",", "")
    rows = re.findall(r"^  (\w+) +(\d+)  (\w+)((?: +\d+){5,6})$", table, re.M)
    return ({name: (int(cycles), port, dict(zip(PORTS, map(int, counts.split()))))
             for name, cycles, port, counts in rows},
            int(re.search(r"^  all +(\d+)$", table, re.M)[1]))


@pytest.mark.parametrize("seq", [32, 128])  # the tiles of many keys are looked at
@pytest.mark.parametrize("isa", ISAS)
def test_products(isa, seq):
    """Where no lane idles, a product has a multiplication and an addition for each FMA."""
    phases, total = floor("h=2", "d_model=64", "dk=32", f"seq={seq}", f"isa={isa}")
    projected = sum(phases[name][2]["fma"] for name in ("keys_values", "keys", "values", "queries", "query")
                    if name in phases)
    lanes = FACTS[isa]["lanes"]
    assert projected == 3 * seq * 64 * 64 / lanes
    assert phases["output"][2]["fma"] == seq * 64 * 64 / lanes
    for name in "scores", "context":  # and exponentials; tiles of the last rows are no larger
        assert 2 * seq * seq * 32 / lanes <= phases[name][2]["fma"] < 2 * 2 * seq * seq * 32 / lanes
    cycles = [own for own, _, _ in phases.values()]
    assert max(cycles) <= total < sum(cycles) + len(phases) + 1


@pytest.mark.parametrize("isa", [isa for isa in ISAS if "int8" in FACTS[isa]["products"]])
def test_products_of_bytes(isa):
    """So many times less as an op does at once, and one for each vector of a result with a bias, where scales come in.
    A tile register has 16 rows besides. An op of words is one too where the ISA has no instruction for it."""
    product, lanes, tile = FACTS[isa]["products"]["int8"], FACTS[isa]["lanes"], FACTS[isa].get("tile")
    at_once = max(product.values())
    phases, _ = floor("h=2", "d_model=64", "dk=32", "seq=32", f"isa={isa}", "dtype=int8")
    for name, rows in ("keys_values", 3 * 32), ("output", 32):
        products = rows * 64 * 64 / at_once / lanes
        assert phases[name][2]["fma"] == products * (not tile) + 32 * 64 / lanes
        assert phases[name][2].get("tile", 0) == (products / tile if tile else 0)
    assert phases["quantize"][2]["load"] >= 2 * 32 * 64 / lanes


@pytest.mark.parametrize("options", in_turn([
    [], ["causal=true"], ["causal=true", "window_left=3"], ["rope=half", "probs=true"], ["mask=add", "softcap=5"],
    ["cache=fixed", "attention=cross", "seq_kv=20"]], "floor"))
@pytest.mark.parametrize("isa", in_turn(ISAS, "floor"))
def test_straight_code_counts_as_loops_do(isa, options):
    """Every round of a loop is counted as what it does. Numbers that straight code knows are no operations there.
    (With lengths that a run is given, straight code has no branches, and does more. With a
    window its operations are others, so loops alone are compared.)"""
    shape = ["h=2", "d_model=12", "dk=6", "seq=21", f"isa={isa}", "code_limit=100000", *options]
    straight, *others = [{name: row[2] for name, row in floor(*shape, f"unroll={level}")[0].items()}
                         for level in ("full", "tile", "k", "auto")]
    assert straight and all(other == others[0] for other in others)
    for name, counts in straight.items():
        assert counts.pop("vector") <= others[0][name].pop("vector")
    assert straight == others[0] or "window_left=3" in options


def test_ports_of_a_core():
    """Shuffles share the ports of FMAs on one core and not on the other; a division takes many turns."""
    shape = ["h=2", "d_model=32", "dk=8", "seq=16", "isa=avx512", "qkv=separate", "q_lanes=queries"]
    intel, amd = (floor(*shape, f"cpu={cpu}")[0] for cpu in ("sapphirerapids", "zen4"))
    assert intel["transpose"] == (128, "shuffle", {"fma": 0, "vector": 0, "shuffle": 128, "load": 32, "store": 32})
    loads = intel["keys_values"][2]["load"]
    assert amd["keys_values"][:2] == (loads, "load") and intel["keys_values"][:2] == (loads / 2, "load")
    divided = [floor(*shape, f"cpu={cpu}")[0]["attend"][2]["vector"] for cpu in ("sapphirerapids", "zen4")]
    assert divided[0] > divided[1]
