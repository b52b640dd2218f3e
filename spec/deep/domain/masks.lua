-- Random cases: one call of attention, with its gradients, on TIDE_SPEC_DEVICE (cpu) against the
-- reference on the same numbers: heads of any size, any mask, documents down to one token, keys
-- that no query sees, strided heads, numbers that are not finite.

local choice = require 'spec.deep.fuzz.choice'
local values = require 'spec.deep.fuzz.values'

local masks = { limit = 60 }

local device = os.getenv 'TIDE_SPEC_DEVICE' or 'cpu'
local rounding = { f32 = 2e-5, f64 = 1e-11, bf16 = 4e-2, f16 = 8e-3 }

-- ---- cases -----------------------------------------------------------------------------------

-- Tokens: a few, none, around a tile, several tiles.
local function tokens(c)
   local kind = c:int(1, 10)
   return kind == 10 and 0 or kind >= 8 and c:int(120, 300) or kind >= 6 and c:int(60, 70)
      or c:few(1, 40)
end

function masks.make(c)
   local o = { seed = c:int(0, 9999), B = c:int(1, 2), K = c:few(1, 3) }
   o.dtype = c:pick { 'f32', 'f32', 'f64', 'bf16', 'f16' }
   o.H = o.K * c:few(1, 3)
   o.D = c:pick { 8, c:int(1, 40), c:int(1, 130), 64, 128 }
   o.V = c:chance(0.2) and c:int(1, 70) or o.D
   o.Tq, o.Tk = tokens(c), tokens(c)
   if c:chance(0.6) then o.Tk = o.Tq end
   o.causal = c:chance(0.5)
   if c:chance(0.4) then o.window = { c:few(-1, 70), c:few(-1, 70) } end
   if c:chance(0.2) then o.softcap = c:pick { 2, 0.5, 30 } end
   if c:chance(0.2) then o.scale = c:pick { 0.3, -1, 4 } end
   if c:chance(0.2) then o.q_start = c:int(-3, 70) end
   o.documents = not o.q_start and c:chance(0.4) and c:pick { 1, 3, 40 } or nil
   o.tiles = o.documents and c:chance(0.3)
   o.until_ = o.documents and c:chance(0.4) and c:pick { 2, 9, 70 } or nil
   o.bias = c:chance(0.2) and c:pick { 'whole', 'row', 'infinite', 'hidden keys' } or nil
   o.layout = c:pick { 'whole', 'whole', 'joined', 'heads first' }
   o.wild = c:chance(0.2) and c:pick { 'q', 'k', 'v', 'dy' } or nil
   o.size = c:pick { 0.5, 1, 2 }
   if o.wild and c:chance(0.3) then o.bias = c:pick { 'infinite', 'hidden keys' } end
   -- A seen key of a low score may have weight 0 in f32, but not in f64, and 0 times NaN is NaN.
   if o.wild == 'v' then o.scale, o.size = nil, math.min(o.size, 1) end
   return o
end

-- ---- both sides ------------------------------------------------------------------------------

-- Infinite queries or keys make any score; what they give is not compared.
local wild = { q = { 0 / 0 }, k = { 0 / 0 }, v = { 0 / 0, 1 / 0, -1 / 0 }, dy = { 0 / 0 } }

local function numbers(o, name, n)
   local list = values.normal(('%d %s'):format(o.seed, name), n, 'bf16')
   for i = 1, n do list[i] = list[i] * o.size end
   if o.wild == name and n > 0 then
      local next_ = choice.stream(('%d wild'):format(o.seed))
      for _ = 1, 1 + math.floor(next_() * 3) do
         local kinds = wild[name]
         list[1 + math.floor(next_() * n)] = kinds[1 + math.floor(next_() * #kinds)]
      end
   end
   return list
end

local function filled(t, o, name, shape, where)
   local n = 1
   for _, s in ipairs(shape) do n = n * s end
   if n == 0 then return t.zeros(shape, { dtype = o.dtype, device = where }) end
   return t.tensor(numbers(o, name, n), { dtype = 'f64', device = 'cpu' }):to(o.dtype)
      :reshape(shape):to(where)
end

-- A leaf, and its view [B, T, heads, width] as the layout says.
local function operand(t, o, name, T, heads, width, where)
   local x = filled(t, o, name, { o.B, T, heads, width }, where)
   if o.layout == 'joined' then
      x = t.cat({ x, t.zeros({ o.B, T, heads, 3 }, { dtype = o.dtype, device = where }) }, 4)
   elseif o.layout == 'heads first' then
      x = x:transpose(2, 3):contiguous()
   end
   x:requires_grad_()
   if o.layout == 'joined' then return x, x:narrow(4, 1, width) end
   return x, o.layout == 'heads first' and x:transpose(2, 3) or x
end

-- (document, position) of T tokens in documents of up to `most` tokens, the last ones in none;
-- with until_ also up to where a token sees.
local function index(t, o, name, T, where)
   local next_, rows, doc, at = choice.stream(('%d %s'):format(o.seed, name)), {}, 0, 0
   local left = 1 + math.floor(next_() * o.documents)
   for i = 1, T do
      rows[i] = { i > T * 0.9 and -1 or doc, at,
         o.until_ and at + (next_() < 0.5 and 0 or math.floor(next_() * o.until_)) or nil }
      at, left = at + 1, left - 1
      if left == 0 then doc, at, left = doc + 1, 0, 1 + math.floor(next_() * o.documents) end
   end
   if T == 0 then
      return t.zeros({ 1, 0, o.until_ and 3 or 2 }, { dtype = 'i32', device = where })
   end
   return t.tensor({ rows }, { dtype = 'i32' }):to(where)
end

local function bias_of(t, o, where)
   if not o.bias then return nil end
   local is_row = o.bias == 'row' or o.bias == 'hidden keys'
   local b = filled(t, o, 'bias', { o.B, o.H, is_row and 1 or o.Tq, o.Tk }, where)
   if o.bias == 'infinite' or o.bias == 'hidden keys' then
      b = t.where(b:gt(0), b, b * 0 - 1 / 0)
   end
   return is_row and b:expand { o.B, o.H, o.Tq, o.Tk } or b
end

-- Returns output, lse and gradients by name.
local function run(t, o, where)
   local opts = { causal = o.causal, window = o.window, softcap = o.softcap, scale = o.scale,
      q_start = o.q_start, return_lse = true, bias = bias_of(t, o, where) }
   if o.documents then
      opts.q_index, opts.k_index = index(t, o, 'q', o.Tq, where), index(t, o,
         o.Tq == o.Tk and 'q' or 'k', o.Tk, where)
      if o.tiles and where ~= 'ref' then
         opts.q_tiles, opts.k_tiles = t.attention_tiles(opts.q_index), t.attention_tiles(
            opts.k_index)
      end
   end
   local q, qv = operand(t, o, 'q', o.Tq, o.H, o.D, where)
   local k, kv = operand(t, o, 'k', o.Tk, o.K, o.D, where)
   local v, vv = operand(t, o, 'v', o.Tk, o.K, o.V, where)
   local y, lse = t.attention(qv, kv, vv, opts)
   local out = { { 'out', y:detach() }, { 'lse', lse:detach() } }
   y:backward(filled(t, o, 'dy', y.shape, where))
   out[3], out[4], out[5] = { 'dq', q.grad }, { 'dk', k.grad }, { 'dv', v.grad }
   return out
end

local function flat(g) return values.flat { g:to('cpu'):to('f64'):reshape(-1):tolist() } end

local function is_finite(v) return v - v == 0 end

-- Returns the size of the terms that gradients of queries and keys are differences of. They cancel
-- where a query sees one key.
local function term(o, name)
   if name ~= 'dq' and name ~= 'dk' then return 1 end
   return math.max(1, math.abs(o.scale or 1 / math.sqrt(o.D)) * o.size^3 * math.sqrt(o.V))
end

-- Returns how numbers differ from the wanted ones, or nil: finite where those are, and near. most:
-- the least that room is a fraction of.
local function compare(got, want, room, most)
   if #got ~= #want then return ('%d numbers, wanted %d'):format(#got, #want) end
   for i = 1, #want do
      if is_finite(want[i]) then most = math.max(most, math.abs(want[i])) end
   end
   for i = 1, #want do
      local a, b = got[i], want[i]
      local same = a == b or is_finite(b) and math.abs(a - b) <= room * most
         or not is_finite(a) and not is_finite(b)
      if not same then return ('number %d is %.9g, wanted %.9g'):format(i, a, b) end
   end
end

function masks.check(o)
   local t = require 'tide'
   local ok, want = pcall(run, t, o, 'ref')
   local fine, got = pcall(run, t, o, device)
   if not ok or not fine then
      local a, b = ok and 'none' or want.code, fine and 'none' or got.code
      if a == b and a then return nil, 'refused' end
      return ('%s, reference: %s'):format(tostring(fine and 'none' or got),
         tostring(ok and 'none' or want))
   end
   for i, row in ipairs(want) do
      local wrong = compare(flat(got[i][2]), flat(row[2]), 4 * rounding[o.dtype], term(o, row[1]))
      if wrong then return ('%s: %s'):format(row[1], wrong) end
   end
   return nil, o.wild and 'wild' or 'finite'
end

function masks.trait(o) return o.dtype .. (o.wild and ' wild' or '') end

return masks
