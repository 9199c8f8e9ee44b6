-- The options of a kernel. A row has all facts about an option, except what it does. gen/options/init.lua reads the
-- rows.
--
--   key, kind   kinds.lua has the kinds and their fields: min and max, choices, letters, machines, groups
--   doc         what the option does, for a table of the keys
--   default     the value of a missing key. Instead of it, a row may have same_as, a key with that value; required,
--               with an example; or computed, which says from what. Without any of these it is nil, and formula
--               describes it
--   near        (values): the value of the formula, or nil; a given value that rounds to it counts as missing
--   implied     (values): the value of a missing key that follows from other keys, or nil
--   also        names of the same option in Hugging Face, PyTorch and other tools, for messages
--   akin        names of similar options, for suggestions
--   hooks       more choices, which are only for tests and not documented
--   called      names of its choices in other tools, by choice
--   native      the command that prints this machine's value, for `native` on the command line
--   divides     a key that it must divide
--   step        its value must be a multiple of this
--   even        true: it must be even
--   within      a key that it must not exceed
--   excludes    list of combinations that are refused, see below
--   least       { key =, with = { key, value } }: with that value it must not be below the key
--   beside      keys of which one must be on; else it has no effect, and is refused. { key =, but = { key, value } }
--               does not count with that other value
--   only        { value = names }: with that value all other keys must be missing, or have the values that it implies
--   name        the text before its value in a kernel's name
--   word        its text in the description of a kernel; %s is the value
--   bit         its bit of mhagen_kernel.options; or { value = bit } for some values
--   number      true: mhagen_kernel has the value under the same name; a text: the prefix of the constant of a choice
--   args        pointers of mhagen_args that a run then needs, see below
--   fill        pointers of mhagen_args that filling the cache then needs
--   idle        (plan): why the option has no effect in this plan, or nil
--   why         end of the message about a value outside min and max
--   draw        how tests/fuzz.py draws it, see below
--
-- excludes: the option must have its default, or one of the values `unless`, if all of these hold:
--   key             this key differs from its default
--   key, is         or it has this value
--   key, lacks      or its value has none of these letters
--   of              the option has this value, which may be its default
--   but             not with { key, value }
--   why             end of the message
--
-- args:
--   pointer         its name
--   most, less      it points to an int for each batch entry, from 0 to the key `most`, minus the key `less`
--   ints            it points to so many ints for each row of a run, from 0 to the key `ints_most`; `rows` is the key
--                   and the pointer of how many rows count
--   aligned         to MHAGEN_ALIGN
--   input           it points to a matrix of the formula
--   of, but, with   only with this value of the option; not with { key, value }; only with all of { key = value }
--
-- draw:
--   chance          of another value than the default
--   apart           { value = chance } of values that are in no list of pairs, because of `only`
--   from, to        a range; of: a list; small, large: mostly up to the first, sometimes up to the second
--   tiny            the value of a tiny shape
--   twice           keys to double, so that the option has an effect

local cpu = require "machine.cpu"
local isas = require "isa.init"
local kinds = require "options.kinds"

local isa_names, machines = {}, {}
for i, isa in ipairs(isas.list) do isa_names[i], machines[isa.name] = isa.name, isa.arch end

-- Whether a config, which may lack keys, does not have the projection with this letter.
local function lacks(values, letter)
  return values.project ~= nil and not kinds.letters_of(values.project):find(letter)
end

-- The width of rows that are not projected. `heads` and `width` are lists of a key and the key that stands in for it.
local function unprojected(letter, heads, width)
  return function(values)
    local count, each = values[heads[1]] or values[heads[2]], values[width[1]] or values[width[2]]
    if values.attention == "none" then return nil end -- whose dk is d_model
    return lacks(values, letter) and count and each and count * each or nil
  end
end

-- What a key has where there is no attention: a value, or that of another key.
local function without_attention(value, key)
  return function(values) return values.attention == "none" and (key and values[key] or value) or nil end
end

local M = {}

-- Rope, where it turns rows by their places.
local ROPE_BY_PLACE = { key = "rope", but = { "rope_at", "run" } }

-- What every kernel needs; those with `bytes` only if the plan has such a buffer. graph/matrices.lua has the weights.
M.always = {
  args = { { pointer = "q", input = true }, { pointer = "y" },
           { pointer = "packed", aligned = true, bytes = "packed_bytes" }, { pointer = "workspace", aligned = true },
           { pointer = "tables", aligned = true, bytes = "tables_bytes" } },
  fill = { { pointer = "tables", aligned = true, bytes = "tables_bytes" },
           { pointer = "workspace", aligned = true, bytes = "fill_workspace" } },
}

M.options = {
  { key = "h", kind = "integer", min = 1, max = 1024, required = true, example = 12, name = "_h",
    also = { "heads", "num_heads", "n_heads", "num_attention_heads", "n_head", "nhead" },
    implied = without_attention(1),
    doc = "number of heads", draw = { small = 8, large = 16 } },
  { key = "h_kv", kind = "integer", min = 1, max = 1024, same_as = "h", divides = "h", name = "_g",
    word = "%s of keys and values",
    also = { "kv_heads", "num_kv_heads", "n_kv_heads", "num_key_value_heads", "n_head_kv", "num_query_groups" },
    akin = { "gqa", "mqa" },
    doc = "number of heads of keys and values (GQA, MQA); h / h_kv heads of queries share each; divides h",
    draw = { chance = 0.3, from = 1, to = 8 } },
  { key = "d_model", kind = "integer", min = 1, max = 16384, required = true, example = 384, name = "_d",
    also = { "embed_dim", "hidden_size", "n_embd" }, akin = { "dim", "width", "hidden_dim" },
    implied = unprojected("q", { "h" }, { "dk" }),
    doc = "width of the rows of Q; default of the other widths; optional where Q is not projected",
    draw = { small = 64, large = 300 } },
  { key = "dk", kind = "integer", min = 1, max = 1024, required = true, example = 32, name = "_k",
    also = { "head_dim", "d_k", "d_head", "head_size" }, implied = without_attention(nil, "d_model"),
    doc = "width of one head's queries and keys", draw = { small = 32, large = 128 } },
  { key = "dv", kind = "integer", min = 1, max = 1024, same_as = "dk", name = "_v",
    also = { "d_v", "v_head_dim" },
    doc = "width of one head's values", draw = { chance = 0.3, small = 32, large = 128 } },
  { key = "seq", kind = "ladder", min = 1, max = 65536, required = true, example = 128, name = "_s",
    also = { "seq_len", "seq_q" }, akin = { "length", "max_position_embeddings", "n_positions", "n_ctx" },
    doc = "rows of Q and of Y; several, with commas, are length buckets: a kernel for each, and one that calls the " ..
      "shortest that suffices", draw = { small = 64, large = 200 } },
  { key = "seq_kv", kind = "ladder", min = 1, max = 65536, same_as = "seq", name = "_t",
    also = { "seq_k", "kv_seq" },
    excludes = { { key = "attention", is = "self", why = "which has one input", but = { "cache", "append" } } },
    least = { key = "seq", with = { "cache", "append" } },
    doc = "rows of K and V; with cache = append, the capacity of the cache; several as for seq",
    draw = { chance = 0.7, small = 64, large = 200 } },
  { key = "k_width", kind = "integer", min = 1, max = 16384, same_as = "d_model", name = "_kw", also = { "kdim" },
    implied = unprojected("k", { "h_kv", "h" }, { "dk" }),
    excludes = { { key = "project", lacks = "k", why = "which does not project K" },
                 { key = "attention", is = "self", why = "which has one input" } },
    doc = "width of the rows of K, with attention = cross", draw = { chance = 0.3, small = 64, large = 300 } },
  { key = "v_width", kind = "integer", min = 1, max = 16384, same_as = "d_model", name = "_vw", also = { "vdim" },
    implied = unprojected("v", { "h_kv", "h" }, { "dv", "dk" }),
    excludes = { { key = "project", lacks = "v", why = "which does not project V" },
                 { key = "attention", is = "self", why = "which has one input" } },
    doc = "width of the rows of V, with attention = cross", draw = { chance = 0.3, small = 64, large = 300 } },
  { key = "y_width", kind = "integer", min = 1, max = 16384, same_as = "d_model", name = "_yw",
    implied = unprojected("o", { "h" }, { "dv", "dk" }),
    excludes = { { key = "project", lacks = "o", why = "which does not project Y" } },
    doc = "width of the rows of Y", draw = { chance = 0.15, small = 64, large = 300 } },
  { key = "isa", kind = "bundle", choices = isa_names, machines = machines,
    groups = { { "x86", "scalar+avx2+avx512" }, { "arm", "neon" } }, required = true, example = "avx2", name = "_",
    akin = { "arch", "target", "simd" },
    native = "isas --widest",
    doc = "instruction set; several with + (or x86, arm) make a multi-versioned kernel, which runs the last one " ..
      "that the CPU has; isa=native (command line only) is the widest of this CPU" },
  { key = "name", kind = "identifier", computed = "from the other keys", akin = { "prefix" },
    doc = "C identifier, prefix of everything exported" },
  { key = "attention", kind = "choice", choices = { "self", "cross", "none" }, default = "self", name = "_",
    bit = { cross = "MHAGEN_CROSS", none = "MHAGEN_NO_ATTENTION" },
    only = { none = "attention d_model y_width seq batch isa name q_len dtype ffn_dtype sum_dtype weight_dtype group "
      .. "io_dtype residual norm norm_kind layer_eps out_act ffn ffn_act ffn_gate parallel query_vectors out_rows "
      .. "out_vectors k_block fetch code_limit cpu fold unroll tuned" },
    args = { { pointer = "k", input = true, of = "cross", but = { "cache", "fixed" } },
             { pointer = "v", input = true, of = "cross", but = { "cache", "fixed" } } },
    implied = function(values)
      return (lacks(values, "q") or lacks(values, "k") or lacks(values, "v")) and "cross" or nil
    end,
    doc = "self: one input; cross: three, the default where Q, K or V is not projected; none: no attention, y = x Wo "
      .. "+ bo", draw = { chance = 0.35, of = { "cross" }, apart = { none = 0.06 } } },
  { key = "causal", kind = "flag", default = false, name = "_causal", word = "causal",
    bit = "MHAGEN_CAUSAL", also = { "is_causal" },
    doc = "row r sees keys 0..pos(r); pos(r) is r, unless causal_align or a cache changes it",
    draw = { chance = 0.35 } },
  { key = "kv_len", kind = "flag", default = false, name = "_len", word = "kv_len",
    bit = "MHAGEN_KV_LEN", args = { { pointer = "kv_len", most = "seq_kv" } },
    akin = { "key_padding_mask", "lengths" },
    doc = "the number of valid keys is given at run time, per batch entry", draw = { chance = 0.35 } },
  { key = "batch", kind = "integer", min = 1, max = 65536, default = 1, name = "_b", word = "batch %s",
    also = { "batch_size" },
    doc = "sequences per call", draw = { chance = 0.3, from = 2, to = 4 } },
  { key = "probs", kind = "flag", default = false, name = "_probs", word = "probs",
    bit = "MHAGEN_PROBS", args = { { pointer = "probs" } }, akin = { "weights", "need_weights" },
    doc = "also write the attention weights of every head", draw = { chance = 0.35 } },
  { key = "window_left", kind = "integer", min = 0, max = 65536, name = "_wl", word = "%s keys to the left",
    bit = "MHAGEN_WINDOW_LEFT", number = true,
    akin = { "window", "window_size", "attention_window" },
    doc = "row r sees no key before pos(r) - window_left", draw = { chance = 0.15, from = 0, to = 20 } },
  { key = "window_right", kind = "integer", min = 0, max = 65536, name = "_wr", word = "%s keys to the right",
    bit = "MHAGEN_WINDOW_RIGHT", number = true,
    doc = "row r sees no key after pos(r) + window_right", draw = { chance = 0.15, from = 0, to = 20 } },
  { key = "causal_align", kind = "choice", choices = { "top_left", "bottom_right" }, name = "_",
    implied = function(values) return (values.cache or "none") == "none" and "top_left" or "bottom_right" end,
    formula = "top_left; with a cache bottom_right", word = "%s", bit = { bottom_right = "MHAGEN_BOTTOM_RIGHT" },
    beside = { "causal", "window_left", "window_right", ROPE_BY_PLACE },
    excludes = { { key = "cache", is = "append", of = "top_left", why = "where pos(r) is past + r" } },
    doc = "bottom_right puts the last row at the last key; pos(r) is r + seq_kv - seq, or past + r with " ..
      "cache = append",
    draw = { chance = 0.3, of = { "bottom_right" } } },
  { key = "alibi", kind = "flag", default = false, name = "_alibi", word = "alibi", bit = "MHAGEN_ALIBI",
    also = { "use_alibi" },
    doc = "adds slope_i * (c - pos(r)) to the score of query r and key c; slopes are weights.alibi, or those of " ..
      "Press et al. 2022",
    draw = { chance = 0.25 } },
  { key = "kv_start", kind = "flag", default = false, name = "_start", word = "kv_start",
    bit = "MHAGEN_KV_START", args = { { pointer = "kv_start", most = "seq_kv" } },
    akin = { "left_padding", "seqstart" },
    doc = "the first valid key is given at run time, per batch entry", draw = { chance = 0.2 } },
  { key = "row_keys", kind = "choice", choices = { "none", "range" }, default = "none", name = "_keys_",
    word = "row_keys %s", bit = { range = "MHAGEN_ROW_KEYS" },
    args = { { pointer = "row_keys", ints = 2, ints_most = "seq_kv", rows = "q_len" } },
    akin = { "cu_seqlens", "cu_seqlens_q", "segment_ids", "document_ids", "block_diagonal", "packed_sequences",
             "sequence_ids" },
    doc = "range: a run gives a range of keys for each row, args.row_keys, and the row sees no other key: packed "
      .. "sequences, documents, prefixes",
    draw = { chance = 0.15 } },
  { key = "q_len", kind = "flag", default = false, name = "_rows", word = "q_len",
    bit = "MHAGEN_Q_LEN", args = { { pointer = "q_len", most = "seq" } },
    akin = { "query_lengths", "seqlens_q" },
    doc = "the number of rows to compute is given at run time, per batch entry", draw = { chance = 0.2 } },
  { key = "mask", kind = "choice", choices = { "none", "bool", "add" }, default = "none", name = "_mask_",
    word = "mask %s", bit = { bool = "MHAGEN_MASK_BOOL", add = "MHAGEN_MASK_ADD" }, args = { { pointer = "mask" } },
    akin = { "attn_mask", "attention_mask", "additive_mask", "attn_bias", "position_bias", "relative_attention",
             "rel_pos" },
    doc = "a run reads args.mask; bool: a byte for each key, 0 hides it; add: a float that is added to the score",
    draw = { chance = 0.3 } },
  { key = "mask_dims", kind = "choice", choices = { "k", "qk", "hk", "hqk", "bk", "bqk", "bhk", "bhqk" },
    default = "qk", name = "_", word = "by %s", number = true, beside = { "mask" },
    doc = "axes of the mask: batch, heads, queries, keys; bk is [batch][seq_kv]", draw = { chance = 0.8 } },
  { key = "softcap", kind = "number", min = 1e-9, max = 1e9, name = "_cap", word = "softcap %s",
    bit = "MHAGEN_SOFTCAP", number = true,
    also = { "logit_softcap", "logits_soft_cap", "attn_logit_softcapping", "softcapping" },
    doc = "scores become softcap * tanh(score / softcap), before alibi",
    draw = { chance = 0.15, of = { 1, 20, 50, 0.3, 1e-9, 1e9 } } },
  { key = "sink", kind = "flag", default = false, name = "_sink", word = "sink", bit = "MHAGEN_SINK",
    akin = { "sinks", "attention_sinks", "add_zero_attn", "softmax_off_by_one" },
    doc = "each head has one more logit, which takes weight but has no value: weights.sink, or zeros",
    draw = { chance = 0.2 } },
  { key = "scores", kind = "choice", choices = { "none", "scaled", "capped", "masked" }, default = "none",
    name = "_scores_", word = "%s scores", bit = "MHAGEN_SCORES", number = "MHAGEN_SCORES_",
    args = { { pointer = "scores" } },
    akin = { "qk_matmul_output", "qk_matmul_output_mode", "output_qk", "return_scores" },
    doc = "also write the scores of every head; scaled: products times scale; capped: after softcap; masked: as " ..
      "softmax gets them",
    draw = { chance = 0.15 } },
  { key = "qk_norm", kind = "choice", choices = { "none", "rms", "layer", "l2" }, default = "none", name = "_qk",
    word = "%s norm of Q and K", bit = "MHAGEN_QK_NORM", number = "MHAGEN_NORM_",
    akin = { "qk_layernorm", "use_qk_norm", "qknorm" },
    doc = "normalizes rows of Q and K by their root mean square, standard deviation or length; gains are weights",
    draw = { chance = 0.2 } },
  { key = "norm_span", kind = "choice", choices = { "head", "each", "all" }, default = "head", beside = { "qk_norm" },
    name = "_span", word = "norm_span %s", number = "MHAGEN_SPAN_",
    doc = "the columns that a norm spans; head: one head, the same gains for all; each: one head, gains of its own; " ..
      "all: all heads together", draw = { chance = 0.4 } },
  { key = "norm_eps", kind = "number", min = 1e-18, max = 1, default = 1e-6, beside = { "qk_norm" }, name = "_eps",
    word = "eps %s", number = true, also = { "rms_norm_eps", "layer_norm_eps", "eps", "qk_norm_eps" },
    doc = "added to the mean square or variance; with l2, the smallest length to divide by",
    draw = { chance = 0.2, of = { 1e-5, 1e-12, 0.5 } } },
  { key = "rope", kind = "choice", choices = { "none", "half", "interleaved" }, default = "none", name = "_rope_",
    word = "rope %s", bit = "MHAGEN_ROPE", number = "MHAGEN_ROPE_", akin = { "rotary", "rotary_emb", "do_rotary" },
    doc = "rotary embedding of Q and K; half rotates columns i and i + rope_dims / 2 of a head together, " ..
      "interleaved 2i and 2i + 1",
    draw = { chance = 0.25, twice = { "dk" } } }, -- so that columns make pairs
  { key = "rope_dims", kind = "integer", min = 2, max = 1024, same_as = "dk", even = true, within = "dk",
    beside = { "rope" }, name = "_rd", word = "%s columns rotated", number = true,
    also = { "rotary_dim", "rotary_ndims", "rotary_embedding_dim" },
    doc = "how many columns of a head rope rotates, from the first on; even, at most dk",
    draw = { chance = 0.2, from = 2, to = 16 } },
  { key = "rope_theta", kind = "number", min = 1, max = 1e12, default = 10000.0, beside = { ROPE_BY_PLACE },
    name = "_th", word = "theta %s", number = true, also = { "rope_base", "rotary_base", "rotary_emb_base" },
    excludes = { { key = "rope_at", is = "run", why = "where a run gives the angles" } },
    doc = "rope rotates pair i of the row at position p by p * rope_theta^(-2i / rope_dims), unless weights has " ..
      "tables",
    draw = { chance = 0.1, of = { 1, 1.5, 500000, 1e6, 1e12 } } },
  { key = "rope_tables", kind = "choice", choices = { "packed", "apart" }, default = "packed", beside = { "rope" },
    name = "_tables_", word = "tables of rope %s",
    excludes = { { key = "rope_at", is = "run", why = "where a run gives the angles" } },
    doc = "where rope's cosines and sines are; packed: in the packed weights; apart: in args.tables, which layers " ..
      "share and N_pack_tables fills",
    draw = { chance = 0.4 } },
  { key = "rope_at", kind = "choice", choices = { "pack", "run" }, default = "pack", beside = { "rope" },
    name = "_at_", word = "angles at %s", bit = { run = "MHAGEN_ROPE_AT_RUN" },
    args = { { pointer = "rope_cos", of = "run" }, { pointer = "rope_sin", of = "run" },
             { pointer = "k_rope_cos", of = "run", with = { attention = "cross", cache = "none" } },
             { pointer = "k_rope_sin", of = "run", with = { attention = "cross", cache = "none" } } },
    fill = { { pointer = "k_rope_cos", of = "run", with = { cache = "fixed" } },
             { pointer = "k_rope_sin", of = "run", with = { cache = "fixed" } } },
    akin = { "mrope", "mrope_section", "position_ids", "position_embeddings", "rotary_pos_emb", "freqs_cis" },
    doc = "where rope's angles come from; pack: from the places of rows, when weights are packed; run: from a run, " ..
      "args.rope_cos and rope_sin (M-RoPE, two dimensions, trees of speculation)",
    draw = { chance = 0.4 } },
  { key = "cache", kind = "choice", choices = { "none", "append", "fixed" }, default = "none", name = "_",
    word = "cache %s", bit = { append = "MHAGEN_CACHE_APPEND", fixed = "MHAGEN_CACHE_FIXED" },
    akin = { "kv_cache", "use_cache", "past_key_values" },
    args = { { pointer = "past", most = "seq_kv", less = "seq", of = "append" },
             { pointer = "cache", aligned = true, but = { "cache_layout", "bhsd" } } },
    fill = { { pointer = "k", input = true, of = "fixed" }, { pointer = "v", input = true, of = "fixed" },
             { pointer = "packed", aligned = true, of = "fixed", bytes = "packed_bytes" },
             { pointer = "cache", aligned = true, of = "fixed", but = { "cache_layout", "bhsd" } } },
    excludes = { { key = "attention", is = "self", of = "fixed", why = "which projects its one input in every run" } },
    doc = "keeps keys and values between runs; append: a run adds those of its seq rows after the args.past rows of " ..
      "args.cache; fixed: N_fill writes all of them once",
    draw = { chance = 0.25 } },
  { key = "project", kind = "letters", letters = "qkvo", default = "qkvo", name = "_p", word = "projects %s",
    bit = "MHAGEN_UNPROJECTED", number = true, akin = { "projections", "sdpa" }, implied = without_attention("o"),
    excludes = { { key = "attention", is = "self", unless = { "qkv" }, why = "which has one input" } },
    doc = "which projections the kernel has; without its own, Q, K or V is read as it is, and y is the context",
    draw = { chance = 0.4, of = { "none", "kvo", "none", "o", "q", "qo", "k", "v", "kv", "qk", "qkv", "qvo" } } },
  { key = "layout", kind = "choice", choices = { "bshd", "bhsd" }, default = "bshd", name = "_", word = "layout %s",
    bit = "MHAGEN_BHSD",
    akin = { "qkv_format", "qkv_layout", "input_layout", "tensor_layout" },
    excludes = { { key = "project", is = "qkvo", why = "which leaves no array with this layout" } },
    doc = "axes of Q, K, V and Y where not projected: [batch][rows][heads][width], or [batch][heads][rows][width]",
    draw = { chance = 0.4 } },
  { key = "cache_layout", kind = "choice", choices = { "packed", "bhsd" }, default = "packed", beside = { "cache" },
    name = "_cache_", word = "cache layout %s", bit = { bhsd = "MHAGEN_CACHE_BHSD" }, akin = { "kv_layout" },
    args = { { pointer = "cache", of = "bhsd" } },
    fill = { { pointer = "cache", of = "bhsd" } },
    excludes = { { key = "norm_span", is = "all", why = "a norm over all heads, which this layout separates" } },
    doc = "packed: the kernel's own layout; bhsd: for a batch entry [h_kv][seq_kv][dk], then [h_kv][seq_kv][dv]",
    draw = { chance = 0.4 } },
  { key = "scale", kind = "number", min = 1e-9, max = 1e9, formula = "1/sqrt(dk)", name = "_sc", word = "scale %s",
    near = function(values) return values.dk and 1 / math.sqrt(values.dk) end,
    bit = "MHAGEN_SCALE",
    also = { "scaling", "softmax_scale", "sm_scale", "attn_scale", "qk_scale", "attention_multiplier" },
    doc = "factor of the products of queries and keys",
    draw = { chance = 0.15, of = { 0.125, 1, 0.3, 1e-9, 1e9 } } },
}

-- The keys after those of number types.
local last = {
  { key = "cpu", kind = "choice", choices = cpu.names, default = "generic", schedule = true,
    native = "isas --cpu",
    akin = { "mcpu", "march", "machine" },
    doc = "core whose caches and rates the plan uses; cpu=native (command line only) is this CPU",
    draw = { chance = 0.1 } },
  { key = "fold", kind = "choice", choices = { "auto", "off" }, default = "auto", schedule = true,
    doc = "auto: multiplies weight matrices in advance, when packing, if that saves flops", draw = { chance = 0.2 } },
  { key = "unroll", kind = "choice", choices = { "auto", "full" }, hooks = { "tile", "k" }, default = "auto",
    name = "_u", schedule = true, doc = "full: all is straight-line code, for very small shapes",
    draw = { of = { "auto", "auto", "tile", "k" }, tiny = "full" } },
  { key = "tuned", kind = "file",
    doc = "tuning file of `tune`, with the schedule of this shape; explicit keys override it" },
}

for _, list in ipairs { require "options.number_types", require "options.layer", last } do
  table.move(list, 1, #list, #M.options + 1, M.options)
end

M.schedule = require "options.schedule"

M.ladder = require "options.ladder"

M.elsewhere = require "options.elsewhere"

return M
