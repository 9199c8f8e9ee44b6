-- Stages in front of all others that make of inputs what the others read, row by row: for a run, and (fill) for what
-- fills a cache. inputs: { name, to = the tensor that is made, rows, cols } each.

local graph = require "graph.init"

local M = {}

local ROWS = 64 -- of a task

-- Adds an input to the stage of a kind among `stages`, by fill.
function M.add(stages, kind, fill, input)
  fill = fill or false
  stages[fill] = stages[fill] or { name = fill and kind .. "_filling" or kind, kind = kind, inputs = {}, fill = fill,
                                   macs = function() return 0.0 end }
  table.insert(stages[fill].inputs, input)
end

-- The list with these stages in front.
function M.in_front(list, stages)
  for _, fill in ipairs { true, false } do
    if stages[fill] then table.insert(list, 1, stages[fill]) end
  end
  return list
end

-- The list in which projections of Q, K and V read make(input), a tensor, in the place of each input.
function M.rewrite(list, kind, make)
  local known, stages, edits = {}, {}, {}
  for _, name in ipairs { "queries", "keys", "values" } do
    local stage = graph.projection(list, name)
    if stage then
      local input = stage.a
      if not known[input.name] then
        known[input.name] = make(input)
        M.add(stages, kind, stage.fill, { name = input.name, to = known[input.name], rows = stage.rows,
                                          cols = input.row })
      end
      edits[name] = { graph.with(stage, { a = known[input.name] }) }
    end
  end
  return M.in_front(graph.edited(list, edits), stages)
end

-- The rows in parts for tasks: { input, size, count, at, first } each, and what is left as one more.
function M.split(stage)
  local tasks, parts = 0, {}
  for _, input in ipairs(stage.inputs) do
    local function add(size, count, at)
      if size * count == 0 then return end
      parts[#parts + 1] = { input = input, size = size, count = count, at = at, first = tasks }
      tasks = tasks + count
    end
    local rest = input.rows % ROWS
    add(ROWS, input.rows // ROWS, 0)
    add(rest, 1, input.rows - rest)
  end
  stage.parts, stage.tasks = parts, tasks
end

function M.axes(_, stage) return { { var = "part", items = stage.parts, total = stage.tasks } } end

-- Where copies of them lie, of float32 or the type that is given.
function M.sections(stage, add, doc, type)
  for _, input in ipairs(stage.inputs) do
    add("entry", { name = input.to.name, doc = doc, cols = input.cols, count = input.rows * input.cols, type = type })
  end
end

-- A part of a copy: change(w, name, number) returns what becomes of a vector, name being a suffix for the values of the
-- text; without it that is the vector. Rows lie side by side, whatever they are of. words: verb, of the function, and
-- done, what the numbers are then.
function M.copy(K, place, part, i, words, change)
  local t, input, count = K.t, part.input, part.size * part.input.cols
  local first = (i * part.size + part.at) * input.cols
  local params = { { "x", "in", place[input.name]:at(first) },
                   { words.done, "out", K.plan.memory:at(place, input.to.name):at(first) } }
  K:part(words.verb .. "_" .. count, ("%d numbers%s."):format(count, words.text), params, function(p)
    K:covered(count, function(v, at, suffix)
      local number = t:read("load", v.w, "number" .. suffix, p.x:at(at), v.used)
      t:write(v.w, p[words.done]:at(at), change and change(v.w, suffix, number) or number, v.used)
    end)
  end)
end

-- Of a stage that does so much with each number.
function M.cycles(plan, stage, each)
  local sum = 0.0
  for _, input in ipairs(stage.inputs) do sum = sum + input.rows * input.cols end
  return each * sum / plan.per_cycle
end

return M
