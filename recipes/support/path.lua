-- Puts tide and what recipes share on package.path, for a recipe that plain luajit runs from
-- anywhere in the tree. The tide program, an installed tide and a LUA_PATH that names the tree have
-- them already.

local root = (debug.getinfo(1, 'S').source:match '^@(.*)recipes/support/[^/]*$') or './'
if root == '' then root = './' end

local function is_there(module) return package.searchpath(module, package.path) ~= nil end

if not is_there 'recipes.support.options' then
   package.path = package.path .. ';' .. root .. '?.lua'
end
if package.preload['tide'] or is_there 'tide.util.args' then return end
if is_there 'tide' then
   require 'tide'                        -- installed: knows where its parts are
else
   package.path = root .. 'bindings/?.lua;' .. root .. 'lua/?.lua;' .. root .. 'lua/?/init.lua;'
      .. package.path
end
