-- Pointers of a tape: a name and an offset in numbers of a type.

local expr = require "base.expr"
local types = require "machine.types"

local Pointer = {}
Pointer.__index = Pointer

-- A pointer to numbers of a type, float32 if none is said: `base` is a C name, `off` an expression in numbers.
local function new(base, off, type)
  return setmetatable({ base = base, off = off or 0, type = type or types.f32 }, Pointer)
end

function Pointer:at(off)
  local moved = new(self.base, self.off + off, self.type)
  moved.start, moved.sections = self.start, self.sections
  return moved
end

-- The same pointer, to numbers of another type that are as long.
function Pointer:as(type)
  local other = self:at(0)
  other.type = type
  return other
end

-- The same pointer, to a buffer that is cut into sections { name, first, .. } from there on, in their order.
function Pointer:cut(sections)
  local cut = new(self.base, self.off, self.type)
  cut.start, cut.sections = self.off, sections
  return cut
end

-- By the name of the section that it points into, if there is one.
function Pointer:named()
  if not self.sections then return self end
  local off, found = self.off - self.start, nil
  for _, section in ipairs(self.sections) do
    if section.first <= expr.constant(off) then found = section end
  end
  return new(found.name, off - found.first, self.type)
end

return new
