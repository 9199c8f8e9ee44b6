-- The shape of a config in words, as `explain` and the head of a kernel print it.

local graph = require "graph.init"
local options = require "options.init"
local wording = require "base.wording"

local M = {}

-- The extents of q, k, v or y of a batch entry; the heads first, where the layout has them so.
local function extents(cfg, name)
  local tensor = graph.unprojected(cfg, name == "y" and "o" or name)
  local rows = (name == "q" or name == "y") and cfg.seq or options.key_rows(cfg)
  if not tensor or cfg.layout == "bshd" then return ("[%d][%d]"):format(rows, graph.row(cfg, name)) end
  return ("[%d][%d][%d]"):format(tensor.heads, rows, tensor.width)
end

local WIDTH = 100 -- of a line of generated text

-- A list with commas, in lines that each begin with `newline`.
local function in_lines(list, newline)
  local all = {}
  for i, item in ipairs(list) do all[i] = item .. (i < #list and "," or "") end
  return newline .. table.concat(wording.filled(all, WIDTH - #newline), newline)
end

-- What a kernel of a config is.
function M.kind(cfg) return cfg.attention == "none" and "a product with weights" or "multi-head attention" end

-- A config in words: in one line, or with `newline` before each line of the options.
function M.words(cfg, newline)
  local inputs, k, v = "x" .. extents(cfg, "q"), extents(cfg, "k"), extents(cfg, "v")
  if cfg.attention == "cross" then
    inputs = ("q%s, %s and v%s"):format(extents(cfg, "q"), k == v and "k" or "k" .. k, v)
  end
  local width = cfg.dk == cfg.dv and tostring(cfg.dk) or ("%d, values of %d"):format(cfg.dk, cfg.dv)
  local heads = ("%d head%s of %s"):format(cfg.h, cfg.h > 1 and "s" or "", width)
  local more = options.words(cfg)
  return ("%s -> y%s, %s%s"):format(inputs, extents(cfg, "y"), cfg.attention == "none" and "no attention" or heads,
    #more == 0 and "" or newline and in_lines(more, newline) or "; " .. table.concat(more, ", "))
end

return M
