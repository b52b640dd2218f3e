-- axis_of(op, name, v, plain): the ranks that argument `name` of op says.
--
-- v is an axis of a mesh or a communicator. Returns the communicator, the number of ranks and this
-- one's among them, from 0. plain: the caller communicates nothing, so that size and rank alone
-- will do; the first result is then v itself.

local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local old = require 'tide.util.old'

local axis_of = {}

local function talks(v) return type(v) == 'table' and type(v.all_reduce) == 'function' end

local text = 'an axis of a mesh or a communicator'

local function is_axis(v)
   return type(v) == 'table' and type(v.size) == 'number' and type(v.rank) == 'number'
end
signature.kind('axis', text, is_axis, 'tide.Comm')

-- Whether v may be a mesh, an axis or a communicator; a table of options may not.
function axis_of.is_ranks(v)
   return type(v) == 'table' and (v.size ~= nil or v.find ~= nil or talks(v))
end

-- The arguments (ranks, opts) of op(model, ranks, opts). Options in place of both, with the ranks
-- under one of `names`, are the spelling of 0.1. Returns the ranks and the options without them.
function axis_of.ranks_and_options(op, ranks, opts, names)
   if opts ~= nil or type(ranks) ~= 'table' or axis_of.is_ranks(ranks) then return ranks, opts end
   local rest, found = copy(ranks), nil
   for _, name in ipairs(names) do
      if rest[name] ~= nil then
         if found ~= nil then
            err.raise('E_ARG', op, '%s: give one of them', table.concat(names, ' and '))
         end
         old(('%s(model, { %s = .., .. })'):format(op, name), op .. '(model, ranks, opts)')
         found, rest[name] = rest[name], nil
      end
   end
   return found, rest
end

return setmetatable(axis_of, { __call = function(_, op, name, v, plain)
   local comm = talks(v) and v or type(v) == 'table' and talks(v.comm) and v.comm or nil
   if not is_axis(v) or not (comm or plain) then err.arg(op, name, text, v) end
   return comm or v, v.size, v.rank
end })
