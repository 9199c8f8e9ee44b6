-- The options of a kernel, one row each: all that is particular to an option, but for what it does, is in
-- its row. gen/options/init.lua reads the rows.
--
--   key, kind   the kinds are in kinds.lua, with the fields that belong to them: min and max, choices
--   doc         what it is, in a table of the keys
--   default     or same_as, the key whose value it takes; or required, with an example; or computed,
--               which tells from what. Without any of them a missing key stays nil.
--   also        what other tools call it, for suggestions
--   divides     a key that must be a multiple of it
--   excludes    what it cannot be combined with unless it has its default: { key, is =, why = }; without `is` any
--               value but that key's default
--   beside      keys of which one must be on, or it would have no effect
--   name        what stands in a kernel's name before its value
--   word        what the description of a kernel says of it; %s is the value
--   bit         of mhagen_kernel.options
--   number      true where mhagen_kernel has the value as a number of the same name
--   args        the pointers of mhagen_args that a run then needs: { pointer =, most =, aligned =, input = }.
--               most: it is to an int for each batch entry, from 0 to the value of this key; aligned: to
--               MHAGEN_ALIGN; input: it is to a matrix that the formula names
--   weights     the pointers of mhagen_weights that packing then needs
--   idle        (plan): why the plan could not do what the option asks, or nil
--   draw        how tests/fuzz.py draws it: with this chance, from..to, or one of a list (another choice than
--               the default), or mostly small and sometimes large. tiny: the value of a tiny shape; twice,
--               with: keys to double and to set, so that the option has an effect

local cpu = require "cpu"
local isas = require "isa.init"
local types = require "types"

-- What any ISA allows; what the one of a config allows, the plan knows.
local isa_names, most_rows, most_vectors = {}, 0, 0
for i, isa in ipairs(isas.list) do
  isa_names[i] = isa.name
  for _, product in pairs(isa.products) do
    for _, rows in pairs(product.rows) do
      most_rows, most_vectors = math.max(most_rows, rows[1]), math.max(most_vectors, #rows)
    end
  end
end

local M = {}

-- What every kernel needs.
M.always = {
  args = { { pointer = "q", input = true }, { pointer = "y" }, { pointer = "packed", aligned = true },
           { pointer = "workspace", aligned = true } },
  weights = { { pointer = "wq" }, { pointer = "wk" }, { pointer = "wv" }, { pointer = "wo" } },
}

M.options = {
  { key = "h", kind = "integer", min = 1, max = 1024, required = true, example = 12, name = "_h",
    also = { "heads", "num_heads", "n_heads", "num_attention_heads", "n_head", "nhead" },
    doc = "number of heads", draw = { small = 8, large = 16 } },
  { key = "h_kv", kind = "integer", min = 1, max = 1024, same_as = "h", divides = "h", name = "_g",
    word = "%s of keys and values",
    also = { "kv_heads", "num_kv_heads", "n_kv_heads", "num_key_value_heads", "n_head_kv", "num_query_groups",
             "gqa", "mqa" },
    doc = "number of heads of keys and values, each shared by h / h_kv heads; divides h",
    draw = { chance = 0.3, from = 1, to = 8 } },
  { key = "d_model", kind = "integer", min = 1, max = 16384, required = true, example = 384, name = "_d",
    also = { "embed_dim", "dim", "width", "hidden_size", "hidden_dim", "n_embd" },
    doc = "width of the rows of Q, and of K, V and Y", draw = { small = 64, large = 300 } },
  { key = "dk", kind = "integer", min = 1, max = 1024, required = true, example = 32, name = "_k",
    also = { "head_dim", "d_k", "d_head", "head_size" },
    doc = "width of one head's queries and keys", draw = { small = 32, large = 128 } },
  { key = "dv", kind = "integer", min = 1, max = 1024, same_as = "dk", name = "_v",
    also = { "d_v", "v_head_dim" },
    doc = "width of one head's values", draw = { chance = 0.3, small = 32, large = 128 } },
  { key = "seq", kind = "integer", min = 1, max = 65536, required = true, example = 128, name = "_s",
    also = { "seq_len", "seq_q", "length", "max_position_embeddings", "n_positions", "n_ctx" },
    doc = "rows of Q and of Y", draw = { small = 64, large = 200 } },
  { key = "seq_kv", kind = "integer", min = 1, max = 65536, same_as = "seq", name = "_t",
    also = { "seq_k", "kv_seq" },
    excludes = { { key = "attention", is = "self", why = "which has one input" } },
    doc = "rows of K and V", draw = { chance = 0.7, small = 64, large = 200 } },
  { key = "k_width", kind = "integer", min = 1, max = 16384, same_as = "d_model", name = "_kw", also = { "kdim" },
    excludes = { { key = "attention", is = "self", why = "which has one input" } },
    doc = "width of the rows of K, with attention = cross", draw = { chance = 0.3, small = 64, large = 300 } },
  { key = "v_width", kind = "integer", min = 1, max = 16384, same_as = "d_model", name = "_vw", also = { "vdim" },
    excludes = { { key = "attention", is = "self", why = "which has one input" } },
    doc = "width of the rows of V, with attention = cross", draw = { chance = 0.3, small = 64, large = 300 } },
  { key = "y_width", kind = "integer", min = 1, max = 16384, same_as = "d_model", name = "_yw",
    doc = "width of the rows of Y", draw = { chance = 0.15, small = 64, large = 300 } },
  { key = "isa", kind = "choice", choices = isa_names, required = true, example = "avx2", name = "_",
    also = { "arch", "target", "simd" },
    doc = "instruction set" },
  { key = "name", kind = "identifier", computed = "from the other keys", also = { "prefix" },
    doc = "C identifier, prefix of everything exported" },
  { key = "attention", kind = "choice", choices = { "self", "cross" }, default = "self", name = "_",
    bit = "MHAGEN_CROSS", args = { { pointer = "k", input = true }, { pointer = "v", input = true } },
    doc = "one input, or three", draw = { chance = 0.35 } },
  { key = "causal", kind = "flag", default = false, name = "_causal", word = "causal",
    bit = "MHAGEN_CAUSAL", also = { "is_causal" },
    doc = "row r sees keys 0..pos(r); pos(r) is r, but for causal_align", draw = { chance = 0.35 } },
  { key = "kv_len", kind = "flag", default = false, name = "_len", word = "kv_len",
    bit = "MHAGEN_KV_LEN", args = { { pointer = "kv_len", most = "seq_kv" } },
    also = { "key_padding_mask", "lengths" },
    doc = "the number of valid keys is given at run time, per batch entry", draw = { chance = 0.35 } },
  { key = "batch", kind = "integer", min = 1, max = 65536, default = 1, name = "_b", word = "batch %s",
    also = { "batch_size" },
    doc = "sequences per call", draw = { chance = 0.3, from = 2, to = 4 } },
  { key = "probs", kind = "flag", default = false, name = "_probs", word = "probs",
    bit = "MHAGEN_PROBS", args = { { pointer = "probs" } }, also = { "weights", "need_weights" },
    doc = "also write the attention weights of every head", draw = { chance = 0.35 } },
  { key = "strassen", kind = "flag", default = false, name = "_strassen", bit = "MHAGEN_STRASSEN",
    also = { "winograd" },
    excludes = { { key = "causal", why = "for it mixes rows" }, { key = "kv_len", why = "for it mixes rows" },
                 { key = "window_left", why = "for it mixes rows" },
                 { key = "window_right", why = "for it mixes rows" } },
    idle = function(plan)
      if plan.stage.sums then return nil end
      return ("not here: rows and d_model must be even, and heads together a multiple of %d columns"):format(
        2 * plan.isa.lanes)
    end,
    doc = "an eighth fewer multiplications in the projections; error up to 2e-6; not where rows see different keys",
    draw = { chance = 0.15, twice = { "d_model", "seq" }, with = { dk = 32 } } }, -- where it has an effect
  { key = "window_left", kind = "integer", min = 0, max = 65536, name = "_wl", word = "%s keys to the left",
    bit = "MHAGEN_WINDOW_LEFT", number = true,
    also = { "window", "window_size", "sliding_window", "attention_window" },
    doc = "row r sees no key before pos(r) - window_left", draw = { chance = 0.15, from = 0, to = 20 } },
  { key = "window_right", kind = "integer", min = 0, max = 65536, name = "_wr", word = "%s keys to the right",
    bit = "MHAGEN_WINDOW_RIGHT", number = true,
    doc = "row r sees no key behind pos(r) + window_right", draw = { chance = 0.15, from = 0, to = 20 } },
  { key = "causal_align", kind = "choice", choices = { "top_left", "bottom_right" }, default = "top_left", name = "_",
    word = "%s", bit = "MHAGEN_BOTTOM_RIGHT", beside = { "causal", "window_left", "window_right" },
    doc = "bottom_right: pos(r) is r + seq_kv - seq, so that the last row stands at the last key",
    draw = { chance = 0.3 } },
  { key = "dtype", kind = "choice", choices = types.names, default = "f32", also = { "torch_dtype", "precision" },
    doc = "number type of the operands of products; leads a name", draw = { chance = 0.2, of = types.names } },
  { key = "cpu", kind = "choice", choices = cpu.names, default = "generic", schedule = true,
    also = { "mcpu", "march", "machine" },
    doc = "core whose caches and rates the plan goes by", draw = { chance = 0.1 } },
  { key = "fold", kind = "choice", choices = { "auto", "off" }, default = "auto", schedule = true,
    doc = "products of weights made when packing, where that takes fewer flops", draw = { chance = 0.2 } },
  { key = "unroll", kind = "choice", choices = { "auto", "tile", "k", "full" }, default = "auto", name = "_u",
    schedule = true,
    doc = "how much is straight-line code", draw = { of = { "auto", "auto", "tile", "k" }, tiny = "full" } },
  { key = "tuned", kind = "file",
    doc = "tuning file of `tune`: the schedule of this shape, for keys that are not given" },
}

-- The schedule. What is not given is the plan's choice.
M.schedule = {
  { key = "query_vectors", kind = "integer", min = 1, max = most_vectors,
    doc = "vectors of queries in one group", draw = { from = 1, to = 4 } },
  { key = "key_rows", kind = "integer", min = 1, max = most_rows,
    doc = "keys in a score tile", draw = { from = 1, to = 16 } },
  { key = "context_rows", kind = "integer", min = 1, max = most_rows,
    doc = "value columns in a context tile", draw = { from = 1, to = 16 } },
  { key = "q_lanes", kind = "choice", choices = { "queries", "columns" },
    doc = "the lanes of a vector in the query projection: several queries, or several columns",
    draw = { chance = 0.5, of = { "queries", "columns" } } },
  { key = "q_rows", kind = "integer", min = 1, max = most_rows,
    doc = "rows of a register tile of the query projection", draw = { from = 1, to = 16 } },
  { key = "kv_rows", kind = "integer", min = 1, max = most_rows,
    doc = "rows of a register tile of the key and value projections", draw = { from = 1, to = 16 } },
  { key = "kv_vectors", kind = "integer", min = 1, max = most_vectors,
    doc = "width of that tile, in vectors", draw = { from = 1, to = 4 } },
  { key = "out_rows", kind = "integer", min = 1, max = most_rows,
    doc = "rows of a register tile of the output projection", draw = { from = 1, to = 16 } },
  { key = "out_vectors", kind = "integer", min = 1, max = most_vectors,
    doc = "width of that tile, in vectors", draw = { from = 1, to = 4 } },
  { key = "out_block", kind = "integer", min = 1, max = 65536,
    doc = "queries per block of the output projection", draw = { from = 1, to = 64 } },
  { key = "key_block", kind = "integer", min = 1, max = 4096,
    doc = "keys per softmax block", draw = { from = 1, to = 64 } },
  { key = "k_block", kind = "integer", min = 16, max = 4096,
    doc = "longest accumulation chain", draw = { from = 16, to = 64 } },
  { key = "k_unroll", kind = "integer", min = 1, max = 64,
    doc = "K steps per loop iteration, but in tiles of few sums", draw = { from = 1, to = 8 } },
  { key = "head_block", kind = "integer", min = 1, max = 64, divides = "h", multiple = { "h", "h_kv" },
    doc = "heads projected together; divides h, a multiple of h / h_kv", draw = { from = 1, to = 8 } },
  { key = "code_limit", kind = "integer", min = 1000, max = 10000000, default = 60000, schedule = false,
    doc = "statements of the kernel's functions" },
}

-- Words of other tools for what is no key here, and what is to be said of them.
M.elsewhere = {
  { "is not supported yet: there are no positions in a kernel",
    "rope", "rope_theta", "rope_scaling", "rotary", "rotary_dim", "rotary_emb", "alibi", "position_bias",
    "relative_attention", "rel_pos" },
  { "is not supported yet: there are causal=true, window_left, window_right, and kv_len=true for lengths at run time",
    "mask", "attn_mask", "attention_mask", "additive_mask", "attn_bias" },
  { "is not supported yet: scores are divided by sqrt(dk)",
    "scale", "scaling", "softmax_scale", "attn_scale", "qk_scale", "softcap", "logit_softcap", "qk_norm" },
  { "is not supported yet: each run projects all keys and values",
    "cache", "kv_cache", "use_cache", "past_key_values" },
  { "is not supported yet: all numbers are float32",
    "fp16", "bf16", "int8", "quantization" },
  { "is not supported: a kernel does not train", "dropout", "attn_dropout", "attention_dropout" },
  { "is no key: a bias is a pointer in mhagen_weights, which may be null",
    "bias", "qkv_bias", "use_bias", "attention_bias", "add_bias_kv" },
  { "is no key: any kernel runs on a pool of threads", "threads", "num_threads", "n_threads" },
  { "is no key: a kernel is one attention block",
    "layers", "num_layers", "n_layer", "num_hidden_layers", "intermediate_size", "vocab_size" },
}

return M
