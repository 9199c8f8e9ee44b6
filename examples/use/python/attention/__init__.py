"""A layer of four heads: Attention(wq, wk, wv, wo)(x) -> y, of NumPy's arrays of float32."""
import ctypes

import numpy as np

_library = np.ctypeslib.load_library("liblayer", __file__)
_PACKED, _WORKSPACE, D_MODEL, SEQ = (ctypes.c_size_t * 4).in_dll(_library, "layer_sizes")


def _require(status):
    if status:
        raise RuntimeError("layer: " + _library.layer_flat_text(status).decode())


_matrix = np.ctypeslib.ndpointer(np.float32, shape=(D_MODEL, D_MODEL), flags="C")
_rows = np.ctypeslib.ndpointer(np.float32, shape=(SEQ, D_MODEL), flags="C")
_bytes = np.ctypeslib.ndpointer(np.uint8)
_library.layer_flat_pack.argtypes = [_matrix] * 4 + [_bytes]
_library.layer_flat_run.argtypes = [_rows, _rows, _bytes, _bytes]
_library.layer_flat_text.restype = ctypes.c_char_p
_library.layer_flat_pack.restype = _library.layer_flat_run.restype = _require


def _memory(size):
    """Bytes that begin at a multiple of 64."""
    whole = np.empty(size + 63, np.uint8)
    return whole[-whole.ctypes.data % 64:][:size]


class Attention:
    def __init__(self, *weights):
        """wq, wk, wv, wo: [D_MODEL][D_MODEL], y = x W. They are not needed any more afterwards."""
        self._packed = _memory(_PACKED)
        _library.layer_flat_pack(*[np.ascontiguousarray(w, np.float32) for w in weights], self._packed)

    def __call__(self, x):
        """y of x, both [SEQ][D_MODEL]. ctypes lets other threads run meanwhile; each call has its workspace."""
        x, y = np.ascontiguousarray(x, np.float32), np.empty((SEQ, D_MODEL), np.float32)
        _library.layer_flat_run(x, y, self._packed, _memory(_WORKSPACE))
        return y
