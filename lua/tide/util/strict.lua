-- Traps undefined globals: reading or writing an undeclared name is an error with its place.
--
-- Meant for recipes and specs; the library itself defines no globals. `strict.on(env)` guards one
-- environment table (default: the global one), `strict.off(env)` takes the guard away.

local strict = {}

local function place()
   local info = debug.getinfo(3, 'Sl')
   return info and info.short_src .. ':' .. info.currentline or '?'
end

-- Guards env (default: the globals). False, and nothing is done, if it has a metatable.
function strict.on(env)
   env = env or _G
   if getmetatable(env) ~= nil then return false end
   setmetatable(env, {
      __newindex = function(_, name)
         error(('%s: assignment to undeclared global %q'):format(place(), tostring(name)), 0)
      end,
      __index = function(_, name)
         error(('%s: undeclared global %q'):format(place(), tostring(name)), 0)
      end,
      strict = true,
   })
   return true
end

-- Removes the guard, if there is one.
function strict.off(env)
   env = env or _G
   local mt = getmetatable(env)
   if mt and mt.strict then setmetatable(env, nil) end
end

return strict
