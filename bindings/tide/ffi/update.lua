-- Optimiser steps over lists of tensors: one C call for a whole group of parameters.
--
-- Policy (groups, schedules, state by name) lives in lua/tide/optim. Nothing here is recorded.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local M = {}
local make, _, _, two = require('tide.ffi.row').adders(M)
local raw = {}                              -- C functions behind wrappers that check the arguments
local call = require('tide.ffi.row').adders(raw, 'raw')
call 'norm(ctx, n, list, p, squared)'
local bad = status.bad_arg

-- Returns the list lists[key] as (buffer, length), which must be n. Absent: null.
local function list_of(op, lists, key, n, required)
   local list = lists[key]
   if list == nil and not required then return nil end
   local buf, m = arg.tensors(op, 'lists.' .. key, list, not required)
   if n and m ~= n then bad(op, 'lists.' .. key, ('%d tensors, as in lists.p'):format(n), m) end
   return buf, m
end

local function check_keys(op, name, t, allowed)
   if type(t) ~= 'table' then bad(op, name, 'a table', t) end
   for key in each(t) do
      if not allowed[key] then bad(op, name .. '.' .. tostring(key), 'no such key', t[key]) end
   end
end

-- Returns the single tensors of lists that an update reads beside its gradients.
local function controls(op, lists)
   return arg.tensor_or_nil(op, 'lists.g_scale', lists.g_scale),
      arg.tensor_or_nil(op, 'lists.rates', lists.rates),
      arg.tensor_or_nil(op, 'lists.found_inf', lists.found_inf)
end

local adamw_lists = arg.set { 'p', 'g', 'm', 'v', 'master', 'g_scale', 'rates', 'found_inf' }
local adamw_keys = arg.set { 'lr', 'beta1', 'beta2', 'eps', 'weight_decay', 'step', 'grad_scale',
   'maximize' }
local new_adamw_attrs = ffi.typeof 'tide_adamw_attrs'

local function adamw_attrs(op, attrs)
   check_keys(op, 'attrs', attrs, adamw_keys)
   local a = new_adamw_attrs()
   C.tide_adamw_attrs_init(a)
   for key, value in each(attrs) do
      if key == 'maximize' then
         a.maximize = arg.flag(op, 'attrs.maximize', value) and 1 or 0
      elseif key == 'step' then
         a.step = arg.int(op, 'attrs.step', value, 1)
      else
         a[key] = arg.finite(op, 'attrs.' .. key, value)
      end
   end
   return a
end

-- Returns the number of parameters, and the lists p, g, m, v and master.
local function adamw_lists_of(op, lists)
   local p, n = list_of(op, lists, 'p', nil, true)
   return n, p, list_of(op, lists, 'g', n, true), (list_of(op, lists, 'm', n, true)),
      (list_of(op, lists, 'v', n, true)), (list_of(op, lists, 'master', n))
end

-- Makes one AdamW update in place. lists: p, g, m, v (tensors, equally many), master (tensors or
-- false; may be absent), g_scale (one f32 scalar tensor; may be absent), rates (f64 tensor { lr,
-- step } instead of those of attrs; may be absent), found_inf (f32 scalar tensor: unless it is 0
-- nothing changes; may be absent). attrs: lr, beta1, beta2, eps, weight_decay, step, grad_scale,
-- maximize; defaults are those of the contract.
function M.adamw_(lists, attrs)
   check_keys('adamw_', 'lists', lists, adamw_lists)
   local n, p, g, m, v, master = adamw_lists_of('adamw_', lists)
   local g_scale, rates, found_inf = controls('adamw_', lists)
   local a = adamw_attrs('adamw_', attrs)
   if n == 0 then return end
   local ctx = C.tide_tensor_ctx(p[0])
   own.check(ctx, C.tide_adamw_(ctx, n, p, g, m, v, master, g_scale, rates, found_inf, a))
end

local adamw8_lists = arg.set { 'p', 'g', 'm', 'v', 'm_scale', 'v_scale', 'master', 'g_scale',
   'rates', 'found_inf' }

-- Makes one AdamW update as adamw_ does, with moments of 8 bits as quantize8 makes them: m and v
-- are u8 of p's shape, m_scale and v_scale f32 [ceil(numel / 256)]. p: f32, bf16 or f16.
function M.adamw8_(lists, attrs)
   check_keys('adamw8_', 'lists', lists, adamw8_lists)
   local n, p, g, m, v, master = adamw_lists_of('adamw8_', lists)
   local m_scale = list_of('adamw8_', lists, 'm_scale', n, true)
   local v_scale = list_of('adamw8_', lists, 'v_scale', n, true)
   local g_scale, rates, found_inf = controls('adamw8_', lists)
   local a = adamw_attrs('adamw8_', attrs)
   if n == 0 then return end
   local ctx = C.tide_tensor_ctx(p[0])
   own.check(ctx, C.tide_adamw8_(ctx, n, p, g, m, v, m_scale, v_scale, master, g_scale, rates,
      found_inf, a))
end

-- Rounds x (f32) to dynamic 8-bit numbers: codes (u8, x's shape) and scale (f32, a number for each
-- 256 elements). An element changes by at most 0.45 / 64 of the largest magnitude of its block;
-- with is_signed false (true), for numbers of at least 0, by 0.45 / 128.
two 'quantize8(x, is_signed: flag = true)'

-- Returns the numbers (f32) of codes and scale. Rounding them again gives the same codes and scale.
make 'dequantize8(codes, scale, is_signed: flag = true)'

local sgd_lists = arg.set { 'p', 'g', 'buf', 'master', 'g_scale', 'rates', 'found_inf' }
local sgd_keys = arg.set { 'lr', 'momentum', 'dampening', 'weight_decay', 'nesterov', 'maximize',
   'first', 'grad_scale' }
local sgd_flags = arg.set { 'nesterov', 'maximize', 'first' }
local new_sgd_attrs = ffi.typeof 'tide_sgd_attrs'

-- Makes one SGD update in place. lists: p, g, buf (momentum; may be absent when momentum is 0),
-- master, g_scale, rates, found_inf as for adamw_. With rates, a step of number 1 is the first.
function M.sgd_(lists, attrs)
   check_keys('sgd_', 'lists', lists, sgd_lists)
   check_keys('sgd_', 'attrs', attrs, sgd_keys)
   local p, n = list_of('sgd_', lists, 'p', nil, true)
   local g = list_of('sgd_', lists, 'g', n, true)
   local buf = list_of('sgd_', lists, 'buf', n, lists.buf ~= nil)
   local master = list_of('sgd_', lists, 'master', n)
   local g_scale, rates, found_inf = controls('sgd_', lists)
   local a = new_sgd_attrs()
   C.tide_sgd_attrs_init(a)
   for key, value in each(attrs) do
      if sgd_flags[key] then
         a[key] = arg.flag('sgd_', 'attrs.' .. key, value) and 1 or 0
      else
         a[key] = arg.finite('sgd_', 'attrs.' .. key, value)
      end
   end
   if a.momentum ~= 0 and buf == nil then
      bad('sgd_', 'lists.buf', 'momentum buffers, since momentum is not 0', nil)
   end
   if n == 0 then return end
   local ctx = C.tide_tensor_ctx(p[0])
   own.check(ctx, C.tide_sgd_(ctx, n, p, g, buf, master, g_scale, rates, found_inf, a))
end

local function default_ctx() return require('tide.ffi.ctx').default().handle end

-- Returns the norm of all tensors together as a scalar tensor, f64 if one of them is, else f32. p:
-- 2 (default), 1 or math.huge. squared: the sum of |x|^p without the root, which can be added over
-- ranks.
function M.norm(list, p, squared)
   local buf, n = arg.tensors('norm', 'list', list)
   p = arg.number('norm', 'p', p == nil and 2 or p)
   squared = arg.flag('norm', 'squared', squared)
   return raw.norm(n > 0 and C.tide_tensor_ctx(buf[0]) or default_ctx(), n, buf, p, squared)
end

-- Returns min(1, max_norm / (norm + 1e-6)) as a scalar tensor of norm's dtype.
make 'clip_factor(norm, max_norm: finite 0)'

-- Multiplies every tensor of the list by factor (a scalar tensor, f32 or f64), in place.
function M.scale_all_(list, factor)
   local buf, n = arg.tensors('scale_all_', 'list', list)
   arg.tensor('scale_all_', 'factor', factor)
   local ctx = C.tide_tensor_ctx(factor)
   own.check(ctx, C.tide_scale_all_(ctx, n, buf, factor))
end

return M
