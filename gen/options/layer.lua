-- The options of what is around attention in a layer. The fields of a row are those of options/rows.lua.

return {
  { key = "residual", kind = "flag", default = false, name = "_res", word = "residual", bit = "MHAGEN_RESIDUAL",
    akin = { "skip", "skip_connection", "add_input", "shortcut" },
    excludes = { { key = "y_width", why = "where the rows of Q, which are added, have another width" },
                 { key = "project", lacks = "o", why = "which does not project Y" },
                 { key = "project", lacks = "q", why = "where Q is no row of the layer's input" } },
    doc = "adds the row of Q to that of Y: y = x + attention(x)", draw = { chance = 0.15 } },
}
