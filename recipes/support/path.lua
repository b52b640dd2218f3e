-- Puts tide on package.path for a recipe that plain luajit runs. Argument: the root of the tree
-- with a final slash. Under the tide program, and where LUA_PATH names the tree, tide is there.

local root = ...
local function is_there(module) return package.searchpath(module, package.path) ~= nil end

if package.preload['tide'] or is_there 'tide.util.args' then return end
if is_there 'tide' then
   require 'tide'                        -- installed: knows where its parts are
else
   package.path = root .. 'bindings/?.lua;' .. root .. 'lua/?.lua;' .. root .. 'lua/?/init.lua;'
      .. package.path
end
