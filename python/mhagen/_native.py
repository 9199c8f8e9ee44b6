"""A library of a kernel, called through ctypes.

    load(words)      the Kernel of a config; each is loaded once
    allocate(bytes)  an array of bytes with the alignment of packed weights, workspaces and caches
"""
from __future__ import annotations

import ctypes
import functools
import operator
import os
import struct
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, SupportsIndex

import numpy as np

from . import _build

ALIGN = 64  # MHAGEN_ALIGN
MAX_THREADS = 1024  # MHAGEN_MAX_THREADS
Layout = Mapping[str, "tuple[int, str]"]  # {field: (offset, format)}; the size of the struct is that of ""


class Field(ctypes.Structure):  # as layout.c has it
    _fields_ = [("of", ctypes.c_char_p), ("name", ctypes.c_char_p), ("value", ctypes.c_size_t),
                ("kind", ctypes.c_char)]


def layouts(library: ctypes.CDLL) -> dict[str, dict[str, tuple[int, str]]]:
    """{struct: Layout}"""
    rows = (Field * 1000).in_dll(library, "mhagen_python_fields")  # the last one has no name
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for row in rows:
        if not row.of:
            break
        found.setdefault(row.of.decode(), {})[row.name.decode()] = row.value, row.kind.decode()
    return found


def read(layout: Layout, address: int) -> SimpleNamespace:
    """The fields of a struct in memory."""
    data = ctypes.string_at(address, layout[""][0])
    return SimpleNamespace(**{name: struct.unpack_from(kind, data, at)[0]
                              for name, (at, kind) in layout.items() if name})


def write(layout: Layout, values: Mapping[str, int]) -> ctypes.Array[ctypes.c_char]:
    """A struct with these fields, and zeros in the place of others."""
    data = ctypes.create_string_buffer(layout[""][0])
    for name, value in values.items():
        at, kind = layout[name]
        struct.pack_into(kind, data, at, value)
    return data


def text(address: int) -> str | None:
    return ctypes.string_at(address).decode() if address else None


def allocate(size: int) -> np.ndarray:
    whole = np.empty(size + ALIGN - 1, np.uint8)
    return whole[-whole.ctypes.data % ALIGN:][:size]


class Kernel:
    """`data` has the numbers of mhagen_kernel. `needs` and `fill_needs` are {argument: its largest integer, or -1}."""

    def __init__(self, words: tuple[str, ...]):
        path = _build.library(words)
        self.words, self.folder = words, path.parent
        self.name = next(word.removeprefix("name=") for word in words if word.startswith("name="))
        self.library = ctypes.CDLL(str(path))
        for function in "mhagen_status_text", "mhagen_args_error", "mhagen_fill_error":
            getattr(self.library, function).restype = ctypes.c_char_p
        self.address = ctypes.addressof(ctypes.c_char.in_dll(self.library, f"{self.name}_kernel"))
        self.layouts = layouts(self.library)
        self.data = data = read(self.layouts["kernel"], self.address)
        self.needs = self._needs(data.needs, data.need_count)
        self.fill_needs = self._needs(data.fill_needs, data.fill_need_count)
        packs = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self._pack, self._pack_tables = packs(data.pack), packs(data.pack_tables or 0)
        self._tables: np.ndarray | None = None  # those of the kernel's own angles
        self._run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(data.run)
        size = ctypes.sizeof(ctypes.c_void_p)
        self._arguments = ctypes.c_void_p * (self.layouts["args"][""][0] // size)  # mhagen_args, all pointers
        self._slots = {name: at // size for name, (at, _) in self.layouts["args"].items()}
        if not ctypes.CFUNCTYPE(ctypes.c_int)(data.supported)():
            isa = ctypes.string_at(data.isa).decode()
            raise RuntimeError(f"mhagen: isa = {isa}: this CPU lacks its instructions: isa = native is for this one")
        self._require(ctypes.CFUNCTYPE(ctypes.c_int)(data.self_test)())

    def has(self, option: str) -> bool:
        """Whether the kernel's options have MHAGEN_<option>."""
        return bool(self.data.options & self.layouts["constant"][f"MHAGEN_{option}"][0])

    def projects(self, letter: str) -> bool:
        bit, _ = self.layouts["constant"][f"MHAGEN_PROJECT_{letter}"]
        return not self.has("UNPROJECTED") or bool(self.data.project & bit)

    def pack(self, weights: Mapping[str, int], packed: int) -> None:
        """weights: addresses, and the layout."""
        self._require(self._pack(write(self.layouts["weights"], weights).raw, packed))

    def tables(self, given: Mapping[str, int]) -> np.ndarray | None:
        """Tables of rope, if they are apart: of addresses that are given, or what all layers without such share."""
        if not self.data.tables_bytes or not given and self._tables is not None:
            return self._tables
        tables = allocate(self.data.tables_bytes)
        self._require(self._pack_tables(write(self.layouts["weights"], given).raw, tables.ctypes.data))
        if not given:
            self._tables = tables
        return tables

    def run(self, arguments: Mapping[str, int], threads: int = 1) -> None:
        """arguments: addresses. Other threads of Python run meanwhile."""
        args = self._arguments()
        for name, address in arguments.items():
            args[self._slots[name]] = address
        if threads == 1:
            status = self._run(args)
        else:
            lock, pool = pool_of(runtime(self), count_of(threads))
            with lock:
                status = runtime(self).mhagen_run_parallel(ctypes.c_void_p(self.address), args, ctypes.c_void_p(pool))
        if status:
            self._refuse(self.library.mhagen_args_error(ctypes.c_void_p(self.address), args))

    def fill(self, arguments: Mapping[str, int]) -> None:
        args = write(self.layouts["args"], arguments)
        if ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self.data.fill)(ctypes.addressof(args)):
            self._refuse(self.library.mhagen_fill_error(ctypes.c_void_p(self.address), args))

    def _needs(self, address: int, count: int) -> dict[str, int]:
        names = {at: name for name, (at, _) in self.layouts["args"].items() if name}
        need = self.layouts["need"]
        rows = [read(need, address + row * need[""][0]) for row in range(count)]
        return {names[row.at]: row.most for row in rows}

    def _require(self, status: int) -> None:
        if status:
            self._refuse(self.library.mhagen_status_text(status))

    def _refuse(self, text: bytes) -> None:
        raise ValueError(f"mhagen: {self.name}: {text.decode()}")


@functools.cache
def load(words: tuple[str, ...]) -> Kernel:
    return Kernel(words)


# ---- threads: all kernels share the pools of one of their runtimes ----

_first: list[ctypes.CDLL] = []
_pools: dict[int, tuple[Any, int]] = {}  # {threads: (lock, address)}; one run at a time
_making = threading.Lock()


def runtime(kernel: Kernel) -> ctypes.CDLL:
    if not _first:
        kernel.library.mhagen_pool_create.restype = ctypes.c_void_p
        _first.append(kernel.library)
    return _first[0]


def count_of(threads: SupportsIndex) -> int:
    """C would take the last 32 bits of a larger one."""
    try:
        count = operator.index(threads)
    except TypeError:
        count = 0
    if not 1 <= count <= MAX_THREADS:
        raise ValueError(f"mhagen: threads = {threads!r}: must be an integer from 1 to {MAX_THREADS}")
    return count


def pool_of(library: ctypes.CDLL, threads: int) -> tuple[Any, int]:
    with _making:
        if threads not in _pools:
            address = library.mhagen_pool_create(threads)
            if not address:
                raise ValueError(f"mhagen: threads = {threads}: there is no memory for them")
            _pools[threads] = threading.Lock(), address
        return _pools[threads]


def after_fork() -> None:
    """A child has none of the threads, and a lock may have been held: it makes its own."""
    global _making
    _making = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=after_fork)
