-- The module `tide`: what a recipe, a host or the prompt sees (layer 8).
--
-- The one idea: names are gathered here, nothing is defined here. Ops come from the binding,
-- creation functions exist here for the default context (opened at first use) and as methods of
-- every context; parts of the library (tide.nn, tide.optim, ...) are loaded when first named.

local ctx = require 'tide.ffi.ctx'
local grad = require 'tide.ffi.grad'
local op = require 'tide.ffi.op'
local status = require 'tide.ffi.status'
local arg = require 'tide.ffi.arg'
local info = require 'tide.ffi.info'
local each = require 'tide.util.each'
local errors = require 'tide.util.err'

status.add_root(debug.getinfo(1, 'S').source)

local tide = {
   version = info.version, build_info = info.build_info, clock = info.clock, params = info.params,
   default = ctx.default, set_default = ctx.set_default,
   is_tensor = arg.is_tensor,
   is_error = function(value) return status.is_error(value) or errors.is(value) end,
   no_grad = grad.no_grad, enable_grad = grad.enable_grad, is_grad_enabled = grad.is_grad_enabled,
   checkpoint = grad.checkpoint, backward = grad.backward, scope = grad.scope,
   grad = { func = grad.func, backward = grad.backward },
}

for name, fn in each(op) do tide[name] = fn end

-- A new context; see tide.default for the one that is there anyway. nil, err if it cannot be
-- opened.
tide.open = ctx.open

-- ---- creation on the default context ---------------------------------------------------------

local default, Context = ctx.default, ctx.Context

function tide.empty(shape, opts) return Context.empty(default(), shape, opts) end
function tide.zeros(shape, opts) return Context.zeros(default(), shape, opts) end
function tide.ones(shape, opts) return Context.ones(default(), shape, opts) end
function tide.full(shape, value, opts) return Context.full(default(), shape, value, opts) end
function tide.rand(shape, opts) return Context.rand(default(), shape, opts) end
function tide.randn(shape, opts) return Context.randn(default(), shape, opts) end
function tide.eye(n, opts) return Context.eye(default(), n, opts) end
function tide.tensor(list, opts) return Context.tensor(default(), list, opts) end
function tide.arange(start, stop, step, opts)
   return Context.arange(default(), start, stop, step, opts)
end
function tide.from_string(bytes, shape, opts)
   return Context.from_string(default(), bytes, shape, opts)
end

-- ---- the default context itself --------------------------------------------------------------

function tide.seed(n) return default():seed(n) end
function tide.stats() return default():stats() end
function tide.rng_state() return default():rng_state() end
function tide.set_rng_state(state) return default():set_rng_state(state) end
function tide.set_nthread(n) return default():set_nthread(n) end
function tide.param(name, value) return default():param(name, value) end
function tide.interrupted() return default():interrupted() end

-- ---- parts loaded when first named -----------------------------------------------------------

-- Functions that have a module to themselves; every other part is tide.<name>. `entries` is what
-- help and completion list.
local functions = { gradcheck = 'tide.debug.gradcheck' }

local entries = { gradcheck = functions.gradcheck }
for name in ('cuda data debug dist model nn optim parallel repl train util'):gmatch '%a+' do
   entries[name] = 'tide.' .. name
end

local function is_missing(err, module)
   return tostring(err):find("module '" .. module .. "' not found", 1, true) ~= nil
end

local function load_part(self, key)
   if type(key) ~= 'string' then return nil end
   local module = functions[key] or 'tide.' .. key
   local ok, value = pcall(require, module)
   if ok then
      rawset(self, key, value)
      return value
   end
   if not is_missing(value, module) then error(value, 0) end
   status.raise(status.code.E_ARG, key, "there is no tide.%s in this version", key)
end

return setmetatable(tide, { __index = load_part, entries = entries })
