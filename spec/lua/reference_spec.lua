-- The reference page, the type annotations and the help of the prompt: written from what there is.

local tide = require 'tide'
local files = require 'spec.support.files'
local help = require 'tide.repl.help'
local install = require 'spec.support.install'
local reference = require 'tide.repl.reference'
local tmp = require 'spec.support.tmp'

-- What the annotations declare: runs them with a table in place of globals, whose functions note
-- nothing but that they are there.
local function declared(text)
   local env = {}
   local chunk = assert(loadstring(text, '=types'))
   setfenv(chunk, env)()
   return env.tide
end

local function at(t, path)
   for part in path:gmatch '[^%.:]+' do t = type(t) == 'table' and t[part] or nil end
   return t
end

describe('repl.reference', function()
   local entries = reference.entries()

   it('is current; make reference writes it anew', function()
      assert.is_true(reference.guide() == files.read 'lua/guide/reference.md', 'make reference')
   end)

   it('is written as annotations by the build', function()
      tmp.with(function(dir)
         local path = dir .. '/types/tide.d.lua'
         install.run(('%s/tide run bindings/package/types.lua %s'):format(
            install.quote(install.build), install.quote(path)))
         assert.is_true(reference.types() == files.read(path))
      end)
   end)

   it('has a line for every function, each once', function()
      local seen, n = {}, 0
      local page = reference.guide()
      for _, entry in ipairs(entries) do
         assert.is_nil(seen[entry.name], entry.name)
         seen[entry.name], n = true, n + 1
         assert.matches('\n- `' .. entry.name .. '(', page, 1, true)
      end
      assert.is_true(n > 700, n)
   end)

   it('has whole sentences', function()
      local cut = {}
      for line in reference.guide():gmatch '\n(%- `[^\n]*)' do
         local text = line:match '^.-%)`(.*)':gsub(' Takes `.*', '')
         local _, opened = text:gsub('[%(%[{]', '')
         local _, closed = text:gsub('[%)%]}]', '')
         if opened ~= closed or text:find '%.%.$' then cut[#cut + 1] = line end
      end
      assert.same({}, cut)
   end)

   it('says types, defaults and meanings', function()
      local page = reference.guide()
      assert.matches('- `tide.nn.Linear(nin, nout, opts)`', page, 1, true)
      assert.matches('`nin: integer >= 1`', page, 1, true)
      assert.matches('`.bias: boolean = true` adds a bias', page, 1, true)
      assert.matches('- `tide.nn.LayerNorm(dim, opts)` Makes a norm', page, 1, true)
   end)

   it('annotates what exists, and nothing else', function()
      local types, n = declared(reference.types()), 0
      for _, entry in ipairs(entries) do
         local name = entry.name:gsub('^tide%.', '') .. (entry.is_class and '.new' or '')
         assert.equal('function', type(at(types, name)), entry.name)
         n = n + 1
      end
      local count = select(2, reference.types():gsub('\nfunction ', ''))
      assert.equal(n, count)
      assert.matches('---@param nin integer\n---@param nout integer\n---@param opts? { bias?: '
         .. 'boolean', reference.types(), 1, true)
   end)

   it('gives the prompt what a function declares', function()
      local text = help.text('tide.nn.Linear', tide.nn.Linear)
      assert.matches('tide.nn.Linear(nin, nout, opts)', text, 1, true)
      assert.matches('opts.bias: boolean = true  adds a bias', text, 1, true)
      assert.matches('Makes a layer of weight', text, 1, true)
      assert.matches('n: integer >= 1\n', help.text('tide.data.sampler.permutation',
         tide.data.sampler.permutation), 1, true)
   end)
end)
