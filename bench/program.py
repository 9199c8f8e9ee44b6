"""A whole model as C (`mhagen model --whole`), compiled and loaded."""
import ctypes
import re
import subprocess
import time

from suite import MHAGEN


def memory(size):
    """Memory of which a program may take any part that begins at a multiple of 64 bytes, and where it begins."""
    room = ctypes.create_string_buffer(size + 63)
    return room, (ctypes.addressof(room) + 63) // 64 * 64


def least_times(runs, rounds, in_a_row, *arguments):
    """The least seconds of each function of { name: function }, in rounds in which all have their turn. Each runs some
    times in a row then, and finds its weights in the caches, as in a program of its own."""
    best = dict.fromkeys(runs, 1e9)
    for _ in range(rounds):
        for name, run in runs.items():
            for _ in range(in_a_row):
                start = time.perf_counter()
                run(*arguments)
                best[name] = min(best[name], time.perf_counter() - start)
    return best


class Program:
    """A model's program: `run(name=value, ...)` takes the fields of model_args, arrays as NumPy's."""

    def __init__(self, model, out, words, fields):
        """fields: those of model_args that lie before and after `packed`, in their order; a number has the type int."""
        def field(name):
            return name, ctypes.c_int if name in ("length", "past") else ctypes.c_void_p
        self.args = type("Args", (ctypes.Structure,), {"_fields_": list(map(field, fields))})
        subprocess.run([MHAGEN, "model", model, "--whole", "-o", out, "--quiet", *words], check=True)
        self.sources = list(out.glob("*.c"))
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", *self.sources, "-lpthread", "-o", out / "model.so"],
                       check=True)
        self.library, self.file = ctypes.CDLL(out / "model.so"), out / "model.packed"
        self.library.mhagen_pool_create.restype = ctypes.c_void_p
        self.sizes = {key: int(value) for key, value in
                      re.findall(r"#define MODEL_(\w+) (\d+)", (out / "model.h").read_text())}
        data = self.file.read_bytes()
        self.bytes, self.packed, self.workspace = len(data), memory(len(data)), memory(self.sizes["WORKSPACE_BYTES"])
        ctypes.memmove(self.packed[1], data, len(data))
        self.pool = None

    def take_threads(self, count):
        self.pool = ctypes.c_void_p(self.library.mhagen_pool_create(count)) if count > 1 else None

    def run(self, **fields):
        at = {name: value.ctypes.data if hasattr(value, "ctypes") else value for name, value in fields.items()}
        args = self.args(packed=self.packed[1], workspace=self.workspace[1], pool=self.pool, **at)
        status = self.library.model_run(ctypes.byref(args))
        assert status == 0, f"status {status}"
