"""Models of transformers as GGUF files, as the converter of llama.cpp at commit 0c1e57098 writes them: conversion/*.py
has the fields and what it does to tensors, and the package gguf their names."""
import math
import re
import typing

import pytest

from tools import installed

if not installed("gguf"):
    pytest.skip("gguf is not installed", allow_module_level=True)

import gguf

from whole_lib import torch


def head_width(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def sizes(config):
    """Fields that all models have."""
    ffn = next(value for value in (getattr(config, name, None) for name in ("intermediate_size", "n_inner",
                                                                            "hidden_dim")) if value)
    return {"block_count": config.num_hidden_layers, "embedding_length": config.hidden_size,
            "feed_forward_length": ffn, "context_length": config.max_position_embeddings,
            "attention.head_count": config.num_attention_heads}


def of_rope(config):
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    return {"rope.freq_base": float(rope["rope_theta"])}


def of_llama(config):
    return {"attention.head_count_kv": config.num_key_value_heads, "attention.key_length": head_width(config),
            "attention.value_length": head_width(config), "rope.dimension_count": head_width(config),
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps, **of_rope(config)}


def of_phi3(config):
    rope = config.rope_parameters
    width = int(rope.get("partial_rotary_factor", 1) * config.hidden_size) // config.num_attention_heads
    fields = {name: value for name, value in of_llama(config).items() if "_length" not in name}
    fields |= {"rope.dimension_count": width, "attention.sliding_window": config.sliding_window or 0}
    if "long_factor" in rope:
        trained = rope["original_max_position_embeddings"]
        scale = max(1, config.max_position_embeddings / trained)
        fields |= {"rope.scaling.original_context_length": trained,
                   "rope.scaling.attn_factor": math.sqrt(1 + math.log(scale) / math.log(trained))}
    return fields


def factors_of_phi3(config):
    rope = config.rope_parameters
    return {f"rope_factors_{kind}.weight": torch.tensor(rope[f"{kind}_factor"]) for kind in ("short", "long")
            if "long_factor" in rope}


def of_mistral3(config):
    rope = config.rope_parameters
    return {**of_llama(config), "rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": rope["beta_fast"], "rope.scaling.yarn_beta_slow": rope["beta_slow"],
            "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
            "attention.temperature_scale": rope["llama_4_scaling_beta"]}


def of_gemma3(config):
    whole, local = (config.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    window = config.to_dict()["sliding_window"]  # the object has half of it where rows see those behind them
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": whole["factor"]} if "factor" in whole else {}
    return {**of_llama(config), **scaling, "attention.sliding_window": window,
            "rope.freq_base_swa": float(local["rope_theta"])}


def of_bert(config):
    eps = getattr(config, "layer_norm_eps", 1e-12)  # DistilBERT has no field for it
    return {"attention.causal": False, "attention.layer_norm_epsilon": eps}


def of_roberta(config):
    return {**of_bert(config), "context_length": config.max_position_embeddings - config.pad_token_id - 1}


def of_modernbert(config):
    return {"attention.causal": False, "attention.layer_norm_epsilon": config.norm_eps, **of_rope(config),
            "rope.freq_base_swa": float(config.rope_parameters["sliding_attention"]["rope_theta"]),
            "attention.sliding_window": config.local_attention, "rope.scaling.type": "none",
            "vocab_size": config.vocab_size, "hidden_activation": config.hidden_activation}


def neighbours(config, name, x):
    """Rope turns neighbours."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
    return x.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2) if heads else x


def behind_padding(config, name, x):
    return x[config.pad_token_id + 1:] if name == "position_embd.weight" else x


class Kind(typing.NamedTuple):
    arch: str
    fields: typing.Callable = of_llama  # of the config, besides `sizes`
    changed: typing.Callable = lambda config, name, x: x  # a tensor by its name in the file
    more: typing.Callable = lambda config: {}  # further tensors
    renamed: dict = {}  # names that transformers has, and those of the model's first code, which the converter knows


GEMMA3 = Kind("gemma3", of_gemma3, lambda config, name, x: x + name.endswith("norm.weight"))
KINDS = {
    "llama": Kind("llama", changed=neighbours), "mistral": Kind("llama", changed=neighbours),
    "ministral3": Kind("mistral3", of_mistral3, neighbours),
    "qwen2": Kind("qwen2"), "qwen3": Kind("qwen3"),
    "phi3": Kind("phi3", of_phi3, more=factors_of_phi3),
    "gemma3_text": GEMMA3,
    "gpt2": Kind("gpt2", lambda config: {"attention.layer_norm_epsilon": config.layer_norm_epsilon},
                 lambda config, name, x: x.T if name.startswith("blk.") and x.ndim > 1 else x),
    "bert": Kind("bert", of_bert), "distilbert": Kind("bert", of_bert),
    **{kind: Kind("bert", of_roberta, behind_padding) for kind in ("roberta", "xlm-roberta", "camembert")},
    "nomic_bert": Kind("nomic-bert", lambda config: {**of_bert(config), **of_rope(config)}, renamed={
        r"^layers\.(\d+)\.self_attn\.([qkv])_proj": r"blk.\1.attn_\2",
        r"^layers\.(\d+)\.post_attention_layernorm": r"blk.\1.attn_output_norm",
        r"^layers\.(\d+)\.post_mlp_layernorm": r"blk.\1.layer_output_norm"}),
    "modernbert": Kind("modern-bert", of_modernbert),
    "eurobert": Kind("eurobert", lambda config: {**of_llama(config), "attention.causal": False}),
}


def tensors_of(kind, model):
    """(the name of a tensor in the file, the tensor), of all that the converter takes."""
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == kind.arch)
    known = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    for name, x in model.state_dict().items():
        now = name
        for pattern, other in kind.renamed.items():
            now = re.sub(pattern, other, now)
        if now == name:
            now = known.get_name(name, (".weight", ".bias"))
        tied = name == "lm_head.weight" and model.config.tie_word_embeddings
        if now and not tied:
            yield now, kind.changed(model.config, now, x)
        else:
            assert tied or name.startswith("pooler."), name


def kind_of(config):
    both = getattr(config, "use_bidirectional_attention", False)
    return GEMMA3._replace(arch="gemma-embedding") if both else KINDS[config.model_type]


def as_gguf(model, path, words="F32", maps="F32", tensors={}, **fields):
    """The file of a model. words, maps: the types of the table of words and of matrices; tensors, fields: further ones,
    or in place of its own; a field of None is left out."""
    kind = kind_of(model.config)
    writer = gguf.GGUFWriter(path, kind.arch)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
           list: writer.add_array, type(None): lambda name, value: None}
    for name, value in {**sizes(model.config), **kind.fields(model.config), **fields}.items():
        add[type(value)](f"{kind.arch}.{name}", value)
    for name, x in {**dict(tensors_of(kind, model)), **kind.more(model.config), **tensors}.items():
        of = gguf.GGMLQuantizationType[words if name == "token_embd.weight" else maps if x.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(x.detach().float().contiguous().numpy(), of), raw_dtype=of)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file,
                  writer.close):
        write()
    return path
