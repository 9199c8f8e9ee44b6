-- Machines: the facts of a core that plans use. The key `cpu` names a row.
--
--   add(row)             adds a core
--   of(text)             name of the row of the first known core in a /proc/cpuinfo, else generic
--   numbers(text)        family, model and stepping in a /proc/cpuinfo: they separate CPUs with the same name
--   facts(name, isa)     the facts for an ISA, `fmas` as a number; nil if the core lacks the ISA
--
-- `generic` suits all cores that have an ISA. A row changes only tiles and their order, and so the speed and the last
-- bits.

local M = {}

-- Intel keeps more lines in flight to L2 than to L1. As `widened` below.
local far_widened = { { 4096, "prefetch" }, { 24576, "prefetch_far" } }

-- A row:
--   name, doc
--   is                 how /proc/cpuinfo names it, see M.of
--   mark               a feature that identifies such a core if its model is in no row, as on virtual machines
--   lacks              ISAs that it lacks
--   fmas               by ISA: FMAs of its full width in a cycle, also for ISAs that extend it. Products of small
--                      numbers are as many.
-- Other facts are those of `generic` where a row does not say them:
--   latency            cycles until a sum can go on: those of an FMA, plus 4 % measured loss where there are just
--                      as many sums as hide it
--   near               half of L1 in bytes: larger panels come from L2
--   near_bytes         bytes that L2 delivers in a cycle while FMAs run
--   set_lines          lines in a set of L1
--   far                a layer's weights of more bytes come from L3 or DRAM
--   far_bytes          bytes of these in a cycle, where that decides the tiles of few rows (measured, Granite Rapids
--                      and Zen 5)
--   fetch              how weights are fetched ahead (schedule/fetch.lua): { kind, least and most queries, least bytes
--                      of a layer's weights }, the first that applies is taken (measured)
--   widened            prefetches of weights that few queries dequantize in registers, by ISA, `general` for others: {
--                      how many bytes ahead, op } each, the farthest last (measured, Zen 5 and Emerald Rapids)
--   cached             half of L2 in bytes: for data that is read repeatedly, while a panel of weights streams through
--                      the other half
--   ports              their throughput per cycle, by ISA, in vectors of its full width: `vector`: operations on
--                      vectors, FMAs among them; `shuffle`, `load`, `store`. The ports of generic are those of a core
--                      that starts with each FMA one load of a vector and one of a broadcast
--   under_way          the most instructions in flight (the reorder buffer)
--   dispatch           instructions dispatched for each FMA that starts: products by mmla have many loads besides
--   narrow             cost of an operation on a vector of half the width, relative to the full width
--   slots              of its port that an op takes, where it is not one
--   tiling             cycles of a product, a load and a store of tile registers (measured, Emerald Rapids; a load from
--                      L1 takes 8); and `fetch` of what is multiplied by them
--   costs              constants of schedule/costs.lua that measurements of this core want otherwise (bench/refit.py)
--   miss_vector, miss_row   extra FMA slots of a step in a sum of more than `long` steps: for a vector of B; for a row
--                           of A, more if A is strided as X is (measured, Zen 4)
local generic = {
  name = "generic", doc = "any core that has the ISA", is = {},
  fmas = { scalar = 2, avx2 = 2, avx512 = 1, amx = 2, neon = 1 },
  latency = 4.4, near = 16384, near_bytes = 20, set_lines = 8, cached = 524288, long = 256,
  miss_vector = 0.12, miss_row = { columns = 0.02, rows = 0.06 },
  ports = {}, under_way = 512, dispatch = 1.5, narrow = 0.5, slots = { div = 8, sqrt = 8 }, lacks = {},
  tiling = { dot = 16, load = 12, store = 13, fetch = {} },
  fetch = { { "shares", 65, math.huge, 1048576 } },
  widened = { amx = far_widened, general = { { 8192, "prefetch" } } }, costs = {},
}

local intel = { avx2 = { vector = 3, shuffle = 1, load = 3, store = 2 },
                avx512 = { vector = 2, shuffle = 1, load = 2, store = 1 } }
intel.amx = intel.avx512
local arm = { neon = { vector = 4, shuffle = 4, load = 3, store = 2 } }

-- From the makers' optimization manuals, but for what is said to be measured, and zen4.
M.rows = {
  generic,
  -- Measured: 2 FMAs, 2 additions beside them, 2 permutations, 2 loads and a store of 32 bytes start in a cycle.
  { name = "zen3", doc = "AMD Zen 3",
    is = { { "AuthenticAMD", 0x19, { 0x00, 0x0F }, { 0x20, 0x5F } } },
    fmas = { scalar = 2, avx2 = 2 }, lacks = { "avx_vnni" }, cached = 262144, under_way = 256,
    fetch = { { "shares", 8, math.huge, 524288 }, { "ahead", 2, 7, 524288 } },
    slots = { div = 12, sqrt = 19 }, ports = { avx2 = { vector = 4, shuffle = 2, load = 2, store = 1 } } },
  { name = "zen4", doc = "AMD Zen 4",
    is = { { "AuthenticAMD", 0x19, { 0x10, 0x1F }, { 0x60, 0x7F }, { 0xA0, 0xAF } } },
    fmas = { scalar = 2, avx2 = 2, avx512 = 1 }, lacks = { "avx_vnni", "avx512_fp16" }, fetch = {},
    under_way = 320,
    slots = { div = 12, sqrt = 18 }, ports = { avx2 = { vector = 4, shuffle = 2, load = 2, store = 1 },
                                               avx512 = { vector = 2, shuffle = 1, load = 1, store = 0.5 } } },
  -- Measured: 2 FMAs, 2 additions beside them, 2 permutations, 2 loads and a store of 64 bytes start in a cycle.
  { name = "zen5", doc = "AMD Zen 5 with 512-bit units",
    is = { { "AuthenticAMD", 0x1A, { 0x00, 0x1F }, { 0x40, 0x4F } } },
    fmas = { scalar = 2, avx2 = 2, avx512 = 2 }, near = 24576, near_bytes = 32, set_lines = 12, far = 1048576,
    far_bytes = 24,
    fetch = { { "panels", 4, 64, 18874368 } }, narrow = 1, lacks = { "avx512_fp16" },
    slots = { div = 10, sqrt = 18 }, under_way = 448,
    ports = { avx2 = { vector = 4, shuffle = 2, load = 2, store = 2 },
              avx512 = { vector = 4, shuffle = 2, load = 2, store = 1 } } },
  { name = "sapphirerapids", doc = "Intel Sapphire, Emerald and Granite Rapids",
    is = { { "GenuineIntel", 0x6, { 0x8F, 0x8F }, { 0xAD, 0xAE }, { 0xCF, 0xCF } } }, mark = "amx_tile",
    fmas = { scalar = 2, avx2 = 2, avx512 = 2, amx = 2 }, near = 24576, near_bytes = 48, set_lines = 12, far = 1179648,
    far_bytes = 8, cached = 1048576, narrow = 1, slots = { div = 20, sqrt = 24, round = 2, dot = 4 }, ports = intel,
    fetch = { { "shares", 65, math.huge, 1048576 },
              { "shares", 24, 64, 33554432 }, { "ahead", 2, 64, 1179649 } },
    widened = { general = far_widened }, costs = { copied_from = 2 },
    tiling = { dot = 16, load = 12, store = 13,
               fetch = { { "shares", 65, math.huge, 2097152 }, { "shares", 97, math.huge, 1048576 } } } },
  { name = "neoverse_v1", doc = "Arm Neoverse V1", is = { { "0x41", nil, { 0xD40, 0xD40 } } },
    fmas = { scalar = 4, neon = 4 }, near = 32768, near_bytes = 32, set_lines = 4, ports = arm, under_way = 256 },
  { name = "neoverse_v2", doc = "Arm Neoverse V2", is = { { "0x41", nil, { 0xD4F, 0xD4F } } },
    fmas = { scalar = 4, neon = 4 }, near = 32768, near_bytes = 32, set_lines = 4, cached = 1048576, ports = arm,
    under_way = 320 },
  { name = "apple_m1", doc = "Apple M1, performance cores",
    is = { { "0x61", nil, { 0x23, 0x23 }, { 0x25, 0x25 }, { 0x29, 0x29 } } },
    fmas = { scalar = 4, neon = 4 }, near = 65536, near_bytes = 32, cached = 6291456, ports = arm, under_way = 640,
    lacks = { "neon_i8mm" } },
  { name = "apple_m2", doc = "Apple M2, performance cores",
    is = { { "0x61", nil, { 0x33, 0x33 }, { 0x35, 0x35 }, { 0x39, 0x39 } } },
    fmas = { scalar = 4, neon = 4 }, near = 65536, near_bytes = 32, cached = 8388608, ports = arm,
    under_way = 640 },
}

M.generic, M.names, M.by_name = generic.name, {}, {}

function M.add(row)
  for fact, value in pairs(generic) do
    if row[fact] == nil then row[fact] = value end
  end
  M.names[#M.names + 1] = row.name
  M.by_name[row.name] = row
end
for _, row in ipairs(M.rows) do M.add(row) end

-- Whether a core is one of a row's kinds: { its maker, its family where makers have such, ranges of its model }.
local function is_one(kinds, maker, family, model)
  for _, kind in ipairs(kinds) do
    for i = 3, #kind do
      local least, most = table.unpack(kind[i])
      if kind[1] == maker and kind[2] == family and model >= least and model <= most then return true end
    end
  end
  return false
end

-- The name of the row of the first core in the text of /proc/cpuinfo that is one; of others generic.
function M.of(text)
  local maker, family
  for key, value in text:gmatch("([^\n:]-)%s*:%s*([^\n]*)") do
    if key == "vendor_id" or key == "CPU implementer" then maker, family = value, nil end
    if key == "cpu family" then family = tonumber(value) end
    local model = (key == "model" or key == "CPU part") and tonumber(value)
    local features = key == "flags" and " " .. value .. " " -- behind the model
    for _, row in ipairs((model or features) and M.rows or {}) do
      if model and is_one(row.is, maker, family, model) then return row.name end
      if features and row.mark and features:find(" " .. row.mark .. " ", 1, true) then return row.name end
    end
  end
  return generic.name
end

-- What tells a kind of CPU from others of the same name, in the text of /proc/cpuinfo: the numbers of its maker.
function M.numbers(text)
  local found = {}
  for _, key in ipairs { "cpu family", "model", "stepping", "CPU implementer", "CPU part" } do
    found[#found + 1] = ("\n" .. text):match("\n" .. key .. "%s*:%s*(%w+)")
  end
  return table.concat(found, "_")
end

-- The facts for an ISA, fmas being a number then; nil where the core lacks the ISA.
function M.facts(name, isa)
  local row, facts = M.by_name[name], {}
  for fact, value in pairs(row) do facts[fact] = value end
  local known = generic.fmas[isa.name] and isa.name or isa.extends or isa.name
  facts.fmas = row.fmas[known] or row == generic and 1 or nil -- of an ISA that is new here
  local fmas = facts.fmas
  facts.widened = row.widened[isa.name] or row.widened.general
  facts.ports = row.ports[known] or fmas and { vector = fmas, shuffle = fmas, load = 2 * fmas, store = fmas }
  for _, lacking in ipairs(row.lacks) do
    if lacking == isa.name then return end
  end
  return facts.fmas and facts
end

return M
