-- Runs a step inside its surroundings: scopes that are entered before it and left after it, a scope
-- for its memory, and the capture as a CUDA graph.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local pack = require 'tide.ffi.pack'
local signature = require 'tide.util.signature'
local null = require('tide.parallel.cp.context').null

local context = {}

-- Leaves scopes in reverse order, every one of them; returns the first error.
local function leave(entered, env, failed)
   local first
   for i = #entered, 1, -1 do
      local ok, e = pcall(entered[i].exit, entered[i], env, failed)
      if not ok and first == nil then first = e end
   end
   return first
end

local function is_scope(s) return type(s) == 'table' and s.enter ~= nil and s.exit ~= nil end

local context_op = 'train.context'

-- Calls of `call`, all with one function, as one captured step (tide.cuda.captured).
local function as_captured(call)
   local known
   local step = tide.cuda.captured(function(...) return call(known, ...) end)
   return function(fn, ...)
      known = known or fn
      err.raise_if(fn ~= known, 'E_STATE', context_op, 'the step was captured with another '
         .. 'function; make a context for each')
      return step(...)
   end
end

local read_options = signature.options { 'loss_parallel: any?', 'scope: any?', 'captured: boolean?',
   'cp: any?' }

-- Returns the options of a step, given in one table or in the order of PyTorch's function.
local function step_options(first, scope, cp_context)
   local plain = type(first) == 'table' and not getmetatable(first) and not is_scope(first)
   if plain and (scope ~= nil or cp_context ~= nil) then
      err.raise('E_ARG', context_op, 'give options in one table or one by one, not both')
   elseif not plain then
      return { loss_parallel = first, scope = scope, cp = cp_context }
   end
   return read_options(context_op, first)
end

-- Returns what a call of a step passes to its function.
local function env_of(opts)
   local scope = opts.scope or false
   err.arg_if(type(scope) ~= 'boolean' and not is_scope(scope), context_op, 'scope',
      'true, false, or an object with enter and exit', scope)
   err.arg_if(opts.cp and type(opts.cp) ~= 'table', context_op, 'cp',
      'a context (parallel.cp.context), or nil', opts.cp)
   err.raise_if(scope == true and opts.captured, 'E_ARG', context_op, 'a captured step keeps its '
      .. 'memory for the next replay; leave out scope')
   return { loss_parallel = opts.loss_parallel or false, scope = scope,
      captured = opts.captured or false, cp = opts.cp or null }
end

-- Returns step(fn, ...), which runs fn(env, ...) and returns its results, at each call. opts:
--   loss_parallel  false, true, or a value for env
--   scope          true: the step's memory is given back at its end (tide.scope)
--   captured       true: the step is one launch of a CUDA graph. The second call records fn and its
--                  scopes, later ones replay them on new tensors of the same shapes. fn holds the
--                  whole step (forward, backward, optimizer:step()), is the same at each call, and
--                  gets tensors on 'cuda'; tide.cuda.captured says what is refused
--   cp             a context (cp.context); nothing: cp.null
-- loss_parallel, scope and cp may be objects with enter(self, env) and exit(self, env, failed);
-- they are entered in this order, and left in reverse, also after an error.
--
-- get_train_context(loss_parallel, scope, cp) is the same in the order of PyTorch's function; its
-- second switch, compiled autograd, has no counterpart, and its place is that of scope.
function context.get_train_context(opts, ...)
   local env0 = env_of(step_options(opts, ...))
   local scopes = {}
   for _, s in ipairs { env0.loss_parallel, env0.scope, env0.cp } do
      if is_scope(s) then scopes[#scopes + 1] = s end
   end
   local function call(fn, ...)
      err.func(context_op, 'fn', fn)
      local env, given, entered = copy(env0), pack(...), {}
      local function body()
         for _, s in ipairs(scopes) do
            s:enter(env)
            entered[#entered + 1] = s
         end
         return fn(env, unpack(given, 1, given.n))
      end
      local function inside()
         local result = pack(pcall(body))
         local trouble = leave(entered, env, not result[1])
         if not result[1] then error(result[2], 0) end
         if trouble ~= nil then error(trouble, 0) end
         return unpack(result, 2, result.n)
      end
      if env0.scope == true then return tide.scope(inside) end
      return inside()
   end
   return env0.captured and as_captured(call) or call
end

return context
