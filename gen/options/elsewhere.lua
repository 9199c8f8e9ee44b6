-- Words of other tools for what is no key here, and keys that are gone, with what is to be said of them.

return {
  { "is no key: it counts the row itself, so window_left is sliding_window - 1", "sliding_window" },
  { "is no key: scaled angles are tables, rope_cos and rope_sin in mhagen_weights",
    "rope_scaling", "rope_type", "rope_parameters" },
  { "is no key, but a value of dtype and attend_dtype", "f16", "fp16", "float16", "half", "bf16", "bfloat16" },
  { "is no key, but a value of dtype and weight_dtype", "int8", "quantization" },
  { "is no key, but a value of weight_dtype", "int4" },
  { "is not supported: a kernel does not train", "dropout", "attn_dropout", "attention_dropout" },
  { "is no key: a bias is a pointer in mhagen_weights, which may be null",
    "bias", "qkv_bias", "use_bias", "attention_bias", "add_bias_kv" },
  { "is no key: any kernel runs on a pool of threads", "threads", "num_threads", "n_threads" },
  { "is no key any more, for it made no kernel faster: leave it out", "k_unroll", "out_block" },
  { "is no key: a kernel is one attention block",
    "layers", "num_layers", "n_layer", "num_hidden_layers", "intermediate_size", "vocab_size" },
}
