-- The layout of all memory: named sections in spaces. Each space is a list of parts, in this order:
--
--   packed      the fingerprint; weights of each block of heads (`head`); weights of all heads
--   tables      with rope_tables=apart: a fingerprint, then the tables
--   workspace   of a batch entry: matrices with queries in the lanes, group by group; rows of the inputs; projected
--               rows for each block of heads (`projected`); scratch of each task (`task`)
--   cache       of a batch entry: keys of all blocks of heads, values, and scales (`scales`) if there are any; counted
--               in numbers of its type
--
-- A section:
--   name, doc
--   space, offset   where it lies
--   count, cols     how many numbers it has, and how many a row has
--   each, height    if it has all heads: numbers from one block of heads to the next, and rows of each
--   rows, starts    with queries in the lanes: rows, and where the groups of each kind begin
--   exact           the next section begins right after it, without alignment
--   type            unless its numbers are float32 of any value
--   within, column  it is some columns of the section `within`, from `column` on

local groups = require "schedule.groups"
local tiles = require "schedule.tiles"
local types = require "machine.types"

local M = {}
local Memory = {}
Memory.__index = Memory

M.BYTES = types.f32.bytes -- bytes of a number: all in memory are float32
M.ALIGN = 64 // M.BYTES -- sections start at multiples of so many numbers

-- Spaces repeated inside another: { outer space, the field of a place with the index }. In the outer space, they are a
-- section of the same name.
local within = { head = { "packed", "hb" }, projected = { "entry", "heads_slot" },
                 task = { "entry", "task_slot" } }
-- Outer spaces: the field of a place that holds the pointer.
local pointers = { packed = "packed", tables = "tables", entry = "ws", cache = "cache", scales = "scales" }

-- Buffers have at most 2^45 numbers. The factors of a size are bounded, so that 64 bits hold it.
function M.check_size(cfg, key, what, count)
  if count > 2 ^ 45 then
    tiles.refuse(key, cfg[key], ("%s would have %d floats, at most 2^45 are possible"):format(what, count))
  end
end

-- A count of numbers, rounded up so that what follows is aligned.
function M.aligned(count) return tiles.round_up(count, M.ALIGN) end

function Memory:add(space, section)
  if section.within then
    section.space, section.offset = space, self.sections[section.within].offset + section.column
    self.sections[section.name] = section
    return
  end
  if section.count == 0 then return end
  local list = self[space]
  section.space, section.offset = space, list.total
  list.total = list.total + (section.exact and section.count or tiles.round_up(section.count, list.align or M.ALIGN))
  list[#list + 1], self.sections[section.name] = section, section
end

-- Packed memory begins with a fingerprint, by which a run recognizes it; mhagen_pack writes it. It fills an aligned
-- unit. count: numbers besides those of the sections.
local function add_fingerprint(memory, space, sections, count)
  for _, section in ipairs(sections) do count = count + (section.within and 0 or section.count) end
  if count > 0 then
    memory:add(space, { name = "fingerprint", doc = "of the layout of what follows, then zeros", count = M.ALIGN })
  end
end

-- Lays out the sections that the stages of a plan need. sections(plan, stage, add) calls add(space, section), where
-- "lanes" is one more space.
function M.lay(plan, sections_of)
  local memory = setmetatable({ sections = {}, head = { total = 0 }, packed = { total = 0 }, tables = { total = 0 },
                                projected = { total = 0 },
                                task = { total = 0 }, entry = { total = 0 }, scales = { total = 0 },
                                cache = { total = 0, align = M.ALIGN * M.BYTES // plan.cache.stored.bytes },
                                head_blocks = plan.head_blocks }, Memory)
  local outer = { packed = {}, tables = {}, entry = {}, lanes = {} }
  for _, stage in ipairs(plan.stages) do
    sections_of(plan, stage, function(space, section)
      if not outer[space] then return memory:add(space, section) end
      table.insert(outer[space], section)
    end)
  end
  local function add_all(space, list)
    for _, section in ipairs(list) do memory:add(space, section) end
  end
  local function add_spaces(space, name, doc, count)
    memory:add(space, { name = name, doc = doc, count = plan.head_blocks * count * memory[name].total })
  end
  add_fingerprint(memory, "packed", outer.packed, memory.head.total)
  add_spaces("packed", "head", "weights of each block of heads", 1)
  add_all("packed", outer.packed)
  add_fingerprint(memory, "tables", outer.tables, 0)
  add_all("tables", outer.tables)
  for _, section in ipairs(outer.lanes) do section.count, section.starts = groups.lanes(plan, section.rows) end
  add_all("entry", outer.lanes)
  add_all("entry", outer.entry)
  add_spaces("entry", "projected", "what is projected", 1)
  add_spaces("entry", "task", "scratch of each task", plan.attend_tasks)
  return memory
end

-- The pointer to a space at a place; see plan/walk.lua.
function Memory:base(place, space)
  local outer = within[space]
  if not outer then return place[pointers[space]] end
  return self:base(place, outer[1]):at(self.sections[space].offset + place[outer[2]] * self[space].total)
end

local function typed(pointer, section) return section.type and pointer:as(section.type) or pointer end

-- The pointer to a section at a place.
function Memory:at(place, name)
  local section = self.sections[name]
  local off = section.offset + (section.each and place.hb * section.each or 0)
  return typed(self:base(place, section.space):at(off), section)
end

-- The pointer to a group's part of a section; i: its number within its kind.
function Memory:of_group(place, name, group, i)
  local section = self.sections[name]
  return self:at(place, name):at(section.starts[group.kind] + i * (section.rows * group.width))
end

-- The pointer to a section, given the pointer to its space.
function Memory:from(pointer, name)
  local section = self.sections[name]
  return typed(pointer:at(section.offset), section)
end

-- The pointer to a tensor of the graph, which is a section or an input, from the place's block of heads on.
function Memory:tensor(place, tensor)
  local wide = tensor.at == "wide"
  if tensor.at ~= "input" and not wide then return self:at(place, tensor.name) end
  local input = wide and self:at(place, tensor.name) or place[tensor.name]
  return tensor.heads and input:at(place.hb * (tensor.heads // self.head_blocks * tensor.head)) or input
end

return M
