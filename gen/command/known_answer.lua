-- Computes the checksum of a known answer: packs a kernel's weights, and runs its tape in the host's evaluator.

local host = require "host"
local program_of = require "tape.program"

-- Memory by the names of a test's sections and inputs.
local function memory_of(test, batch)
  local memory, lengths = {}, {}
  for _, section in ipairs(test.sections) do memory[section.name] = host.floats((section.bytes + 3) // 4) end
  for _, name in ipairs(test.inputs) do
    local array = test.arrays[name]
    memory[name] = array.of == "words" and host.known_words(array.first, array.count, test.small.keep, test.small.set)
      or host.known_numbers(array.first, array.count, test.scale / 32768)
  end
  for _, name in ipairs(test.lengths) do lengths[name] = test.lengths[name] end
  for name, value in pairs(lengths) do
    if type(name) == "string" then memory[name] = host.known_lengths(batch, value) end
  end
  if test.ranges then memory.row_keys = host.known_ranges(test.ranges.rows, test.ranges.seq_kv) end
  return memory
end

-- test: of kernel/known_answer.lua. packing, of_tables: of weights, and of tables that are apart or nil.
return function(test, recorded, packing, of_tables)
  local cfg, given = recorded.plan.cfg, { in_out = true }
  local memory, sum = memory_of(test, cfg.batch), 0
  for _, name in ipairs(test.matrices) do
    local array = test.arrays[name]
    given[name] = host.known_numbers(array.first, array.count, test.scale / 32768)
  end
  memory.packed, memory.tables = host.pack(packing, given), of_tables and host.pack(of_tables, given)
  local program, buffers = program_of(recorded.tape), {}
  local function call(name)
    for i, global in ipairs(program.globals) do buffers[i] = memory[global] or false end
    host.evaluate(program, program.number[name], buffers)
  end
  if test.fills then call "fill_all" end
  for run = 0, test.runs - 1 do
    if test.lengths.past then memory.past = host.known_lengths(cfg.batch, run * cfg.seq) end
    call "run_all"
    for _, result in ipairs(test.written) do sum = host.known_sum(sum, memory[result.name]) end
  end
  return sum
end
