-- The text by which a file enables instructions of Arm.

local M = {}

M.guard = "defined(__aarch64__)"
M.beyond = M.guard .. " && defined(__ARM_FEATURE_ATOMICS) && !defined(__APPLE__)" -- whose CPUs all have Armv8.1

local of_clang = { fp16 = "fullfp16" } -- where it has another word

-- features: what the base architecture lacks, if anything. Scheduling before the registers are assigned makes gcc spill
-- in every tile; x86 has it off.
function M.begin(features)
  local words = {}
  for i, feature in ipairs(features or {}) do words[i] = of_clang[feature] or feature end
  local lines = features and {
    "#if defined(__clang__)",
    ('#pragma clang attribute push(__attribute__((target("%s"))), apply_to = function)'):format(
      table.concat(words, ",")),
    "#else",
    "#pragma GCC push_options",
    ('#pragma GCC target("arch=armv8.2-a+%s")'):format(table.concat(features, "+")),
  } or { "#if !defined(__clang__)", "#pragma GCC push_options" }
  lines[#lines + 1] = '#pragma GCC optimize("no-schedule-insns")'
  lines[#lines + 1] = "#endif"
  return table.concat(lines, "\n")
end

function M.finish(features)
  local lines = features and { "#if defined(__clang__)", "#pragma clang attribute pop", "#else" }
    or { "#if !defined(__clang__)" }
  return table.concat(lines, "\n") .. "\n#pragma GCC pop_options\n#endif"
end

local of_linux = { fp16 = "asimdhp", dotprod = "asimddp" } -- where it has another word

-- The words of /proc/cpuinfo for an ISA with these features.
function M.cpuinfo(features)
  local words = { "asimd" }
  for _, feature in ipairs(features) do words[#words + 1] = of_linux[feature] or feature end
  return table.concat(words, " ")
end

return M
