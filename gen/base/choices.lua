-- Choices with their reasons and the measured alternatives; `explain --why` prints them.
--
--   add(list, id)                 puts the measured row with that id on the list of a plan or a tape
--   take(list, row)               the same with a row that a stage has
--   say(list, choice, reason)     the same for a choice without a measurement
--   join(list, other)             adds the choices of another list, each once
--   against(rows, ...)            reason of the first row { holds, reason } that holds, or nil

local M = {}

M.rows = {}

local by_id = {}
for _, file in ipairs { "base.measured_choices", "base.measured_types" } do
  for _, row in ipairs(require(file)) do M.rows[#M.rows + 1], by_id[row[1]] = row, row end
end

-- Adds what another list has, each choice once.
function M.join(list, other)
  for _, row in ipairs(other) do
    if not list[row.choice] then list[row.choice], list[#list + 1] = true, row end
  end
end

-- Adds a choice that is taken: a row, or the id of one of these.
function M.take(list, row)
  M.join(list, { { choice = row[2], reason = row[3], rejected = row.rejected } })
end
function M.add(list, id) M.take(list, assert(by_id[id], id)) end

-- The same of one that no measurement is about.
function M.say(list, choice, reason) M.join(list, { { choice = choice, reason = reason, rejected = {} } }) end

-- Why not: the reason of the first row { holds, reason } that holds, both functions of the rest, or reason a text.
function M.against(rows, ...)
  for _, row in ipairs(rows) do
    if row[1](...) then return type(row[2]) == "function" and row[2](...) or row[2] end
  end
end

return M
