-- What is the same for two kernels if and only if their programs are: their files without the name and
-- the comments. A name that is also a variable's may hide that two are the same, no more.

return function(name, files)
  local code = {}
  for i, file in ipairs(files) do
    local text = file.text:gsub("/%*.-%*/", "")
    for _, word in ipairs { name, name:upper() } do text = text:gsub("%f[%w_]" .. word .. "%f[^%w]", "\1") end
    code[i] = text
  end
  return table.concat(code, "\0")
end
