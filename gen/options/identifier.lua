-- Which names a kernel may have: C identifiers that are free as a prefix and as the name of a header.

local reserved = {} -- the keywords of C11, C17, C23 and C++17
for word in ([[
  alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
  class compl const const_cast constexpr continue decltype default delete do double dynamic_cast
  else enum explicit export extern false float for friend goto if inline int long mutable
  namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
  reinterpret_cast restrict return short signed sizeof static static_assert static_cast struct
  switch template this thread_local throw true try typedef typeid typename typeof typeof_unqual
  union unsigned using virtual void volatile wchar_t while xor xor_eq]]):gmatch("%S+") do
  reserved[word] = true
end

-- <name>.h must not hide a header that the generated C, or a program that uses it, includes.
local headers = {}
for word in ([[
  arm_neon assert complex ctype errno fenv float immintrin inttypes iso646 limits locale math pthread
  setjmp signal stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string
  tgmath threads time uchar unistd wchar wctype]]):gmatch("%S+") do
  headers[word] = true
end

-- The rule that a name breaks, or nil.
return function(value)
  if type(value) ~= "string" or not value:match("^%a[%w_]*$") then
    return "must be a C identifier that starts with a letter"
  elseif #value > 128 then
    return "must have at most 128 characters"
  elseif reserved[value] then
    return "must not be a keyword of C or C++"
  elseif headers[value:lower()] then
    return "must not be the name of a header of C or POSIX"
  elseif value:lower():match("^mhagen") then
    return "must not start with mhagen, the prefix of the runtime"
  end
end
