-- The known word that is closest to a misspelt one.

-- Edit distance, where two neighbours in the wrong order count as one mistake.
local function distance(a, b)
  local d = {}
  for i = 0, #a do d[i] = { [0] = i } end
  for j = 0, #b do d[0][j] = j end
  for i = 1, #a do
    for j = 1, #b do
      local change = a:byte(i) == b:byte(j) and 0 or 1
      d[i][j] = math.min(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change)
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        d[i][j] = math.min(d[i][j], d[i - 2][j - 2] + 1)
      end
    end
  end
  return d[#a][#b]
end

-- Returns the closest of `words`, and whether it equals the text; nil if none is close. `others` may have a list of
-- other names for each word.
return function(text, words, others)
  local best, least = nil, 3
  local function try(candidate, word)
    local far = distance(text:lower(), candidate)
    if far < least and far < #candidate then best, least = word, far end
  end
  if #text > 32 then return nil end
  for _, word in ipairs(words) do
    try(word, word)
    for _, other in ipairs(others and others[word] or {}) do try(other, word) end
  end
  return best, least == 0
end
