-- Shell commands from lists of arguments, which are quoted so that the shell takes each literally.

local M = {}

-- A word, in quotes where it needs them.
function M.word(word)
  return word:find("^[%w_@%%+=:,./-]+$") and word or "'" .. word:gsub("'", "'\\''") .. "'"
end

function M.line(words)
  local all = {}
  for i, word in ipairs(words) do all[i] = M.word(word) end
  return table.concat(all, " ")
end

return M
