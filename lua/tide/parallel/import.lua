-- Values by dotted path: 'my.module.field' is require('my.module').field.

local err = require 'tide.util.err'

local import = {}

-- The field after the last dot of the module before it. Whatever fails is an error.
function import.import_class_from_path(path)
   local op = 'parallel.import_class_from_path'
   if type(path) ~= 'string' then err.arg(op, 'path', 'a string', path) end
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

-- The same for a list. opts.optional = true leaves out what cannot be imported and returns, second,
-- the list of what went wrong; otherwise the first failure is an error.
function import.import_classes_from_paths(paths, opts)
   local op = 'parallel.import_classes_from_paths'
   err.type(op, 'paths', paths, 'table')
   opts = err.options(op, opts, { 'optional' })
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

return import
