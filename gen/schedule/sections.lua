-- The sections of the workspace, packed weights and tables, for comments and names in the generated C. Each is { name,
-- first, text }, in order.

local M = {}

-- Sections of a task that have other names in C.
local names = { p = "weights", o = "head_context", c = "value_context", mask = "biases" }

function M.name(section) return names[section] or section end

-- The shape of a section as text, such as "[4][16]", if it is known.
local function shape(plan, section)
  if section.rows then
    local widths = {}
    for _, group in ipairs(plan.groups) do
      local width = tostring(group.width)
      if widths[#widths] ~= width then widths[#widths + 1] = width end
    end
    return ("[%d][%s] for each group"):format(section.rows, table.concat(widths, " or "))
  end
  if not section.cols then return ("[%d], %s"):format(section.count, section.doc) end
  if section.each then
    return ("[%d][%d][%d]"):format(section.count // section.each, section.height, section.cols)
  end
  return ("[%d][%d]"):format(section.count // section.cols, section.cols)
end

-- The text of something that is there `count` times, with a stride of `total` numbers.
local function every(text, count, total)
  return count > 1 and ("%s, stride %d"):format(text, total) or text
end

-- The sections of an outer space. Of its inner spaces, `projected` is listed section by section; tasks and blocks of
-- heads are one section each.
local function of(plan, space)
  local memory, list = plan.memory, {}
  local function add(name, first, text) list[#list + 1] = { name = name, first = first, text = text } end
  for _, section in ipairs(memory[space]) do
    if section.name == "projected" then
      local count = plan.head_blocks > 1 and ("%d of "):format(plan.head_blocks) or ""
      for _, inner in ipairs(memory.projected) do
        add(inner.name, section.offset + inner.offset,
          every(count .. shape(plan, inner), plan.head_blocks, memory.projected.total))
      end
    elseif memory[section.name] then
      local total = memory[section.name].total
      add(section.name, section.offset, every(section.doc, section.count // total, total))
    else
      add(space == "task" and M.name(section.name) or section.name, section.offset, shape(plan, section))
    end
  end
  return list
end

-- Spaces by the names of their pointers.
local spaces = { packed = "packed", tables = "tables", ws = "entry", cache = "cache", scales = "scales",
                 scratch = "task" }

function M.of(plan, pointer) return of(plan, spaces[pointer]) end

return M
