-- The sections of the workspace and of the packed weights, by name and shape, as the text of a kernel has them:
-- { name, first, text } each, in their order.

local M = {}

local function in_order(list)
  table.sort(list, function(a, b) return a.first < b.first end)
  return list
end

-- The shape of what is there `count` times.
local function every(shape, count, floats)
  return count > 1 and ("%s, %d apart"):format(shape, floats) or shape
end

function M.workspace(plan)
  local cfg, entry, kv, list = plan.cfg, plan.entry, plan.kv, {}
  local function add(name, first, text) list[#list + 1] = { name = name, first = first, text = text } end
  local widths = {}
  for _, group in ipairs(plan.groups) do
    local width = tostring(group.width)
    if widths[#widths] ~= width then widths[#widths + 1] = width end
  end
  local group = ("[%s] a group"):format(table.concat(widths, " or "))
  if plan.transposed then add("x_transposed", entry.xt, ("[%d]%s"):format(cfg.d_model, group)) end
  add("contexts", entry.o, ("[%d]%s"):format(plan.out.steps, group))
  for _, input in ipairs(plan.sums) do
    if input.at == 0 then
      add("sums_" .. input.name, entry["sums_" .. input.name], ("[%d][%d]"):format(input.rows, cfg.d_model))
    end
  end
  for _, row in ipairs {
    { "k", "keys", plan.kv_rows }, { "v", "values", plan.kv_rows }, { "q", "queries", cfg.seq },
  } do
    local which, name, rows = table.unpack(row)
    local product = plan.projected[which]
    if product then
      add(name, entry.kv + kv[which], every(("[%d][%d]"):format(rows, product.ld), plan.head_blocks, kv.total))
    end
    if product and product.quadrants then
      add("products_" .. which, entry.kv + kv["m" .. which],
        every(("%d products of quadrants"):format(product.quadrants), plan.head_blocks, kv.total))
    end
  end
  add("scratch", entry.scratch, every("of a task", 2, plan.scratch.total))
  return in_order(list)
end

function M.packed(plan)
  local packed, cfg = plan.packed, plan.cfg
  return in_order {
    { name = "weights", first = packed.heads,
      text = every(("of %d head%s"):format(plan.hb, plan.hb > 1 and "s" or ""), plan.head_blocks, plan.head.total) },
    { name = "wo", first = packed.wo, text = ("[%d][%d] in panels"):format(plan.out.steps, cfg.d_model) },
    { name = "bo", first = packed.bo, text = ("[%d]"):format(cfg.d_model) },
  }
end

return M
