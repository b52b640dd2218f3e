-- Values by dotted path: 'my.module.field' is require('my.module').field.

local err = require 'tide.util.err'
local signature = require 'tide.util.signature'

local import = {}

-- Returns the field after the last dot of the module before it. Whatever fails is an error.
function import.import_class_from_path(path)
   local op = 'parallel.import_class_from_path'
   local module, field = path:match '^(.+)%.([^.]+)$'
   if not module then err.arg(op, 'path', "a dotted path, 'module.field'", path) end
   local ok, value = pcall(require, module)
   if not ok then
      err.raise_if(not err.is_missing_module(value, module), 'E_ARG', op,
         "module '%s' of '%s' does not load: %s", module, path, tostring(value))
      err.raise('E_ARG', op, "no module '%s' (of '%s')", module, path)
   end
   local found
   if type(value) == 'table' then found = value[field] end
   err.raise_if(found == nil, 'E_ARG', op, "module '%s' has no field '%s'", module, field)
   return found
end

-- Imports several paths. Returns a list of their values and a list of what went wrong.
function import.import_classes_from_paths(paths, opts)
   local found, failed = {}, {}
   for i = 1, table.maxn(paths) do
      local ok, value = pcall(import.import_class_from_path, paths[i])
      if ok then
         found[#found + 1] = value
      elseif opts.optional then
         failed[#failed + 1] = err.text(value)
      else
         error(value, 0)
      end
   end
   return found, failed
end

return signature.doors('parallel', import, {
   import_class_from_path = 'path: string',
   import_classes_from_paths = { 'paths: table', opts = {
      'optional: boolean? -- leaves out what cannot be imported; by default that is an error' } },
})
