-- The module `tide`: what a recipe, a host or the prompt sees.
--
-- It gathers names and defines nothing of its own. Ops are those of the binding; creation functions
-- exist here for the default context (opened at first use) and as methods of every context; parts
-- of the library (tide.nn, tide.optim, ...) are loaded when first named.

if not rawget(_G, 'jit') then
   error('tide needs LuaJIT (2.1, 64-bit), and this is ' .. _VERSION .. '; run it with luajit', 0)
end

local ctx = require 'tide.ffi.ctx'
local grad = require 'tide.ffi.grad'
local op = require 'tide.ffi.op'
local arg = require 'tide.ffi.arg'
local info = require 'tide.ffi.info'
local instead = require 'tide.ffi.instead'
local json = require 'tide.ffi.json'
local status = require 'tide.ffi.status'
local update = require 'tide.ffi.update'
local each = require 'tide.util.each'
local errors = require 'tide.util.err'
local near = require 'tide.near'

local tide = {
   version = info.version, build_info = info.build_info, clock = info.clock, params = info.params,
   default = ctx.default, set_default = ctx.set_default,
   is_tensor = arg.is_tensor, dtype_size = info.dtype_size,
   is_error = errors.is, error_of = errors.of, set_error_form = errors.set_form,
   no_grad = grad.no_grad, enable_grad = grad.enable_grad, is_grad_enabled = grad.is_grad_enabled,
   checkpoint = grad.checkpoint, backward = grad.backward, scope = grad.scope,
   grad = { func = grad.func, backward = grad.backward },
   json = json, update = update, tell_gone = status.tell_gone,
}

for name, fn in each(op) do tide[name] = fn end

-- Returns a new context, or nil and an error; tide.default returns the one of this state.
tide.open = ctx.open

-- ---- creation on the default context ---------------------------------------------------------

local default, Context = ctx.default, ctx.Context

-- Returns a tensor with no values set; shape is a list. opts: dtype, device, requires_grad.
function tide.empty(shape, opts) return Context.empty(default(), shape, opts) end
-- Returns a tensor of zeros. shape is a list. opts: dtype, device, requires_grad.
function tide.zeros(shape, opts) return Context.zeros(default(), shape, opts) end
-- Returns a tensor of ones. shape is a list. opts: dtype, device, requires_grad.
function tide.ones(shape, opts) return Context.ones(default(), shape, opts) end
-- Returns a tensor with every element set to value. shape is a list. opts: dtype, device,
-- requires_grad.
function tide.full(shape, value, opts) return Context.full(default(), shape, value, opts) end
-- Returns a tensor of uniform numbers in [0, 1), from the generator of tide.seed. shape is a list.
-- opts: dtype, device, requires_grad.
function tide.rand(shape, opts) return Context.rand(default(), shape, opts) end
-- Returns a tensor of normal numbers of mean 0 and standard deviation 1, from the generator of
-- tide.seed. shape is a list. opts: dtype, device, requires_grad.
function tide.randn(shape, opts) return Context.randn(default(), shape, opts) end
-- Returns the n x n identity. opts: dtype, device, requires_grad.
function tide.eye(n, opts) return Context.eye(default(), n, opts) end
-- Returns a tensor from a number, boolean or nested list: f32, or bool if all are booleans, unless
-- opts.dtype says otherwise. opts: dtype, device, requires_grad.
function tide.tensor(list, opts) return Context.tensor(default(), list, opts) end
-- Returns the numbers 0 to n - 1 for arange(n), or start, start + step, ... before stop for
-- arange(start, stop, step). Options are the last argument in both forms. opts: dtype, device,
-- requires_grad.
function tide.arange(start, stop, step, opts)
   return Context.arange(default(), start, stop, step, opts)
end
-- Returns a tensor from row-major raw bytes, exactly as many as the shape and dtype need. opts:
-- dtype, device, requires_grad.
function tide.from_string(bytes, shape, opts)
   return Context.from_string(default(), bytes, shape, opts)
end

-- ---- the default context itself --------------------------------------------------------------

-- Restarts the generator of random numbers with a seed.
function tide.seed(n) return default():seed(n) end
-- Returns counters as a table of numbers: live, peak, cached, debt, since, since_peak, planned
-- (bytes), ntensor, nnode, nop, nhost; forced (collections of the Lua heap that the parameter debt
-- has caused).
function tide.stats() return default():stats() end
-- Returns the state of the generator, which set_rng_state takes.
function tide.rng_state() return default():rng_state() end
-- Sets the state of the generator that rng_state gave.
function tide.set_rng_state(state) return default():set_rng_state(state) end
-- Sets the number of threads of the following ops, 1 to 1024.
function tide.set_nthread(n) return default():set_nthread(n) end
-- Returns the parameter `name` (tide params lists them); with a value, sets it.
function tide.param(name, value) return default():param(name, value) end
-- Returns whether this run was asked to stop.
function tide.interrupted() return default():interrupted() end

-- ---- parts loaded when first named -----------------------------------------------------------

-- Functions that have a module to themselves; every other part is tide.<name>. `entries` is what
-- help and completion list.
local functions = { gradcheck = 'tide.debug.gradcheck' }

local entries = { gradcheck = functions.gradcheck }
local parts = 'chat comm cuda data debug dist model nn optim parallel repl tokenizer train util'
for name in parts:gmatch '%a+' do entries[name] = 'tide.' .. name end

-- Returns a hint at the name that may have been meant by an unknown one.
local function hint(self, key)
   if instead[key] then return '; instead: ' .. instead[key] end
   local names = {}
   for _, t in ipairs { self, entries } do
      for name in each(t) do names[#names + 1] = name end
   end
   return near.hint(key, names)
end

local function load_part(self, key)
   if type(key) ~= 'string' then return nil end
   local module = functions[key] or 'tide.' .. key
   local ok, value = pcall(require, module)
   if ok then
      rawset(self, key, value)
      return value
   end
   if not errors.is_missing_module(value, module) then error(value, 0) end
   errors.raise('E_ARG', key, "there is no tide.%s in this version%s", key, hint(self, key))
end

return setmetatable(tide, { __index = load_part, entries = entries })
