-- A toy end of a tile, with its option, and its meaning for the reference: the rows of X are added to those of Y.

local graph = require "graph.init"
local tensors = require "graph.tensor"

return {
  option = { key = "residual", kind = "flag", default = false, name = "_residual", word = "residual",
             doc = "adds X to Y as a tile is stored",
             excludes = { { key = "y_width", why = "where rows of X have another width" },
                          { key = "project", lacks = "o", why = "which does not project Y" },
                          { key = "project", lacks = "q", why = "where rows of Q are no rows of X" } } },
  meaning = [[
#define MHAGEN_ADDED(f, r, to) ((f)->kind->take(f, REF_Q, r, (f)->x), ref_add(to, (f)->x, (f)->of[REF_Y].width))
]],
  applies = function(plan) return plan.cfg.residual end,
  rewrite = function(plan, list)
    local output = graph.output(list)
    return graph.edited(list, { [output] = { graph.with(output, { add = tensors.input("q", plan.cfg.d_model) }) } })
  end,
}
