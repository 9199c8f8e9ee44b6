"""The key layout: the same numbers give the same bits, however what is not projected lies."""
import pytest

from reference_lib import Generated, drawn_isa

np = pytest.importorskip("numpy", reason="NumPy is not installed")

GROUPED = {"h": 6, "h_kv": 2, "dk": 5, "dv": 7, "seq": 19, "seq_kv": 23, "batch": 2}


def left_by(config, path):
    """What a run leaves in y, with the heads before the rows, and the bytes of its workspace. Rows that are projected
    are as wide as those that are not."""
    kernel = Generated(config, drawn_isa(config["project"]), path)
    shape, rng = kernel.shape, np.random.default_rng(1)
    h, h_kv, n, m, dk, dv = shape.h, shape.h_kv, shape.seq, shape.seq_kv, shape.dk, shape.dv
    unprojected = set("qkvo") - (set(config["project"]) if config["project"] != "none" else set())

    def drawn(*extents):
        return rng.standard_normal(extents, "f4")

    def turned(x, letter):  # from heads before rows, and back
        return x if config["layout"] == "bhsd" and letter in unprojected else x.swapaxes(1, 2)

    weights = {"wq": drawn(shape.d_model, h * dk), "wk": drawn(shape.k_width, h_kv * dk),
               "wv": drawn(shape.v_width, h_kv * dv), "wo": drawn(h * dv, shape.y_width)}
    kernel.pack(**{name: x.ctypes.data for name, x in weights.items()})
    inputs = {"q": drawn(shape.batch, h, n, dk), "k": drawn(shape.batch, h_kv, m, dk),
              "v": drawn(shape.batch, h_kv, m, dv)}
    arrays = {name: np.ascontiguousarray(turned(x, name)) for name, x in inputs.items()}
    y = np.full(turned(np.empty((shape.batch, h, n, dv)), "o").shape, np.nan, "f4")
    lengths = np.array([m, m // 2], "i4")
    kernel.run(y=y.ctypes.data, kv_len=lengths.ctypes.data, **{name: x.ctypes.data for name, x in arrays.items()})
    return turned(y, "o"), shape.workspace_bytes


@pytest.mark.parametrize("config", [
    GROUPED | {"project": "none"}, GROUPED | {"project": "none", "causal": "true", "key_rows": 4, "kv_len": "true"},
    GROUPED | {"project": "qo", "d_model": 30, "y_width": 42},
    GROUPED | {"project": "kv", "k_width": 10, "v_width": 14},
    GROUPED | {"project": "none", "seq": 3, "unroll": "full", "h": 2, "seq_kv": 5}],
    ids=lambda config: " ".join(f"{key}={value}" for key, value in config.items() if key not in GROUPED))
def test_same_bits(config, tmp_path):
    y, memory = left_by(config | {"layout": "bshd"}, tmp_path / "bshd")
    other, other_memory = left_by(config | {"layout": "bhsd"}, tmp_path / "bhsd")
    assert np.isfinite(y).all() and (y == other).all()
    assert memory == other_memory  # nothing is copied for a layout


def test_copied_rows_have_the_same_bits(tmp_path):
    """Rows of 2 KB share few sets of the nearest cache: keys and values become rows of heads, if enough queries read
    them."""
    config = GROUPED | {"project": "none", "h": 16, "h_kv": 8, "dk": 64, "dv": 64, "seq": 70, "seq_kv": 66}
    y, memory = left_by(config | {"layout": "bshd"}, tmp_path / "bshd")
    other, other_memory = left_by(config | {"layout": "bhsd"}, tmp_path / "bhsd")
    assert np.isfinite(y).all() and (y == other).all() and memory > other_memory
    few, memory = left_by(config | {"layout": "bshd", "h": 8, "seq": 3}, tmp_path / "few")
    assert np.isfinite(few).all() and memory < other_memory
