-- The runs whose losses are stored: the recipes as they are, 8 steps on one rank, on a text that
-- is made here. Small files, so that the steps pass through the data more than once.

local files = require 'spec.support.files'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'

local case = {}

case.recipes = { 'pretrain', 'pretrain_hybrid' }

-- n words drawn by a linear congruence, always the same.
local function words(n, seed)
   local list, vowels, consonants = {}, 'aeiou', 'bcdfghklmnprstv'
   local function draw(most)
      seed = (seed * 48271) % 2147483647
      return seed % most + 1
   end
   for i = 1, n do
      local parts = {}
      for k = 1, draw(3) do
         local c, v = draw(#consonants), draw(#vowels)
         parts[k] = consonants:sub(c, c) .. vowels:sub(v, v)
      end
      list[i] = table.concat(parts) .. (draw(9) == 1 and '.\n' or '')
   end
   return table.concat(list, ' ')
end

-- Runs a recipe with its defaults; returns lists by step: loss, grad_norm, lr, and val_loss at the
-- end. more: further options.
function case.run(name, more)
   return tmp.with(function(dir)
      tmp.mkdir(dir .. '/text')
      files.write(dir .. '/text/a.txt', words(1000, 11))
      files.write(dir .. '/text/b.txt', words(800, 12))
      files.write(dir .. '/text/tiny.txt', words(40, 13))
      local out, status = recipe.luajit(('%s.lua --steps 8 --sample 0 --data %s/text --out %s/run '
         .. '%s'):format(name, dir, dir, more or ''))
      assert(status == 0, out)
      local r = {}
      for _, field in ipairs { 'loss', 'grad_norm', 'lr' } do
         r[field] = recipe.losses(dir .. '/run', field)
      end
      r.val_loss = recipe.losses(dir .. '/run', 'val_loss')[8]
      return r
   end)
end

return case
