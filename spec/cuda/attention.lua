-- Attention on a device and on the host, for the case files of this folder.

local tide = require 'tide'
local compare = require 'spec.cuda.compare'
local random, rounding = compare.random, compare.rounding

local M = {}

-- Index pairs of documents of `long` tokens; true: of 37, with tokens of no document between.
-- 'batches': each batch has documents of another length, the last tokens of which belong to none.
local function packed(b, tq, tk, long)
   local q, k = {}, {}
   for row = 1, long == 'batches' and b or 1 do
      local n = long == true and 37 or long == 'batches' and 70 * row + 60 or long
      for i = 1, math.max(tq, tk) do
         local doc, pos = math.floor((i - 1) / n), (i - 1) % n
         if long == true and i % 29 == 0 or long == 'batches' and i > tk - 9 then doc = -1 end
         if i <= tq then q[#q + 1], q[#q + 2] = doc, pos end
         if i <= tk then k[#k + 1], k[#k + 2] = doc, pos end
      end
   end
   return tide.tensor(q, { dtype = 'i32' }):reshape { -1, tq, 2 },
      tide.tensor(k, { dtype = 'i32' }):reshape { -1, tk, 2 }
end

-- Adds a third number to pairs: tokens of every other run of n positions see up to its last.
local function with_until(index, n)
   local at = index:select(3, 2)
   local run = (at:to 'f64' / n):floor():to 'i32'
   local is_text = ((run:to 'f64' / 2):floor() * 2):to('i32'):eq(run)
   return tide.cat({ index, tide.where(is_text, at, run * n + n - 1):unsqueeze(3) }, 3)
end

-- Options of tide.attention by name; packed: as above; until: as of with_until; bias: the dtype of
-- one [1, H, Tq, Tk] that has a few of -inf.
M.masks = {
   full = {}, causal = { causal = true }, window = { causal = true, window = 20 },
   ['window to both sides'] = { window = { 7, 3 } }, shifted = { causal = true, q_start = 20 },
   softcap = { causal = true, softcap = 3, scale = 0.4 }, packed = { causal = true, packed = true },
   ['packed, both ways'] = { packed = true, window = { 30, 5 } },
   ['long documents'] = { causal = true, packed = 290 },
   ['long documents, both ways'] = { packed = 150 },
   ['packed by batch'] = { causal = true, packed = 'batches' },
   ['packed by batch, both ways'] = { packed = 'batches', softcap = 2 },
   ['runs seen whole'] = { causal = true, packed = 290, until_ = 25 },
   ['runs seen whole in a window'] = { causal = true, packed = true, until_ = 9, window = 20 },
   ['long runs seen whole'] = { causal = true, packed = 150, until_ = 80, window = { 100, 30 } },
   bias = { bias = 'f32', causal = true }, ['bias in bf16'] = { bias = 'bf16', softcap = 3 },
   ['bias in f16'] = { bias = 'f16', packed = 150 },
   ['bias in f64'] = { bias = 'f64', scale = -0.2 },
   ['a scale below 0'] = { scale = -0.1 },
}

-- q, k, v and a gradient of out.
function M.operands(s, dtype, where)
   local list = {}
   for i, shape in ipairs { { s.b, s.tq, s.h, s.d }, { s.b, s.tk, s.hk, s.d },
                            { s.b, s.tk, s.hk, s.dv }, { s.b, s.tq, s.h, s.dv } } do
      list[i] = random(shape, i < 4 and 10 + i or 20, dtype):to(where)
   end
   return list
end

-- out, lse and the gradients of q, k and v (unless s.forward) on a device.
local function attend(s, opts, dtype, where)
   local o, leaves = { return_lse = true }, M.operands(s, dtype, where)
   local dout = leaves[4]
   for i = 1, 3 do leaves[i] = leaves[i]:detach():requires_grad_() end
   for _, k in ipairs { 'causal', 'window', 'q_start', 'softcap', 'scale' } do o[k] = opts[k] end
   if opts.packed then
      local q, k = packed(s.b, s.tq, s.tk, opts.packed)
      if opts.until_ then q, k = with_until(q, opts.until_), with_until(k, opts.until_) end
      o.q_index, o.k_index = q:to(where), k:to(where)
   end
   if opts.bias then
      local bias = random({ 1, s.h, s.tq, s.tk }, 22, 'f32')
      bias = tide.where(bias:gt(2), tide.full({}, -math.huge), bias)
      o.bias = bias:to(opts.bias):to(where)
   end
   local out, lse = tide.attention(leaves[1], leaves[2], leaves[3], o)
   if s.forward then return { out, lse } end
   local dlse = random({ s.b, s.h, s.tq }, 21, 'f32'):to(where)
   local zero = tide.zeros({}, { device = where })
   local finite = tide.where(lse:isfinite(), lse, zero)
   local loss = (out * dout):sum():to 'f32' + (finite * dlse):sum()
   loss:backward()
   return { out, lse, leaves[1].grad, leaves[2].grad, leaves[3].grad }
end
M.attend = attend

-- A shape { b, tq, tk, h, hk, d, dv }: q [B, Tq, H, D], keys [B, Tk, Hk, D], values of Dv channels.
-- Raises where a device does not compute what the host does.
function M.agrees(shapes, opts, dtype, device)
   for i, s in ipairs(shapes) do
      local got, want = attend(s, opts, dtype, device), attend(s, opts, dtype, 'cpu')
      for k = 1, #want do
         local room = k == 2 and (dtype == 'f32' and 2e-5 or 2e-3)
            or (dtype == 'f32' and 2e-5 or rounding[dtype] * (k > 2 and 2 or 1))
         compare.close(got[k], want[k], room, ('%s of shape %d'):format(
            ({ 'out', 'lse', 'dq', 'dk', 'dv' })[k], i))
      end
   end
end

return M
