-- What the x86 ISAs share: the header and how a file switches its instructions on by itself.

local M = {}

M.headers = "#include <immintrin.h>"
M.arch = "x86_64"
M.guard = "defined(__x86_64__)"

function M.begin(features)
  return table.concat({
    "#if defined(__clang__)",
    ('#pragma clang attribute push(__attribute__((target("%s"))), apply_to = function)'):format(features),
    "#else",
    "#pragma GCC push_options",
    ('#pragma GCC target("%s")'):format(features),
    "#endif",
  }, "\n")
end

M.finish = table.concat({
  "#if defined(__clang__)",
  "#pragma clang attribute pop",
  "#else",
  "#pragma GCC pop_options",
  "#endif",
}, "\n")

return M
