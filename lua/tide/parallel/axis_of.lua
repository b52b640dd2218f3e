-- axis_of(op, name, v, plain): the ranks that argument `name` of op means.
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

-- Returns whether v may be a mesh, an axis or a communicator; a table of options may not.
local function is_ranks(v)
   return type(v) == 'table' and (v.size ~= nil or v.find ~= nil or talks(v))
end

-- Returns a function that a door of op(model, ranks, opts) runs before its checks. It accepts the
-- spelling of 0.1: options in place of both, with the ranks under one of `names`.
function axis_of.in_options(names)
   return function(op, ranks, opts)
      if opts ~= nil or type(ranks) ~= 'table' or is_ranks(ranks) then return ranks, opts end
      local rest, found = copy(ranks), nil
      for _, name in ipairs(names) do
         if rest[name] ~= nil then
            err.raise_if(found ~= nil, 'E_ARG', op, '%s: give one of them',
               table.concat(names, ' and '))
            old(('%s(model, { %s = .., .. })'):format(op, name), op .. '(model, ranks, opts)')
            found, rest[name] = rest[name], nil
         end
      end
      return found, rest
   end
end

-- An axis or a communicator, which arrives as the communicator.
signature.reader('group', text, function(op, name, v) return (axis_of(op, name, v)) end,
   'tide.Comm')

return setmetatable(axis_of, { __call = function(_, op, name, v, plain)
   local comm = talks(v) and v or type(v) == 'table' and talks(v.comm) and v.comm or nil
   if not is_axis(v) or not (comm or plain) then err.arg(op, name, text, v) end
   return comm or v, v.size, v.rank
end })
