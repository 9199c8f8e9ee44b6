-- build/mhagen-many DIR FILE: the kernels of many configs by one process. Each line of FILE is a config as
-- `gen` takes it; what is refused is said and left out.

local host = require "host"
local errors = require "command.errors"
local kernel = require "command.kernel"

return function(arguments)
  local dir, path = table.unpack(arguments)
  for line in errors.must(host.lines(path)) do
    local words = {}
    for word in line:gmatch("%S+") do words[#words + 1] = word end
    local ok, message = xpcall(function()
      local cfg = kernel.load_config(words)
      local files = kernel.files_of(cfg)
      errors.must(host.write_files(dir, files))
    end, errors.on_error)
    if not ok and message.internal then return 2, message.internal end
    if not ok then
      errors.must(host.print(("refused: %s %s\n"):format(errors.one_line(message), table.concat(words, " "))))
    end
  end
  return 0
end
