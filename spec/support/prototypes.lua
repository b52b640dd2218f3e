-- The functions of the public header, taken apart.
--
-- list() returns { name =, returns =, args = { { type =, name =, object =, list =, out = } } } of
-- each, in the order of the header. object: the kind of a handle wanted there ('tensor'); list: of
-- an array of them; out: of a place for one.

local read = require('spec.support.files').read

local path = 'core/include/tide/tide_abi.h'

local function argument(text, handles)
   text = text:match '^%s*(.-)%s*$'
   local type, name = text:match '^(.-)([%w_]+)$'
   local arg = { type = type:gsub('%s+$', ''), name = name }
   local kind, stars = type:gsub('%f[%w_]const%f[^%w_]', ''):match '^%s*tide_([%w_]+)%s*([%*%s]+)$'
   if kind and handles[kind] then
      stars = #stars:gsub('%s', '')
      if stars == 1 then arg.object = kind
      elseif type:find '%*const %*' then arg.list = kind
      else arg.out = kind end
   end
   return arg
end

local function list()
   local code = read(path):gsub('/%*.-%*/', ' '):gsub('%b{}', '{}')
   local handles, all = {}, {}
   for a, b in code:gmatch 'typedef%s+struct%s+tide_([%w_]+)%s+tide_([%w_]+)%s*;' do
      if a == b then handles[a] = true end
   end
   for statement in code:gmatch '[^;]+' do
      local returns, name, args =
         statement:match '^%s*([%w_%s%*]-)%s*%f[%w_](tide_[%w_]+)%s*(%b())%s*$'
      if name and not returns:find 'typedef' then
         local f = { name = name, returns = returns, args = {} }
         for text in args:sub(2, -2):gmatch '[^,]+' do
            if text ~= 'void' then f.args[#f.args + 1] = argument(text, handles) end
         end
         all[#all + 1] = f
      end
   end
   return all
end

return { list = list }
