-- Parameter groups of an optimiser: by kind of parameter, and by patterns of names.
--
--    groups = { { pattern = 'embed|head', lr_scale = 0.1 },
--       { pattern = 'A_log', weight_decay = 0 } }
--
-- A pattern is one or more words between '|', each found anywhere in the dotted name of a
-- parameter; '*' matches any characters. The first group that matches holds the parameter.

local by_key = require 'tide.util.by_key'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local near = require 'tide.util.near'
local pretty = require 'tide.util.pretty'
local signature = require 'tide.util.signature'

local groups = {}

-- Returns whether one of the words of a pattern is in a name.
function groups.matches(pattern, name)
   for word in pattern:gmatch '[^|%s]+' do
      local lua = word:gsub('[%^%$%(%)%%%.%[%]%+%-%?]', '%%%0'):gsub('%*', '.*')
      if name:find(lua) then return true end
   end
   return false
end

signature.reader('patterns', 'words of names of parameters', function(op, name, v)
   if type(v) == 'string' and v:find '[^|%s]' then return v end
   err.arg(op, name, "words of names of parameters, e.g. 'embed|norm'", v)
end)
signature.record('pattern_group', 'a table', { 'pattern: patterns', 'lr: number? >= 0',
   'lr_scale: number? >= 0', 'where lr == nil or lr_scale == nil -- lr and lr_scale exclude each '
      .. 'other' })

-- Returns the rate of a group as a share of the optimiser's.
local function scale_of(op, where, g, lr)
   if g.lr == nil then return g.lr_scale end
   err.raise_if(type(lr) ~= 'number' or lr == 0, 'E_ARG', op, '%s.lr: the rate of the optimiser '
      .. 'is no constant above 0 that it could be a share of; give lr_scale', where)
   return g.lr / lr
end

-- Raises unless each key of a group is an option of the rule (the keys of defaults) or one of the
-- list `own`. where: the group in the message.
function groups.check_keys(op, where, group, defaults, own)
   local known = copy(defaults)
   for _, name in ipairs(own) do known[name] = true end
   for k in each(group) do
      if known[k] == nil then
         err.raise('E_ARG', op, "%s: unknown option '%s'%s", where, tostring(k),
            near.hint(tostring(k), pretty.sorted_keys(known)))
      end
   end
end

-- Returns the declared types of the options of a class's constructor, by name; of a class that
-- declares none, an empty table.
function groups.types_of(init)
   local door, types = signature.of(init), {}
   for _, row in ipairs(door and door.opts or {}) do types[row.name] = row.kind end
   return types
end

-- Returns a checked option. kind: its declared type; nil: the type is that of its default.
local function checked_option(op, name, v, kind, default)
   if kind then return signature.check(op, name, v, kind) end
   if type(default) == 'number' then return err.number(op, name, v) end
   return err.type(op, name, v, type(default))
end

-- Returns the checked options of the rule that a group gives. own: the other names.
function groups.options(op, where, g, defaults, types, own)
   groups.check_keys(op, where, g, defaults, own)
   local is_own, options = {}, {}
   for _, name in ipairs(own) do is_own[name] = true end
   for k, v in each(g) do
      local name = where .. '.' .. k
      if not is_own[k] then
         options[k] = checked_option(op, name, v, types[k], defaults[k])
      end
   end
   return options
end

-- Returns a checked copy of what `groups` gives for one pattern: { pattern, own (its options) }.
local function checked(op, i, g, defaults, types, lr)
   local where = ('groups[%d]'):format(i)
   signature.check(op, where, g, 'pattern_group')
   local own = groups.options(op, where, g, defaults, types, { 'pattern', 'lr', 'lr_scale' })
   own.lr_scale = scale_of(op, where, g, lr) or 1
   return { pattern = g.pattern, own = own }
end

-- Returns the checked list of opts.groups, or an empty one. types: of the options (types_of).
-- names: of all parameters, on any rank; a pattern that matches none of them is E_ARG.
function groups.check(op, opts, defaults, types, names)
   local list = {}
   for i, g in ipairs(err.type(op, 'groups', opts.groups or {}, 'table')) do
      list[i] = checked(op, i, g, defaults, types, opts.lr)
      local some = false
      for _, name in ipairs(names) do some = some or groups.matches(g.pattern, name) end
      err.raise_if(not some, 'E_ARG', op, "groups[%d]: pattern '%s' matches no parameter (one of "
         .. "them is '%s')", i, g.pattern, tostring(names[1]))
   end
   return list
end

local function number_of(patterns, name)
   for i, p in ipairs(patterns) do
      if groups.matches(p.pattern, name) then return i end
   end
   return 0
end

-- Returns the groups { params =, .. } of entries. Matrices of a rule with decay decay; norms,
-- biases (those of experts are [experts, width]) and other vectors do not, unless their pattern or
-- opts.decay_vectors says so.
function groups.make(entries, patterns, opts, decays)
   local list, at = by_key(function(own, rest)
      local group = copy(own, { params = {} })
      if rest then group.weight_decay = 0 end
      return group
   end)
   for pass = 1, 2 do
      for _, entry in ipairs(entries) do
         local n = number_of(patterns, entry.name)
         local own = n > 0 and patterns[n].own or {}
         local vector = entry.param.ndim < 2 or entry.name:find '_bias$' ~= nil
         local rest = (decays and vector and not opts.decay_vectors
            and own.weight_decay == nil) or false
         if rest == (pass == 2) then
            table.insert(at(n .. (rest and ' rest' or ''), own, rest).params, entry)
         end
      end
   end
   return list
end

return groups
