-- The axes after operators of images and sound, which move windows, resize or pad. Each is op -> function of (self,
-- node, a, b) -> axes, as gen/onnx/shapes.lua has them.

local M = {}

-- The extent behind a window that moves along an axis.
local function windowed(node, size, a, kernel)
  local t = node.attributes
  local stride, dilation = t.strides and t.strides[a] or 1, t.dilations and t.dilations[a] or 1
  local pads, count = t.pads, #(t.kernel_shape or kernel)
  if t.auto_pad and t.auto_pad:find "^SAME" then return (size + stride - 1) // stride end
  local padded = size + (pads and pads[a] + pads[a + count] or 0)
  local inner = padded - dilation * (kernel[a] - 1) - 1
  if (t.ceil_mode or 0) ~= 0 then inner = inner + stride - 1 end
  return math.max(1, inner // stride + 1)
end

local function windows(node, a, kernel, channels)
  if not a or not kernel or #kernel ~= #a - 2 then return nil end
  local shape = { a[1], channels }
  for k = 1, #kernel do shape[k + 2] = windowed(node, a[k + 2], k, kernel) end
  return shape
end

function M.Conv(_, node, a, b) return b and #b > 2 and windows(node, a, table.move(b, 3, #b, 1, {}), b[1]) or nil end

function M.MaxPool(_, node, a) return a and windows(node, a, node.attributes.kernel_shape, a[2]) end

M.AveragePool, M.LpPool = M.MaxPool, M.MaxPool

function M.ConvTranspose(_, node, a, b)
  local t = node.attributes
  if not a or not b or #a ~= #b or t.output_shape or t.auto_pad and t.auto_pad:find "^SAME" then return nil end
  local shape, count = { a[1], b[2] * (t.group or 1) }, #a - 2
  for k = 1, count do
    local function of(list, default) return list and list[k] or default end
    local pads = t.pads and t.pads[k] + t.pads[k + count] or 0
    shape[k + 2] = of(t.strides, 1) * (a[k + 2] - 1) + of(t.output_padding, 0) +
      (b[k + 2] - 1) * of(t.dilations, 1) + 1 - pads
  end
  return shape
end

function M.GlobalMaxPool(_, _, a)
  local shape = a and { a[1], a[2] }
  for _ = 3, a and #a or 0 do shape[#shape + 1] = 1 end
  return shape
end

M.GlobalAveragePool = M.GlobalMaxPool

function M.Resize(self, node, a)
  local sizes = node.inputs[4] and node.inputs[4] ~= "" and self.elements:list(node.inputs[4])
  local scales = self.elements:list(node.inputs[node.op == "Upsample" and 2 or 3] or "")
  if not a or not sizes and not scales then return nil end
  local shape = {}
  for k = 1, #a do shape[k] = sizes and sizes[k] or math.tointeger(math.floor(a[k] * (scales[k] or 1))) end
  return shape
end

M.Upsample = M.Resize

function M.Pad(self, node, a)
  local pads = node.inputs[2] and self.elements:list(node.inputs[2]) or node.attributes.pads
  if not a or not pads or #pads ~= 2 * #a or (node.inputs[4] or "") ~= "" then return nil end
  local shape = {}
  for k = 1, #a do shape[k] = a[k] + pads[k] + pads[k + #a] end
  return shape
end

return M
