-- The stages of a kernel, in the order of the data. Each file gives its own, none where a plan needs none.

local files = {
  require "stage.transpose", require "stage.sums", require "stage.project", require "stage.attend",
  require "stage.output",
}

return function(plan)
  local list = {}
  for _, stages in ipairs(files) do
    for _, stage in ipairs(stages(plan)) do list[#list + 1] = stage end
  end
  return list
end
