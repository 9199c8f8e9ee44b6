-- The options of what is around attention in a layer. The fields of a row are those of options/rows.lua.

return {
  { key = "residual", kind = "flag", default = false, name = "_res", word = "residual", bit = "MHAGEN_RESIDUAL",
    akin = { "skip", "skip_connection", "add_input", "shortcut" },
    excludes = { { key = "y_width", why = "where the rows of Q, which are added, have another width" },
                 { key = "project", lacks = "o", why = "which does not project Y" },
                 { key = "project", lacks = "q", why = "where Q is no row of the layer's input" } },
    doc = "adds the row of Q to that of Y: y = x + attention(x)", draw = { chance = 0.15 } },
  { key = "norm", kind = "choice", choices = { "none", "pre", "post" }, default = "none", name = "_norm_",
    word = "%s-norm", bit = { pre = "MHAGEN_PRE_NORM", post = "MHAGEN_POST_NORM" },
    akin = { "norm_first", "pre_norm", "layernorm", "do_layer_norm_before" },
    excludes = { { key = "project", lacks = "q", of = "pre", why = "where Q is no row of the layer's input" },
                 { key = "project", lacks = "o", of = "post", why = "which does not project Y" } },
    doc = "a norm of whole rows; pre: of the rows of Q, in self-attention also those of K and V; post: of those of Y",
    draw = { chance = 0.2 } },
  { key = "norm_kind", kind = "choice", choices = { "layer", "rms" }, default = "layer", beside = { "norm" },
    name = "_", word = "%s norm of rows", number = "MHAGEN_NORM_", akin = { "normalization", "norm_type" },
    doc = "what norm is: (x - mean) / sqrt(variance + layer_eps), or x / sqrt(mean(x^2) + layer_eps)",
    draw = { chance = 0.4 } },
  { key = "layer_eps", kind = "number", min = 1e-18, max = 1, default = 1e-5, beside = { "norm" }, name = "_leps",
    word = "layer_eps %s", number = true, akin = { "layer_norm_epsilon", "ln_eps" },
    doc = "added to the variance or mean square by norm", draw = { chance = 0.2, of = { 1e-12, 1e-6, 0.5 } } },
}
