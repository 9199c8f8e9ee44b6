-- The options of what surrounds attention in a layer. The fields of a row are those of options/rows.lua.

local activations = { "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu", "tanh" }

-- Their names in other tools.
local called = { gelu = { "gelu_python" }, silu = { "swish" }, relu2 = { "relu_squared" },
                 gelu_tanh = { "gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh" } }

-- Excludes queries that are not projected, for a row's value `of` or any. Without attention Q is the layer's input.
local function no_row_of_input(of)
  return { key = "project", lacks = "q", of = of, why = "where Q is no row of the layer's input",
           but = { "attention", "none" } }
end

local NO_FFN = 0

return {
  { key = "out_act", kind = "choice", choices = { "none", table.unpack(activations) }, default = "none",
    name = "_act_", word = "y activated by %s", bit = "MHAGEN_OUT_ACT", number = "MHAGEN_ACT_",
    excludes = { { key = "attention", is = "self", why = "whose rows of Y have no activation" },
                 { key = "attention", is = "cross", why = "whose rows of Y have no activation" } },
    called = called,
    doc = "activation of the rows of Y with attention = none, before the residual: y = x + act(x Wo + bo)",
    draw = { chance = 0.5 } },
  { key = "residual", kind = "flag", default = false, name = "_res", word = "residual", bit = "MHAGEN_RESIDUAL",
    akin = { "skip", "skip_connection", "add_input", "shortcut" },
    excludes = { { key = "y_width", why = "where the rows of Q, which are added, have another width" },
                 { key = "project", lacks = "o", why = "which does not project Y" },
                 no_row_of_input() },
    doc = "adds the row of Q to that of Y: y = x + attention(x)", draw = { chance = 0.15 } },
  { key = "norm", kind = "choice", choices = { "none", "pre", "post", "sandwich", "ffn" },
    default = "none", name = "_norm_", word = "%s-norm",
    bit = { pre = "MHAGEN_PRE_NORM", post = "MHAGEN_POST_NORM", sandwich = "MHAGEN_PRE_NORM | MHAGEN_BRANCH_NORM",
            ffn = "MHAGEN_FFN_NORM" },
    akin = { "norm_first", "pre_norm", "layernorm", "do_layer_norm_before" },
    excludes = { no_row_of_input "pre", no_row_of_input "sandwich",
                 { key = "project", lacks = "o", of = "post", why = "which does not project Y" },
                 { key = "project", lacks = "o", of = "sandwich", why = "which does not project Y" },
                 { key = "ffn", is = NO_FFN, of = "ffn", why = "whose input it normalizes" } },
    doc = "a norm of whole rows; pre: of the input (in cross-attention of Q alone); post: of the rows of Y; "
      .. "sandwich: pre, and a second norm of the outputs of attention and the feed-forward, before they are added; "
      .. "ffn: of the input of the feed-forward alone",
    draw = { chance = 0.2 } },
  { key = "norm_kind", kind = "choice", choices = { "layer", "rms" }, default = "layer", beside = { "norm" },
    name = "_", word = "%s norm of rows", number = "MHAGEN_NORM_", akin = { "normalization", "norm_type" },
    doc = "the formula of norm: (x - mean) / sqrt(variance + layer_eps), or x / sqrt(mean(x^2) + layer_eps)",
    draw = { chance = 0.4 } },
  { key = "layer_eps", kind = "number", min = 1e-18, max = 1, default = 1e-5, beside = { "norm" }, name = "_leps",
    word = "layer_eps %s", number = true, akin = { "layer_norm_epsilon", "ln_eps" },
    doc = "added to the variance or mean square by norm", draw = { chance = 0.2, of = { 1e-12, 1e-6, 0.5 } } },
  { key = "ffn", kind = "integer", min = 0, max = 1048576, default = 0, name = "_ffn", word = "feed-forward of %s",
    bit = "MHAGEN_FFN", number = true, akin = { "intermediate_size", "d_ff", "dim_feedforward", "hidden_dim",
    "mlp_dim", "ffn_dim", "n_inner" },
    excludes = { { key = "project", lacks = "o", why = "which does not project Y" } },
    doc = "width of the feed-forward after Y: y + act(u W1 + b1) W2 + b2; u is y, or norm2(y) with norm = pre, "
      .. "sandwich or ffn. 0: none",
    draw = { chance = 0.15, of = { 1, 7, 16, 33, 64, 100 } } },
  { key = "ffn_act", kind = "choice", choices = activations,
    default = "gelu", beside = { "ffn" }, name = "_", word = "activated by %s", number = "MHAGEN_ACT_",
    akin = { "hidden_act", "activation", "activation_function", "act" },
    called = called,
    doc = "activation of the feed-forward: x P(x), its tanh form, x / (1 + exp(-1.702 x)), max(x, 0), its square, "
      .. "x / (1 + exp(-x)), tanh(x)", draw = { chance = 0.7 } },
  { key = "ffn_gate", kind = "flag", default = false, name = "_gate", word = "with a gate", bit = "MHAGEN_FFN_GATE",
    beside = { "ffn" }, akin = { "swiglu", "geglu", "glu", "gated" },
    doc = "the feed-forward multiplies its activation by a third product: act(x W1 + b1) * (x W3 + b3)",
    draw = { chance = 0.4 } },
  { key = "parallel", kind = "flag", default = false, name = "_par", word = "beside attention",
    bit = "MHAGEN_PARALLEL", beside = { "ffn" }, akin = { "parallel_attn", "parallel_block", "parallel_residual" },
    excludes = { { key = "norm", is = "none", why = "which makes no rows that both could read" },
                 { key = "norm", is = "post", why = "which makes no rows that both could read" },
                 { key = "norm", is = "ffn", why = "which makes no rows that both could read" },
                 { key = "y_width", why = "where the rows that both read have another width" } },
    doc = "the feed-forward reads the input of attention, norm1(x), not its result: y = x + attention(x1) + ffn(x1)",
    draw = { chance = 0.5 } },
}
