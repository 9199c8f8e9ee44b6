"""A layer: a kernel, its packed weights, and arrays in and out."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Union

import numpy as np
from numpy.typing import ArrayLike

from . import _keys, _native

if TYPE_CHECKING:
    from typing_extensions import Unpack

Result = Union[np.ndarray, "tuple[np.ndarray, ...]"]

WEIGHTS = tuple(_keys.Weights.__annotations__)
TABLES = ("rope_cos", "rope_sin")
ANGLES = (*TABLES, "k_rope_cos", "k_rope_sin")  # with rope_at = run
SWITCHES = ("alibi", "sink")  # keys of a config with the names of weights: an array is both
LENGTHS = ("kv_len", "kv_start", "q_len", "past")
READ = ("q", "k", "v", "mask", "row_keys", *ANGLES, "cache", *LENGTHS)
MADE = ("y", "packed", "tables", "workspace", "probs", "scores")


def refuse(name: str, value: object, rule: str) -> NoReturn:
    raise ValueError(f"mhagen: {name}: {' '.join(str(value).split())}: {rule}")  # arrays have several lines


def shaped(name: str, array: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The array, if it has one of the shapes."""
    if array.shape not in shapes:
        refuse(name, f"shape {array.shape}", f"must be {' or '.join(map(str, shapes))}")
    return array


def numbers(name: str, value: ArrayLike, dtype: type) -> np.ndarray:
    """Real numbers as another type. The bits of a bfloat16 are no numbers."""
    if np.ma.is_masked(value):
        refuse(name, "a masked array", "has numbers that are hidden; fill it, as by x.filled(0)")
    array = np.asarray(value)
    if array.dtype.kind == "b" or not np.can_cast(array.dtype, np.float32, "same_kind"):
        refuse(name, f"dtype {array.dtype}", "must be real numbers")
    if array.dtype.name == "uint16":
        refuse(name, "dtype uint16", "may be the bits of bfloat16: view them as bfloat16 of ml_dtypes, "
               "or convert numbers to float32")
    return np.ascontiguousarray(array, dtype)


def float32(name: str, value: ArrayLike) -> np.ndarray:
    return numbers(name, value, np.float32)


def half(name: str, value: ArrayLike) -> np.ndarray:
    return numbers(name, value, np.float16)


def bfloat16(name: str, value: ArrayLike) -> np.ndarray:
    """NumPy has no such type: ml_dtypes has, or the bits are uint16."""
    array = np.asarray(value)
    if array.dtype.name not in ("bfloat16", "uint16"):
        refuse(name, f"dtype {array.dtype}", "must be bfloat16 of ml_dtypes, or its bits as uint16")
    if array.dtype.name == "uint16":
        array = array.astype(np.uint16, copy=False)  # in this machine's order of bytes
    return np.ascontiguousarray(array).view(np.uint16)


def shown(name: str, value: ArrayLike) -> np.ndarray:
    """A mask of mask = bool. Of numbers nobody knows whether 0 hides a key, or is added to a score."""
    array = np.asarray(value)
    if array.dtype != np.bool_:
        refuse(name, f"dtype {array.dtype}",
               "must be bool, true where a key is seen: mask=\"add\" adds numbers to scores")
    return array


def added(name: str, value: ArrayLike) -> np.ndarray:
    """A mask of mask = add. Truth values and the ones of a tokenizer tell which keys are seen."""
    array = np.asarray(value)
    if array.dtype.kind in "biu":
        refuse(name, f"dtype {array.dtype}",
               "must be floats, which are added to scores: mask=\"bool\" reads true where a key is seen")
    return numbers(name, array, np.float32)


IO = {None: (np.float32, float32), "f16": (np.float16, half), "bf16": (np.uint16, bfloat16)}  # q, k, v and y


class Attention:
    """What mhagen.attention returns: `layer(x)` is y. Calls of several threads at the same time do not disturb each
    other. `kernel.data` has the numbers of the kernel, `kernel.folder` its C."""

    def __init__(self, kernel: _native.Kernel, threads: int = 1):
        self.kernel, self.threads = kernel, _native.count_of(threads)
        self.packed: np.ndarray | None = None if kernel.data.packed_bytes else _native.allocate(0)
        self.tables = kernel.tables({})
        self._workspaces: list[tuple[np.ndarray, int]] = []  # with addresses; as many as were in use at the same time
        self._shapes = {name: self._shapes_of(name) for name in "qkvy"}

    def __repr__(self) -> str:
        isa, packed = _native.text(self.kernel.data.isa), "not packed" if self.packed is None else "packed"
        config = " ".join(word for word in self.kernel.words if not word.startswith(("isa=", "name=")))
        return f"<mhagen.Attention {config} isa={isa}, weights {packed}, threads {self.threads}>"

    # ---- weights ----

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """{name: shape} of all weights that this kernel reads, y = x W."""
        kernel, data = self.kernel, self.kernel.data
        queries, keys, values = data.h * data.dk, data.h_kv * data.dk, data.h_kv * data.dv
        products = {"q": (data.d_model, queries), "k": (data.k_width, keys), "v": (data.v_width, values),
                    "o": (data.h * data.dv, data.y_width)}
        shapes: dict[str, tuple[int, ...]] = {}
        for letter, shape in products.items():
            if kernel.projects(letter.upper()):
                shapes |= {f"w{letter}": shape, f"b{letter}": shape[1:]}
        shapes |= {name: (data.h,) for name in SWITCHES if kernel.has(name.upper())}
        if kernel.has("QK_NORM"):
            head = data.norm_span == kernel.layouts["constant"]["MHAGEN_SPAN_HEAD"][0]
            shapes |= {"q_norm": (data.dk if head else queries,), "k_norm": (data.dk if head else keys,)}
        if kernel.has("ROPE") and not kernel.has("ROPE_AT_RUN"):
            shapes |= dict.fromkeys(TABLES, (-1, data.rope_dims // 2))
        return shapes | self._shapes_around()

    def _shapes_around(self) -> dict[str, tuple[int, ...]]:
        """The same of what is around attention: norms of rows, and a feed-forward."""
        kernel, data = self.kernel, self.kernel.data
        width, ffn, shapes = data.y_width, data.ffn, {}
        around = kernel.has("PRE_NORM") or kernel.has("POST_NORM")
        if around or kernel.has("FFN_NORM"):
            if around:
                shapes["norm1"] = (data.d_model if kernel.has("PRE_NORM") else width,)
            if kernel.has("FFN") and not kernel.has("PARALLEL"):
                shapes["norm2"] = (width,)
            if data.norm_kind == kernel.layouts["constant"]["MHAGEN_NORM_LAYER"][0]:
                shapes |= {f"{name}_bias": shape for name, shape in shapes.items()}
            if kernel.has("BRANCH_NORM"):
                shapes["norm1b"] = (width,)
                if kernel.has("FFN"):
                    shapes["norm2b"] = (width,)
        if kernel.has("FFN"):
            shapes |= {"w1": (width, ffn), "b1": (ffn,), "w2": (ffn, width), "b2": (width,)}
        if kernel.has("FFN_GATE"):
            shapes |= {"w3": (width, ffn), "b3": (ffn,)}
        if kernel.has("RESIDUAL") and not kernel.has("OUT_ACT"):
            shapes["gain1"] = (width,)
        return shapes | ({"gain2": (width,)} if kernel.has("FFN") else {})

    def pack(self, *, out_in: bool = False, **weights: Unpack[_keys.Weights]) -> Attention:
        """Packs the weights, float32, which are not needed any more afterwards. With out_in matrices are [out][in], as
        torch.nn.Linear has them. A bias that is not given is zero. Returns the layer."""
        arrays: dict[str, Any] = {**weights}
        self.packed = self.packed_of(out_in=out_in, **arrays)
        angles = {name: float32(name, arrays[name]) for name in TABLES if arrays.get(name) is not None}
        self.tables = self.kernel.tables({name: table.ctypes.data for name, table in angles.items()})
        return self

    def packed_of(self, *, out_in: bool = False, **weights: ArrayLike | None) -> np.ndarray:
        """What pack makes of weights, for layers of several weights and one kernel."""
        shapes, arrays = self.weight_shapes(), {}
        for name, given in weights.items():
            if given is None:
                continue
            if name not in shapes:
                refuse(name, "a weight", f"this kernel reads {', '.join(shapes) or 'none'}")
            array = float32(name, given)
            shape = shapes[name]
            if shape[0] == -1:
                shape = (array.shape[:1] or (-1,)) + shape[1:]
            if len(shape) == 2 and out_in and name.startswith("w"):
                shape = shape[::-1]
            arrays[name] = shaped(name, array, [shape])
        lacking = [name for name in shapes if name[0] == "w" and name not in arrays]
        if lacking:
            refuse(", ".join(lacking), "not given", "a layer needs these weights")
        layout = self.kernel.layouts["constant"]["MHAGEN_OUT_IN"][0] if out_in else 0
        packed = _native.allocate(self.kernel.data.packed_bytes)
        self.kernel.pack({**{name: array.ctypes.data for name, array in arrays.items()}, "layout": layout},
                         packed.ctypes.data)
        return packed

    # ---- runs ----

    def __call__(self, q: ArrayLike, k: ArrayLike | None = None, v: ArrayLike | None = None, *,
                 out: np.ndarray | None = None, threads: int | None = None, mask: ArrayLike | None = None,
                 cache: np.ndarray | None = None, kv_len: ArrayLike | None = None, kv_start: ArrayLike | None = None,
                 row_keys: ArrayLike | None = None, q_len: ArrayLike | None = None, past: ArrayLike | None = None,
                 rope_cos: ArrayLike | None = None, rope_sin: ArrayLike | None = None,
                 k_rope_cos: ArrayLike | None = None, k_rope_sin: ArrayLike | None = None) -> Result:
        """y; with probs or scores in the config (y, probs), (y, scores) or (y, probs, scores). Lengths are integers, or
        one for each batch entry. row_keys is [batch][seq][2], or [seq][2] for all entries: the first key that a row
        sees, and the end of its keys. Likewise rope_cos and rope_sin are [batch][seq][rope_dims / 2] or
        [seq][rope_dims / 2]. Arrays that lie as the kernel reads them are not copied."""
        arrays = self._inputs({"q": q, "k": k, "v": v, "mask": mask, "row_keys": row_keys, "cache": cache,
                               "kv_len": kv_len, "kv_start": kv_start, "q_len": q_len, "past": past,
                               "rope_cos": rope_cos, "rope_sin": rope_sin, "k_rope_cos": k_rope_cos,
                               "k_rope_sin": k_rope_sin}, self.kernel.needs)
        shape = self._shapes["y"][arrays["q"].shape not in self._shapes["q"][0]][0]
        make = np.zeros if "q_len" in self.kernel.needs else np.empty  # rows behind q_len are not written
        arrays["y"] = make(shape, self._dtype) if out is None else self._output(out, shape, arrays)
        data = self.kernel.data
        results = [name for name in ("probs", "scores") if name in self.kernel.needs]
        for name in results:
            arrays[name] = make((data.batch, data.h, data.seq, data.seq_kv), np.float32)
        number = self.threads if threads is None else threads
        self.run({name: array.ctypes.data for name, array in arrays.items()}, number)
        y = arrays["y"] if out is None else out
        return (y, *(arrays[name] for name in results)) if results else y

    def fill(self, k: ArrayLike, v: ArrayLike, cache: np.ndarray, *, k_rope_cos: ArrayLike | None = None,
             k_rope_sin: ArrayLike | None = None) -> None:
        """With cache = fixed: projects keys and values into the cache, once for many runs."""
        if not self.kernel.fill_needs:
            refuse("fill", "this kernel has none", "the config needs cache = fixed")
        arrays = self._inputs({"k": k, "v": v, "cache": cache, "k_rope_cos": k_rope_cos, "k_rope_sin": k_rope_sin},
                              self.kernel.fill_needs)
        with self._memory({name: array.ctypes.data for name, array in arrays.items()}) as pointers:
            self.kernel.fill(pointers)

    def new_cache(self) -> np.ndarray:
        """A cache with nothing in it, for all batch entries."""
        if not self.kernel.data.cache_bytes:
            refuse("new_cache", "this kernel has none", "the config needs cache = append or fixed")
        cache = _native.allocate(self.kernel.data.batch * self.kernel.data.cache_bytes)
        cache[:] = 0
        return cache

    def run(self, arguments: Mapping[str, int], threads: int, packed: np.ndarray | None = None) -> None:
        """A run on addresses, with the weights that are packed here or with others."""
        with self._memory(arguments, packed) as pointers:
            self.kernel.run(pointers, threads)

    @contextlib.contextmanager
    def _memory(self, arguments: Mapping[str, int], packed: np.ndarray | None = None) -> Iterator[dict[str, int]]:
        """The arguments, with packed weights and a workspace that nobody else uses meanwhile."""
        packed = self.packed if packed is None else packed
        if packed is None:
            refuse("weights", "not packed", "call pack(wq=..., ...) first")
        try:
            workspace = self._workspaces.pop()
        except IndexError:
            memory = _native.allocate(self.kernel.data.workspace_bytes)
            workspace = memory, memory.ctypes.data
        try:
            tables = {} if self.tables is None else {"tables": self.tables.ctypes.data}
            yield {**arguments, **tables, "packed": packed.ctypes.data, "workspace": workspace[1]}
        finally:
            self._workspaces.append(workspace)

    # ---- arrays ----

    def _shapes_of(self, name: str) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Those that q, k, v or y may have, and those without the axis of the batch, where it has one entry. Heads in
        the last axes may be one axis."""
        kernel, data = self.kernel, self.kernel.data
        projection, heads, width, whole = {
            "q": ("Q", data.h, data.dk, data.d_model), "k": ("K", data.h_kv, data.dk, data.k_width),
            "v": ("V", data.h_kv, data.dv, data.v_width), "y": ("O", data.h, data.dv, data.y_width)}[name]
        rows = data.seq if name in "qy" or kernel.has("CACHE_APPEND") else data.seq_kv
        shapes: list[tuple[int, ...]]
        if kernel.projects(projection):
            shapes = [(data.batch, rows, whole)]
        elif kernel.has("BHSD"):
            shapes = [(data.batch, heads, rows, width)]
        else:
            shapes = [(data.batch, rows, heads, width), (data.batch, rows, heads * width)]
        return shapes, [shape[1:] for shape in shapes if data.batch == 1]

    def mask_shape(self) -> tuple[int, ...]:
        data = self.kernel.data
        axes = {"b": data.batch, "h": data.h, "q": data.seq, "k": data.seq_kv}
        return tuple(axes[letter] for letter in _native.text(data.mask_dims) or "")

    @property
    def _dtype(self) -> type:
        return IO[_native.text(self.kernel.data.io_dtype)][0]

    def _inputs(self, given: Mapping[str, Any], needs: Mapping[str, int]) -> dict[str, np.ndarray]:
        """The arrays of a call, as the kernel reads them."""
        arrays = {name: self._input(name, value, needs) for name, value in given.items() if value is not None}
        lacking = [name for name in needs if name not in arrays and name not in MADE]
        if lacking:
            refuse(", ".join(lacking), "not given", "this kernel reads it")
        return arrays

    def _input(self, name: str, value: Any, needs: Mapping[str, int]) -> np.ndarray:
        if name not in needs or name in MADE:
            refuse(name, "given", f"this kernel reads {', '.join(each for each in READ if each in needs)}")
        if name in LENGTHS:
            whole = np.asarray(value)
            if whole.dtype.kind not in "iu" or whole.shape not in ((), (self.kernel.data.batch,)):
                refuse(name, value, f"must be an integer, or {self.kernel.data.batch} of them")
            if whole.min() < 0 or whole.max() > needs[name]:
                refuse(name, value, f"must be from 0 to {needs[name]}")
            return np.full(self.kernel.data.batch, whole, np.int32)
        if name == "row_keys":
            return self._ranges(name, value)
        if name in ANGLES:
            return self._angles(name, value)
        if name == "mask":
            shape = self.mask_shape()
            mask = (shown if self.kernel.has("MASK_BOOL") else added)(name, value)
            if mask.ndim != len(shape) or any(size not in (1, whole) for size, whole in zip(mask.shape, shape)):
                refuse(name, f"shape {mask.shape}", f"must be {shape}, or 1 in the place of any of these")
            return np.ascontiguousarray(np.broadcast_to(mask, shape))
        if name == "cache":
            return self._own(name, value, np.uint8, (self.kernel.data.batch * self.kernel.data.cache_bytes,))
        array = IO[_native.text(self.kernel.data.io_dtype)][1](name, value)
        return shaped(name, array, sum(self._shapes[name], []))

    def _ranges(self, name: str, value: Any) -> np.ndarray:
        """A range of keys for each row. The kernel checks those of the rows that q_len asks for."""
        ranges, shape = np.asarray(value), (self.kernel.data.batch, self.kernel.data.seq, 2)
        if ranges.dtype.kind not in "iu" or ranges.shape not in (shape, shape[1:]):
            refuse(name, value, f"must be integers of the shape {shape} or {shape[1:]}")
        numbers = np.clip(ranges.astype(np.int64), -1, 2**31 - 1)  # what is wrong stays so in 32 bits
        return np.ascontiguousarray(np.broadcast_to(numbers, shape), np.int32)

    def _angles(self, name: str, value: Any) -> np.ndarray:
        """Cosines or sines of the pairs of each row."""
        data = self.kernel.data
        shape = (data.batch, data.seq if name in TABLES else data.seq_kv, data.rope_dims // 2)
        return np.ascontiguousarray(np.broadcast_to(shaped(name, float32(name, value), [shape, shape[1:]]), shape))

    def _own(self, name: str, array: Any, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
        """An array that is written to, so it must lie as the kernel has it."""
        bits = ("bfloat16",) if name == "out" and dtype is np.uint16 else ()
        if not isinstance(array, np.ndarray) or array.dtype != dtype and array.dtype.name not in bits or \
                not array.flags.carray:
            refuse(name, getattr(array, "dtype", type(array).__name__),
                   f"is written to, and must be a contiguous, writable array of {' or '.join((dtype.__name__, *bits))}")
        return shaped(name, array, [shape])

    def _output(self, out: np.ndarray, shape: tuple[int, ...], inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Kernels write parts of y before they have read all inputs."""
        y = self._own("out", out, self._dtype, shape)
        for name, array in inputs.items():
            if np.may_share_memory(y, array):
                refuse("out", f"the memory of {name}", "y must have memory of its own")
        return y
