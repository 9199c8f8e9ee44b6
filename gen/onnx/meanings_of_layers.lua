-- What operators around attention in a layer mean, for gen/onnx/evaluate.lua: activations, and norms of sums.
--
--   rows           as in gen/onnx/meanings.lua
--   activations    { value of the key ffn_act = function of (run, x) -> act(x) }
--   norms          { value of the key norm_kind = function of (run, x, gains, bias, eps); bias may be nil }

local meanings = require "onnx.meanings"
local meanings_of_sums = require "onnx.meanings_of_sums"

local M = { rows = {}, activations = {}, norms = {} }

local rows, activations = M.rows, M.activations

-- ---- activations ----

local function times(run, x, by) return run:apply("mul", x, by) end

-- x / 2 (1 + y)
local function half(run, x, y)
  return times(run, times(run, x, run:constant(0.5)), run:apply("add", y, run:constant(1.0)))
end

function activations.gelu(run, x)
  return half(run, x, run:apply("erf", times(run, x, run:constant(0.5 ^ 0.5))))
end

function activations.gelu_tanh(run, x)
  local cube = times(run, times(run, x, x), times(run, x, run:constant(0.044715)))
  local inner = times(run, run:apply("add", x, cube), run:constant((2 / math.pi) ^ 0.5))
  return half(run, x, run:apply("tanh", inner))
end

local function swish(run, x, alpha)
  return times(run, x, meanings.rows.Sigmoid(run, nil, times(run, x, run:constant(alpha))))
end

local QUICK = 1.702

function activations.quick_gelu(run, x) return swish(run, x, QUICK) end
function activations.silu(run, x) return swish(run, x, 1.0) end
function activations.relu(run, x) return meanings.rows.Relu(run, nil, x) end
function activations.relu2(run, x)
  local y = activations.relu(run, x)
  return times(run, y, y)
end

function activations.tanh(run, x) return run:apply("tanh", x) end

function rows.Gelu(run, node, x)
  return activations[node.attributes.approximate == "tanh" and "gelu_tanh" or "gelu"](run, x)
end

local function biased(of)
  return function(run, _, x, bias) return of(run, bias and run:apply("add", x, bias) or x) end
end

rows["com.microsoft Gelu"] = biased(activations.gelu)
rows["com.microsoft BiasGelu"] = biased(activations.gelu)
rows["com.microsoft FastGelu"] = biased(activations.gelu_tanh)
rows["com.microsoft QuickGelu"] = function(run, node, x) return swish(run, x, node.attributes.alpha or QUICK) end

-- ---- norms ----

local function node_of(eps) return { attributes = { epsilon = eps }, outputs = {} } end

function M.norms.layer(run, x, gains, bias, eps)
  return meanings_of_sums.LayerNormalization(run, node_of(eps), x, gains, bias)
end

function M.norms.rms(run, x, gains, _, eps)
  return meanings_of_sums.RMSNormalization(run, node_of(eps), x, gains)
end

-- The norm of a sum. Its outputs are the norm, two that are of training, and the sum.
local function of_sum(kind)
  return function(run, node, x, skip, gains, ...)
    local beta, bias = ...
    if kind == "rms" then beta, bias = nil, beta end
    local sum = run:apply("add", x, skip)
    sum = bias and run:apply("add", sum, bias) or sum
    return M.norms[kind](run, sum, gains, beta, node.attributes.epsilon or 1e-5), nil, nil, sum
  end
end

rows["com.microsoft SkipLayerNormalization"] = of_sum "layer"
rows["com.microsoft SkipSimplifiedLayerNormalization"] = of_sum "rms"

return M
