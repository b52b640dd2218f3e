-- Writes spec/golden/curves.lua: losses of the recipes (f32, 8 steps, one rank), as they are when
-- it runs. Only for a change of init, order of data or defaults that is meant.
--
--    luajit spec/golden/curves_write.lua

package.path = './?.lua;bindings/?.lua;lua/?.lua;lua/?/init.lua;' .. package.path

local case = require 'spec.recipe.curve_case'

local lines = { '-- Written by spec/golden/curves_write.lua: what 8 steps of the recipes gave.',
   '', 'return {' }
for _, name in ipairs(case.recipes) do
   local r = case.run(name)
   lines[#lines + 1] = ('   %s = {'):format(name)
   for _, field in ipairs { 'loss', 'grad_norm', 'lr' } do
      local row = {}
      for i, v in ipairs(r[field]) do
         row[i] = ('%s%.7g'):format(i % 8 == 1 and '\n         ' or ' ', v)
      end
      lines[#lines + 1] = ('      %s = {%s,\n      },'):format(field, table.concat(row, ','))
   end
   lines[#lines + 1] = ('      val_loss = %.7g,\n   },'):format(r.val_loss)
end
lines[#lines + 1] = '}\n'
require('spec.support.files').write('spec/golden/curves.lua', table.concat(lines, '\n'))
