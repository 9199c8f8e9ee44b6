-- A plan is a value: recording a kernel writes nothing into it, and choosing an arrangement nothing into the stages
-- that it is given.

local arrange = require "plan.arrange"
local code = require "emit.code"
local config = require "options.config"
local isas = require "isa.init"
local pack = require "plan.pack"
local plan_of = require "plan.init"
local tape = require "tape.init"
local types = require "machine.types"
local tasks = require "plan.tasks"
local walk = require "plan.walk"

-- All tables that modules share, which are compared by what they are.
local shared = {}
local function share(value)
  if type(value) ~= "table" or shared[value] then return end
  shared[value] = true
  for _, inner in pairs(value) do share(inner) end
end

-- A plan in which a write is an error, at any depth.
local function frozen(plan)
  local proxies = {}
  local function freeze(value)
    if type(value) ~= "table" or shared[value] then return value end
    if not proxies[value] then
      proxies[value] = setmetatable({}, {
        __index = function(_, key) return freeze(value[key]) end,
        __newindex = function(_, key) error(("a plan's %s is written"):format(key), 2) end,
        __len = function() return #value end,
        __pairs = function()
          local keys, i = {}, 0
          for key in pairs(value) do keys[#keys + 1] = key end
          return function()
            i = i + 1
            return keys[i], keys[i] and freeze(value[keys[i]])
          end
        end,
      })
    end
    return proxies[value]
  end
  return freeze(plan)
end

local configs = {
  "h=2 d_model=24 dk=5 seq=9 isa=avx2", "h=2 d_model=9 dk=10 seq=13 q_lanes=queries isa=neon",
  "h=1 d_model=656 dk=4 seq=16 isa=avx512",
  "h=4 d_model=32 dk=8 seq=21 causal=true probs=true dtype=bf16 isa=amx",
  "h=4 d_model=32 dk=8 seq=21 dtype=int8 kv_len=true q_len=true isa=amx",
  "h=2 d_model=40 dk=20 seq=13 dtype=f16 sum_dtype=f16 isa=neon_fp16",
  "h=4 d_model=32 dk=8 seq=9 dtype=bf16 isa=neon_i8mm", "h=4 d_model=40 dk=8 seq=9 weight_dtype=int4 isa=avx2",
  "h=4 h_kv=2 d_model=32 dk=8 seq=1 seq_kv=40 cache=append rope=half mask=bool isa=avx2",
  "h=4 d_model=32 dk=8 seq=9 seq_kv=40 cache=append cache_dtype=int8 qk_norm=rms io_dtype=bf16 isa=avx512",
  "h=2 d_model=16 dk=4 seq=5 unroll=full isa=scalar",
}

return function(check)
  share(isas.list)
  share(types)
  for _, words in ipairs(configs) do
    local list = {}
    for word in words:gmatch("%S+") do list[#list + 1] = word end
    local best = arrange.best
    function arrange.best(plan, stages) return best(plan, frozen(stages)) end
    local built, plan = pcall(plan_of.build, config.load(nil, list))
    arrange.best = best
    if not built then
      check(false, ("%s: %s"):format(words, type(plan) == "table" and plan.rule or plan))
    else
      local ok, message = pcall(function()
        local K = code.new(tape.new(plan.isa), frozen(plan))
        tasks.record(K, walk.record(K))
        pack.list(frozen(plan))
      end)
      check(ok, ("%s: %s"):format(words, tostring(message)))
    end
  end
  check(not pcall(function() frozen({ a = { b = 1 } }).a.b = 2 end), "a frozen plan can be written")
end
