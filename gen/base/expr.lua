-- Integer expressions of loop variables and parameters: sums of coefficient * atom plus a constant.
--
-- Operators build and fold them. A Lua integer is a constant expression.

local M = {}
local E = {}
E.__index = E

-- An atom is a variable, or an operation `op` that is not a sum: mul, div and mod (of non-negative numbers), min, max.
-- Its range { least, most }, where that is known, folds what is always the same.
local function make(const, terms)
  if #terms == 0 then return const end
  return setmetatable({ const = const, terms = terms }, E)
end

local function parts(e)
  if math.type(e) == "integer" then return e, {} end
  return e.const, e.terms
end

local function combine(x, y, sign)
  local cx, tx = parts(x)
  local cy, ty = parts(y)
  local terms, at = {}, {}
  for _, t in ipairs(tx) do
    terms[#terms + 1] = { atom = t.atom, coef = t.coef }
    at[t.atom.key] = #terms
  end
  for _, t in ipairs(ty) do
    local i = at[t.atom.key]
    if i then
      terms[i].coef = terms[i].coef + sign * t.coef
    else
      terms[#terms + 1] = { atom = t.atom, coef = sign * t.coef }
    end
  end
  local kept = {}
  for _, t in ipairs(terms) do
    if t.coef ~= 0 then kept[#kept + 1] = t end
  end
  return make(cx + sign * cy, kept)
end

local function scale(e, by)
  if math.type(e) == "integer" then return e * by end
  if by == 0 then return 0 end
  local terms = {}
  for i, t in ipairs(e.terms) do terms[i] = { atom = t.atom, coef = t.coef * by } end
  return make(e.const * by, terms)
end

E.__add = function(x, y) return combine(x, y, 1) end
E.__sub = function(x, y) return combine(x, y, -1) end
local by_terms
E.__mul = function(x, y)
  if math.type(x) == "integer" then return scale(y, x) end
  if math.type(y) == "integer" then return scale(x, y) end
  return by_terms(x, y)
end

-- C text. Every atom binds as tightly as a name, so a sum needs no inner parentheses.
local function term_text(t, first)
  local body = t.atom.text
  local sign, coef = "", t.coef
  if coef < 0 then sign, coef = "-", -coef end
  if coef ~= 1 then body = coef .. " * " .. body end
  if first then return sign .. body end
  return (sign == "" and " + " or " - ") .. body
end

function M.text(e)
  if math.type(e) == "integer" then return tostring(e) end
  local out = {}
  local leads = e.const > 0 and e.terms[1].coef < 0 -- 8 - i rather than -i + 8
  if leads then out[1] = tostring(e.const) end
  for _, t in ipairs(e.terms) do out[#out + 1] = term_text(t, #out == 0) end
  if e.const > 0 and not leads then out[#out + 1] = " + " .. e.const end
  if e.const < 0 then out[#out + 1] = " - " .. -e.const end
  return table.concat(out)
end
E.__tostring = M.text

-- Does the text need parentheses as an operand of * or /?
local function is_sum(e)
  return math.type(e) ~= "integer" and (#e.terms > 1 or e.const ~= 0 or e.terms[1].coef ~= 1)
end

local function paren(e)
  return is_sum(e) and "(" .. M.text(e) .. ")" or M.text(e)
end

-- The text of what stands alone: without parentheses around all of it.
function M.alone(e)
  local text = M.text(e)
  return not is_sum(e) and text:match("^%((.*)%)$") or text
end

-- The text of an operand of <, > or ?: a conditional needs its parentheses.
function M.compared(e)
  local text = M.alone(e)
  return text:find("?", 1, true) and M.text(e) or text
end

local function from_atom(atom) return make(0, { { atom = atom, coef = 1 } }) end

-- The product of two sums, term by term.
function by_terms(x, y)
  local function product(a, b)
    local text = "(" .. a.text .. " * " .. b.text .. ")"
    local range = a.range and b.range and { a.range[1] * b.range[1], a.range[2] * b.range[2] }
    return from_atom { key = text, text = text, of = { from_atom(a), from_atom(b) }, op = "mul", range = range,
                       eval = function(env) return a.eval(env) * b.eval(env) end }
  end
  local sum = scale(x, y.const)
  for _, t in ipairs(y.terms) do
    for _, s in ipairs(x.terms) do sum = sum + product(s.atom, t.atom) * (s.coef * t.coef) end
    sum = sum + scale(from_atom(t.atom), x.const * t.coef)
  end
  return sum
end

-- The least and the most that e can be, or nil.
function M.range(e)
  local least, terms = parts(e)
  local most = least
  for _, t in ipairs(terms) do
    if not t.atom.range then return nil end
    local a, b = t.coef * t.atom.range[1], t.coef * t.atom.range[2]
    least, most = least + math.min(a, b), most + math.max(a, b)
  end
  return least, most
end

-- Whether x < y, where that is always so or never; else nil.
function M.less(x, y)
  local least, most = M.range(x - y)
  if not least then return nil end
  if most < 0 then return true end
  if least >= 0 then return false end
  return nil
end

-- range: { least, most } of its values, or nil.
function M.var(name, range)
  return from_atom {
    key = name, text = name, of = {}, range = range, eval = function(env) return env[name] end,
  }
end

-- A known number under a name that C has for it.
function M.named(name, value)
  return from_atom {
    key = name, text = name, of = {}, range = { value, value }, value = value, eval = function() return value end,
  }
end

-- Whether e is a variable and nothing else.
function M.is_var(e)
  local const, terms = parts(e)
  return const == 0 and #terms == 1 and terms[1].coef == 1 and #terms[1].atom.of == 0
end

local function divides(n, x)
  local const, terms = parts(x)
  local all = const % n == 0
  for _, t in ipairs(terms) do all = all and t.coef % n == 0 end
  return all
end

-- x / n, where n is at least 1; if n is no constant, x is at least 0.
function M.div(x, n)
  local least, most = M.range(x)
  local least_n, most_n = M.range(n)
  local range = least and least_n and { least // most_n, most // least_n }
  if range and range[1] == range[2] then return range[1] end
  if n == 1 then return x end
  for by = M.is_const(n) and n or 1, 2, -1 do -- a factor of all terms
    if n % by == 0 and divides(by, x) then return M.div(M.share(x, by), n // by) end
  end
  local text = "(" .. paren(x) .. " / " .. paren(n) .. ")"
  return from_atom {
    key = text, text = text, of = { x, n }, op = "div", range = range,
    eval = function(env) return M.eval(x, env) // M.eval(n, env) end,
  }
end

-- x / n, where n divides each term of x.
function M.share(x, n)
  if n == 1 then return x end
  local const, terms = parts(x)
  local of = {}
  for i, t in ipairs(terms) do
    assert(t.coef % n == 0, "a share of no whole terms")
    of[i] = { atom = t.atom, coef = t.coef // n }
  end
  assert(const % n == 0, "a share of no whole number")
  return make(const // n, of)
end

function M.ceil_div(x, n) return M.div(x + (n - 1), n) end

function M.mod(x, n)
  if math.type(x) == "integer" then return x % n end
  if n == 1 then return 0 end
  local least, most = M.range(x)
  if least and least // n == most // n then return x - least // n * n end
  local text = "(" .. paren(x) .. " % " .. n .. ")"
  return from_atom {
    key = text, text = text, of = { x, n }, op = "mod", range = { 0, n - 1 },
    eval = function(env) return M.eval(x, env) % n end,
  }
end

local function range_of(fold, x, y)
  local least_x, most_x = M.range(x)
  local least_y, most_y = M.range(y)
  return least_x and least_y and { fold(least_x, least_y), fold(most_x, most_y) } or nil
end

local function extreme(sign, fold)
  return function(x, y)
    local least, most = M.range(x - y)
    if least and most <= 0 then return sign == "<" and x or y end
    if least and least >= 0 then return sign == "<" and y or x end
    local a, b = M.compared(x), M.compared(y)
    local text = ("(%s %s %s ? %s : %s)"):format(a, sign, b, a, b)
    return from_atom {
      key = text, text = text, of = { x, y }, op = sign == "<" and "min" or "max", range = range_of(fold, x, y),
      eval = function(env) return fold(M.eval(x, env), M.eval(y, env)) end,
    }
  end
end
M.min = extreme("<", math.min)
M.max = extreme(">", math.max)

function M.eval(e, env)
  if math.type(e) == "integer" then return e end
  local sum = e.const
  for _, t in ipairs(e.terms) do sum = sum + t.coef * t.atom.eval(env) end
  return sum
end

-- Calls visit(name) for every variable of e.
function M.variables(e, visit)
  if math.type(e) == "integer" then return end
  for _, t in ipairs(e.terms) do
    if #t.atom.of == 0 then visit(t.atom.key) end
    for _, sub in ipairs(t.atom.of) do M.variables(sub, visit) end
  end
end

-- What is added to the terms with variables.
function M.constant(e)
  local const = parts(e)
  return const
end

-- What a variable is multiplied with, where it is a term by itself.
function M.coefficient(e, name)
  local _, terms = parts(e)
  for _, t in ipairs(terms) do
    if t.atom.key == name then return t.coef end
  end
  return 0
end

function M.is_const(e) return math.type(e) == "integer" end

return M
