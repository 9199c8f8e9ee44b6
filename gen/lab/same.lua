-- A text that is equal for two kernels if and only if their programs are: their files without name and comments.
--
-- If a kernel has the name of a variable, two equal kernels may be taken for different ones.

return function(name, files)
  local code = {}
  for i, file in ipairs(files) do
    local text = file.text:gsub("/%*.-%*/", "")
    for _, word in ipairs { name, name:upper() } do text = text:gsub("%f[%w]" .. word .. "%f[^%w]", "\1") end
    code[i] = text
  end
  return table.concat(code, "\0")
end
