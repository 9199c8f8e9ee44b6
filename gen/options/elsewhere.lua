-- Words that are keys in other tools but not here, and keys that no longer exist, each with what to say about it.
-- `values` has other tools' values of a key, by key.

local LENGTHS = "give the most rows of a run, and q_len=true kv_len=true for shorter ones; or several lengths, 16,32,64"

return {
  values = {
    isa = {
      { "isa=native on the command line is the widest of this CPU, x86 a bundle for any",
        "auto", "best", "host", "any" },
      { "isa=x86 is a bundle for any such CPU", "x86-64", "x86_64", "amd64", "x64", "intel", "amd" },
      { "isa=neon is for any such CPU", "arm64", "aarch64", "asimd", "apple" },
      { "compilers use SSE for scalar", "sse", "sse2", "sse3", "ssse3", "sse4", "sse4.1", "sse4.2" },
    },
    dtype = {
      { "weights alone may have 4 bits: weight_dtype=int4", "int4", "uint4", "i4", "4bit", "q4_0", "q4_1", "nf4", "fp4",
        "nvfp4", "mxfp4", "w4a16", "int4_awq" },
      { "weights alone may have 8 bits: weight_dtype=int8, and products of int8 are dtype=int8", "q8_0", "w8a16" },
    },
    rope = {
      { "half turns columns i and i + rope_dims / 2, as Llama of transformers; interleaved 2i and 2i + 1, as GPT-J",
        "true", "yes", "on", "rotary", "default", "llama" },
      { "that is half", "neox", "gpt_neox", "rotate_half" }, { "that is interleaved", "gptj", "gpt_j", "adjacent" },
    },
    mask = {
      { "causal=true is a key of its own, and needs no mask", "causal", "tril", "lower" },
      { "bool reads a byte of each key, add a float that is added to the score", "true", "yes", "on", "float", "f32" },
      { "kv_len=true has the lengths of padded sequences", "padding", "key_padding" },
    },
    cache = { { "append is for a decoder's own keys, fixed for those of an encoder", "true", "yes", "on", "dynamic",
                "static" } },
    qk_norm = { { "rms is that of Qwen 3 and Gemma 3, layer that of Cohere", "true", "yes", "on" } },
    seq = { { LENGTHS, "dynamic", "any", "auto", "none", "variable", "-1", "n", "?" } },
    seq_kv = { { LENGTHS, "dynamic", "any", "auto", "none", "variable", "-1", "n", "?" } },
  },

  { "is no key: it counts the row itself, so window_left is sliding_window - 1", "sliding_window" },
  { "is no key: JAX's has as many keys before the row, as window_left, and ONNX Runtime's counts the row itself",
    "local_window_size" },
  { "is no key: scaled angles are tables, rope_cos and rope_sin in mhagen_weights",
    "rope_scaling", "rope_type", "rope_parameters" },
  { "is no key, but a value of dtype and attend_dtype", "f16", "fp16", "float16", "half", "bf16", "bfloat16" },
  { "is no key, but a value of dtype and weight_dtype", "int8", "quantization" },
  { "is no key, but a value of weight_dtype", "int4" },
  { "is no key: runs have it as args.past with cache=append", "past", "past_len", "past_length", "cache_position" },
  { "is no key: matrices are pointers in mhagen_weights, and files of `mhagen pack`, which has wq, wk, wv and wo",
    "w_q", "w_k", "w_v", "w_o", "wqkv", "w_qkv", "in_proj_weight", "q_proj", "k_proj", "v_proj", "o_proj", "out_proj" },
  { "is no key of a config: a file of `mhagen pack`, and a pointer in mhagen_weights", "wq", "wk", "wv", "wo",
    "bq", "bk", "bv", "bo", "w1", "w2", "w3", "b1", "b2", "b3", "norm1", "norm2", "norm1b", "norm2b", "gain1",
    "gain2" },
  { "is no key: layer scale is gain1 and gain2 in mhagen_weights, which may be null",
    "layer_scale", "layerscale_value", "init_values" },
  { "is not supported: a kernel does not train", "dropout", "attn_dropout", "attention_dropout" },
  { "is no key: a bias is a pointer in mhagen_weights, which may be null",
    "bias", "qkv_bias", "use_bias", "attention_bias", "add_bias_kv" },
  { "is no key: any kernel runs on a pool of threads", "threads", "num_threads", "n_threads" },
  { "is no key any more, for it made no kernel faster: leave it out", "k_unroll", "out_block" },
  { "is no key any more: it saved 3 to 7 % on long float32 kernels, at twice the error; leave it out", "strassen" },
  { "is no key: a kernel is one layer", "layers", "num_layers", "n_layer", "num_hidden_layers", "vocab_size" },
}
