-- Commands for a shell, from the words of their arguments: no word is more than itself there.

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
