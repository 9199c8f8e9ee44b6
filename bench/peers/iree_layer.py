"""IREE: the layer as JAX traces it, compiled to machine code ahead of time, on one thread."""
import importlib.metadata
import io

import iree.compiler
import iree.runtime
import jax
import numpy as np

from jax_layer import explicit, layer

FLAGS = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"]


def version():
    return importlib.metadata.version("iree-base-compiler")


def setup(*flags):
    def of(p):
        traced, text = jax.jit(layer(p, explicit)).lower(p.x).compiler_ir("stablehlo"), io.BytesIO()
        traced.operation.write_bytecode(text)
        binary = iree.compiler.compile_str(text.getvalue(), input_type="stablehlo", target_backends=["llvm-cpu"],
                                           extra_args=[*FLAGS, *flags])
        config = iree.runtime.Config("local-sync")
        context = iree.runtime.SystemContext(config=config)
        module = iree.runtime.VmModule.copy_buffer(context.instance, binary)
        context.add_vm_module(module)
        x, result = iree.runtime.asdevicearray(config.device, p.x), [None]
        function = context.modules[module.name]["main"]

        def run():
            result[0] = function(x)

        return run, lambda: np.asarray(result[0])
    return of


FORMS = {"as it is": setup(), "tiles of data": setup("--iree-opt-data-tiling"),
         "tiles of data, microkernels": setup("--iree-opt-data-tiling", "--iree-llvmcpu-enable-ukernels=all")}
