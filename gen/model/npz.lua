-- A .npz file of NumPy: a zip archive of .npy files.

local npy = require "model.npy"
local tensors = require "model.tensors"
local zip = require "model.zip"

-- Refuses an entry whose bytes are not those that were written.
local function check_sum(file, place)
  local sum, why = file:crc32(place.first, place.bytes)
  if not sum then tensors.fail(place.tensor, "%s", why) end
  if sum ~= place.sum then
    tensors.fail(place.tensor, "is damaged: its CRC-32 is %08x, and must be %08x", sum, place.sum)
  end
end

-- file -> { name: tensor }; only: { name = true } of those that are wanted, or nil for all.
return function(file, path, type_size, only)
  local found = {}
  local places = zip(file, path, { kind = ".npz", advice = "write it by numpy.savez, not savez_compressed",
    wanted = function(entry)
      local name = entry:match("^(.*)%.npy$") or entry
      return (not only or only[name]) and name or nil
    end })
  for _, place in ipairs(places) do
    local name = place.tensor.name
    check_sum(file, place)
    found[name] = npy(file, path, type_size, { name = name, first = place.first, stop = place.first + place.bytes })
  end
  return found
end
