"""zentorch, AMD's extension of PyTorch: compositions of PyTorch's functions, compiled by its backend."""
import torch
import zentorch
from pytorch import Explicit, model, runner


def version():
    return f"{zentorch.__version__}, torch {torch.__version__}"


def compiled(module, p, dtype=torch.float32):
    import torch._inductor.config
    torch._inductor.config.freezing = True  # packs the weights
    return runner(torch.compile(module.to(dtype), backend="zentorch", dynamic=False), p, dtype)


FORMS = {
    "linear and scaled_dot_product_attention": lambda p: compiled(model(p), p),
    "linear, matmul and softmax": lambda p: compiled(model(p, Explicit), p),
}
BF16 = {"linear and scaled_dot_product_attention": lambda p: compiled(model(p), p, torch.bfloat16)}
