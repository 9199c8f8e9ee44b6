-- The most float vectors alive at a sum of products: a value lives from its definition to its
-- last use; one that is used inside a loop but made outside of it lives through the whole loop.
return function(fn)
  local values, first, last, at, products = {}, {}, {}, 0, {}
  local function touch(v)
    if type(v) ~= "table" or v.kind ~= "f" then return end
    if not first[v] then
      first[v] = at
      values[#values + 1] = v
    end
    last[v] = at
  end
  local function scan(body)
    for _, node in ipairs(body) do
      at = at + 1
      if node.kind == "op" or node.kind == "apply" then
        for _, a in ipairs(node.args) do touch(a) end
        if node.dst then touch(node.dst) end
        products[at] = node.updates and node.op.port == "fma"
      end
      if node.body then
        local start = at
        scan(node.body)
        if node.kind == "loop" then
          at = at + 1
          for _, v in ipairs(values) do
            if first[v] <= start and last[v] > start then last[v] = at end
          end
        end
      end
      if node.otherwise then scan(node.otherwise) end
    end
  end
  scan(fn.body)
  local change = {}
  for i = 1, at + 2 do change[i] = 0 end
  for _, v in ipairs(values) do
    change[first[v]] = change[first[v]] + 1
    change[last[v] + 1] = change[last[v] + 1] - 1
  end
  local live, most = 0, 0
  for i = 1, at + 1 do
    live = live + change[i]
    if products[i] and live > most then most = live end
  end
  return most
end
