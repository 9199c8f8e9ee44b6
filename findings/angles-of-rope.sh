#!/bin/sh
# One float32 program as JAX lowers it: the cosine of a position, which is the angle of the first pair in rotary position
# embeddings. JAX's own runtime is right to 4e-8 at any position. Compiled by IREE for the CPU, the error grows with the
# angle: 2e-4 at position 4,096 and 7e-3 at 131,072 for x86-64 in general, half of that with FMA. That is the size of the
# error that float32's pi would make. Nothing warns of it, and a test with short texts does not show it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 \
  iree-base-compiler==3.13.0 iree-base-runtime==3.13.0
"$folder/venv/bin/python" - << 'END'
import importlib.metadata
import io
import sys

import iree.compiler
import iree.runtime
import jax
import jax.numpy as jnp
import numpy as np

LENGTHS = [4096, 32768, 131072]
positions = np.arange(LENGTHS[-1], dtype=np.float32)  # whole numbers, which float32 has exactly
program = jax.jit(jnp.cos)
right = np.cos(positions.astype(np.float64))


def by_iree(x):
    module, text = program.lower(x).compiler_ir("stablehlo"), io.BytesIO()
    module.operation.write_bytecode(text)
    binary = iree.compiler.compile_str(text.getvalue(), input_type="stablehlo", target_backends=["llvm-cpu"],
                                       extra_args=["--iree-llvmcpu-target-cpu=generic"])
    config = iree.runtime.Config("local-sync")
    context = iree.runtime.SystemContext(config=config)
    module = iree.runtime.VmModule.copy_buffer(context.instance, binary)
    context.add_vm_module(module)
    return np.asarray(context.modules[module.name]["main"](iree.runtime.asdevicearray(config.device, x)))


print("jax", jax.__version__, "iree", importlib.metadata.version("iree-base-compiler"))
results = {"JAX": np.asarray(program(positions)), "IREE": by_iree(positions)}
errors = {name: [np.abs(y - right)[:length].max() for length in LENGTHS] for name, y in results.items()}
for name, found in errors.items():
    print(f"{name}: largest error of cos(position) below " +
          ", ".join(f"{length}: {error:.1e}" for length, error in zip(LENGTHS, found)))
is_so = max(errors["JAX"]) < 1e-7 and all(2e-8 < error / length < 8e-8 for length, error in zip(LENGTHS, errors["IREE"]))
sys.exit(0 if is_so else "this has changed")
END
