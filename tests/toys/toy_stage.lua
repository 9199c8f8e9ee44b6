-- A toy stage, with its option: the rows of X are added to those of Y, behind the output.

local graph = require "graph.init"
local groups = require "schedule.groups"

local M = { phase = "added", title = "added" }

M.option = { key = "added", kind = "flag", default = false, name = "_added", word = "added",
             excludes = { { key = "q_len", why = "whose other rows stay" },
                          { key = "y_width", why = "where rows of X have another width" },
                          { key = "io_dtype", why = "where X and Y are of another type" },
                          { key = "project", lacks = "o", why = "which does not project Y" },
                          { key = "project", lacks = "q", why = "where rows of Q are no rows of X" } },
             doc = "adds X to Y" }

function M.applies(plan, list) return plan.cfg.added and graph.output(list) end

function M.rewrite(_, list)
  local output = graph.output(list)
  local stage = graph.moving { name = "added", cols = output.cols }
  return graph.edited(list, { [output] = { output, stage } })
end

function M.axes(plan) return { groups.axis(plan) } end

function M.emit(K, place, stage, group, i)
  local t, first, count = K.t, (i * group.used + group.q0) * stage.cols, group.used * stage.cols
  K:part("added_" .. group.name, "Adds rows of X to Y.",
    { { "x", "in", place.q:at(first) }, { "y", "out", place.y:at(first) } }, function(p)
    K:covered(count, function(v, at, suffix)
      local given = t:read("load", v.w, "given" .. suffix, p.x:at(at), v.used)
      local old = t:read("load", v.w, "old" .. suffix, p.y:at(at), v.used)
      t:write(v.w, p.y:at(at), t:op("add", v.w, "sum" .. suffix, given, old), v.used)
    end)
  end)
end

function M.cycles(plan, stage) return 2.0 * plan.cfg.seq * stage.cols / plan.isa.lanes end

return M
