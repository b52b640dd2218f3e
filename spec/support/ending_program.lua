-- A program whose finalizers touch objects of tide of every kind when its Lua state closes, in an
-- order that its argument, a seed, decides. It prints WRONG where one of them sees an object alive
-- that the state has released, or gets an error that is not tide's.

local seed = tonumber((...)) or 1
math.randomseed(seed)
local random = math.random

local actions = {}                          -- filled when tide is there
-- Finalizers of cdata run between tide's own. What they make may keep a tensor alive for good, so
-- with them no action needs to be refused.
local ncdata = random(0, 1) * random(1, 3)

local function attempt()
   local name = actions[random(#actions)]
   local ok, e = pcall(actions[name])
   if ok and actions.refuses[name] and ncdata == 0 then
      io.write('WRONG ', name, ' went well (seed ', seed, ')\n')
   elseif not ok and (type(e) ~= 'table' or not e.name) then
      io.write('WRONG ', name, ': ', tostring(e), ' (seed ', seed, ')\n')
   end
end

-- An object whose finalizer tries some actions and now and then makes another such object, to be
-- finalized a round later.
local function proxy(depth)
   local p = newproxy(true)
   getmetatable(p).__gc = function()
      for _ = 1, 4 do if actions.refuses then attempt() end end
      if depth > 0 then proxy(depth - 1) end
   end
   return p
end

local kept = {}
local function keep_some() for _ = 1, random(0, 4) do kept[#kept + 1] = proxy(random(0, 6)) end end

keep_some()
local tide = require 'tide'
local ffi = require 'ffi'
local comms, io_ = require 'tide.ffi.dist', require 'tide.ffi.io'
local safetensors = require 'tide.ffi.safetensors'
local path = os.tmpname()

local objects = {}
local makers = {
   function() objects.x = tide.ones { 3 } end,
   function() objects.w = tide.ones({ 2, 2 }):requires_grad_() end,
   function() objects.ctx = tide.open {} end,
   function() objects.module = tide.nn.Linear(2, 2) end,
   function() objects.comm = comms.join(nil, nil, 0) end,
   function() objects.group = comms.group(2) end,
   function() objects.lock = io_.lock(path .. '.lock') end,
   function() objects.saving = safetensors.save_async(path, { t = tide.ones { 2 } }) end,
   function()
      safetensors.save(path .. '.2', { t = tide.ones { 2 } })
      objects.file = safetensors.open(path .. '.2')
   end,
}
for i = #makers, 2, -1 do
   local k = random(i)
   makers[i], makers[k] = makers[k], makers[i]
end
for _, make in ipairs(makers) do
   make()
   keep_some()
end
local o = objects
o.loss = (o.w:matmul(o.w)):sum()
o.work = o.comm:all_reduce(tide.ones { 2 }, 'sum', { async = true })
o.optimiser = tide.optim.AdamW(o.module:parameters(), { lr = 0.1 })
o.y = o.ctx:ones { 2 }
local hook = o.module:hook_post(function(_, _, out) return out:add(1) end)
keep_some()

local function define(name, fn, refuses)
   actions[#actions + 1], actions[name] = name, fn
   actions.refuses = actions.refuses or {}
   actions.refuses[name] = refuses
end
local x, w = o.x, o.w
define('item', function() return w:sum():item() end, true)
define('add', function() return x + 1 end, true)
define('radd', function() return 1 + x end, true)
define('shape', function() return x.shape end, true)
define('length', function() return #x end, true)
define('release', function() x:release() end, true)
define('tolist', function() return x:tolist() end, true)
define('cat', function() return tide.cat { x, x } end, true)
define('in place', function() x:add_(1) end, true)
define('tostring', function() return tostring(x) end)
define('backward', function() o.loss:backward() end, true)
define('grad', function() return w.grad end, true)
define('scope', function() return tide.scope(function() return x end) end)
define('other context', function() return o.y:sum() end, true)
define('new tensor', function() return tide.ones({ 4 }):mul(2):sum():item() end)
define('new on context', function() return o.ctx:ones({ 4 }):sum():item() end)
define('new context', function() return tide.open({}):ones({ 2 }):sum():item() end)
define('close', function() o.ctx:close() end)
define('stats', function() return tide.stats() end)
define('walk', function()
   local v = tide.ones({ 3 }):requires_grad_()
   v:mul(v):sum():backward()
   return v.grad:item()
end)
define('collective', function() return o.comm:all_reduce(tide.ones { 2 }) end, true)
define('comm close', function() o.comm:close() end)
define('split', function() return o.comm:split(0) end, true)
define('wait', function() return o.work:wait() end, true)
define('work release', function() o.work:release() end)
define('group', function() return o.group:address() end, true)
define('join', function() return comms.join(nil, o.group, 0) end, true)
define('leave', function() o.group:leave(0) end, true)
define('lock', function() o.lock:release() end)
define('saving', function() return o.saving:wait() end)
define('saving test', function() return o.saving:test() end)
define('names', function() return o.file:names() end, true)
define('file close', function() o.file:close() end)
define('module', function() return o.module(tide.ones { 1, 2 }) end, true)
define('parameters', function() return o.module:parameters()[1].shape end, true)
define('step', function() o.optimiser:step() end)
define('hook', function() hook:remove() end)
define('no_grad', function() return tide.no_grad(function() return tide.ones { 1 } end) end)
define('collect', function() collectgarbage() end)

for _ = 1, ncdata do
   kept[#kept + 1] = ffi.gc(ffi.new 'char[1]', function()
      for _ = 1, 4 do
         local name = actions[random(#actions - 1)] -- without collect, which ends this phase
         local ok, e = pcall(actions[name])
         if not ok and (type(e) ~= 'table' or not e.name) then
            io.write('WRONG ', name, ': ', tostring(e), ' (seed ', seed, ')\n')
         end
      end
   end)
end
package.loaded.kept = kept              -- to the end of the state
for _, suffix in ipairs { '', '.2', '.lock' } do kept[#kept + 1] = path .. suffix end
io.write 'done\n'
