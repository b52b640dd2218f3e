-- Writes the models of golden/folders.lua as published folders, with the logits that tide computes:
--
--    luajit spec/golden/folders_write.lua DIR
--
-- Then `python spec/golden/folders.py DIR` compares them with those of transformers.

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local fs = require 'tide.util.fs'
local inputs = require('spec.lua.decoder_case').inputs

local dir = assert(arg[1], 'give the folder to write to')
local golden = dofile 'spec/golden/folders.lua'

for _, name in ipairs(case.names(golden)) do
   local model = case.model(golden[name])
   local out, list = fs.join(dir, name), {}
   tide.model.save(model, out, { max_shard = '8kB', overwrite = true })
   for _, row in ipairs(model((inputs())):detach():to('f64'):reshape { -1 }:tolist()) do
      list[#list + 1] = ('%.9g'):format(row)
   end
   fs.write('folders_write', fs.join(out, 'logits.txt'), table.concat(list, '\n'))
end
