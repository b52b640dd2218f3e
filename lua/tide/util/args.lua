-- Declared options: name, type, default and one line of help each; anything else is an error.
--
-- A declaration is a list of
--
--    { 'name', default, 'help', type =, choices =, min =, max =, also =, list =, fixed = }
--
-- The type follows from the default; without a default it must be given. also: other words for the
-- option, which messages suggest; the last part of a nested name is one. list: each occurrence adds
-- a value, and several arrive as a list. The last value of any other option counts. fixed: a
-- resumed run keeps the value that it was begun with (Parser:refuse_fixed). Nested names are
-- written a.b and arrive as result.a.b. On a command line: --name value, --name=value, --flag,
-- --flag yes, --no-flag, and --set a.b=value. --config FILE gives options by a file of data
-- (util.config), which the command line overrides; --print-config shows all values. Hyphens and
-- underscores are the same: --val-every is result.val_every. Pure Lua; raises errors that name the
-- option and, for a misspelt one, the nearest.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local near = require 'tide.util.near'
local signature = require 'tide.util.signature'
local pack = require 'tide.ffi.pack'

local args = {}

local Parser = {}
Parser.__index = Parser

local function key_of(name) return (name:gsub('-', '_')) end
local function flag_of(name) return '--' .. name:gsub('_', '-') end

local function option_of(row)
   local default = row[2]
   local kind = row.type or type(default)
   if kind == 'number' and not row.type and row.integer ~= false
      and default == math.floor(default) then
      kind = 'integer'
   end
   if kind == 'nil' then kind = 'string' end
   return {
      name = key_of(row[1]), default = default, help = row[3] or '', kind = kind,
      choices = row.choices, min = row.min, max = row.max, required = row.required,
      list = row.list, fixed = row.fixed,
   }
end

-- Makes the parser of a program. program: name and one line of text for --help. rows: the options.
function args.new(program, rows)
   for i, row in ipairs(rows) do
      err.type('util.args.new', ('rows[%d][1]'):format(i), row[1], 'string')
   end
   local self = setmetatable({ program = program, list = {}, by_name = {}, names = {}, also = {} },
      Parser)
   for _, row in ipairs(rows) do
      local option = option_of(row)
      err.raise_if(self.by_name[option.name], 'E_ARG', 'util.args.new',
         "option '%s' is declared twice", option.name)
      self.list[#self.list + 1] = option
      self.names[#self.names + 1] = option.name
      self.by_name[option.name] = option
      for _, word in ipairs(row.also or {}) do self.also[key_of(word)] = option.name end
      local last = option.name:match '%.([^.]+)$'
      if last then self.also[last] = option.name end
   end
   return self
end

local truth = {
   ['true'] = true, yes = true, on = true, ['1'] = true,
   ['false'] = false, no = false, off = false, ['0'] = false,
}

local function refuse(option, expected, got)
   err.usage('args', 'option %s: expected %s, got %s', flag_of(option.name), expected,
      err.show(got))
end

local function range_text(option)
   if option.min and option.max then return (' in [%g, %g]'):format(option.min, option.max) end
   if option.min then return (' >= %g'):format(option.min) end
   if option.max then return (' <= %g'):format(option.max) end
   return ''
end

local function convert_number(option, value)
   local n = tonumber(value)
   local integer = option.kind == 'integer'
   local expected = (integer and 'an integer' or 'a finite number') .. range_text(option)
   if integer and n and math.abs(n) >= 2^53 then   -- the number beside it would read the same
      refuse(option, expected .. ' that is less than 2^53', value)
   end
   if not n or n ~= n or math.abs(n) == math.huge or (integer and n ~= math.floor(n))
      or (option.min and n < option.min) or (option.max and n > option.max) then
      refuse(option, expected, value)
   end
   return n
end

local function convert_one(option, value)
   if option.kind == 'integer' or option.kind == 'number' then
      return convert_number(option, value)
   elseif option.kind == 'boolean' then
      local b = value
      if type(value) ~= 'boolean' then b = truth[tostring(value):lower()] end
      if b == nil then refuse(option, 'true or false', value) end
      return b
   end
   if type(value) ~= 'string' or value == '' and option.min then refuse(option, 'a text', value) end
   if option.choices then
      for _, item in ipairs(option.choices) do
         if item == value then return value end
      end
      refuse(option, 'one of ' .. table.concat(option.choices, ', '), value)
   end
   return value
end

local function convert(option, value)
   if option.list and type(value) == 'table' then
      local list, n = {}, 0
      for _ in each(value) do n = n + 1 end
      for i, v in ipairs(value) do list[i] = convert_one(option, v) end
      err.usage_if(n == 0 or n > #list, 'args', 'option %s: expected a value or a list of values, '
         .. 'got %s', flag_of(option.name), n == 0 and 'an empty list' or 'a table with other keys')
      return list
   end
   return convert_one(option, value)
end

-- What every program has, with its kind. A command line alone has these.
local common = { help = 'boolean', config = 'string', print_config = 'boolean', set = 'string' }

-- Options of `tide run`.
local of_run = { ['-n'] = true, ['-t'] = true, ['-p'] = true, ['--procs'] = true,
   ['--grace'] = true, ['--max-restarts'] = true, ['--timeout'] = true, ['--trace'] = true,
   ['--traceback'] = true }

-- Returns the advice for an option of `tide run` behind the recipe, or nil.
local function advice(word)
   return of_run[word] and ('; %s is an option of tide run: give it before the recipe'):format(word)
end

-- Returns the option of a name. whence: the file that it is from, or nil for the command line. The
-- error for a misspelt name suggests the nearest one, --help included.
local function find(self, name, whence)
   local option = self.by_name[key_of(name)]
   if option then return option end
   err.usage_if(common[key_of(name)], 'args', '%s%s works on the command line alone; give it there',
      flag_of(key_of(name)), whence and ' in ' .. whence or '')
   local names = { 'help', 'config', 'print_config', unpack(self.names) }
   local shown_name = whence and ("'%s' in %s"):format(name, whence) or ("'--%s'"):format(name)
   err.usage('args', 'unknown option %s%s', shown_name, not whence and advice('--' .. name)
      or near.hint(key_of(name), names, flag_of, self.also))
end

-- Stores a given value: it replaces an earlier one, or follows it in an option that is a list.
local function give(option, value, values)
   local before, now = values[option.name], convert(option, value)
   if option.list and before ~= nil then
      local list = type(before) == 'table' and before or { before }
      list[#list + 1], now = now, list
   end
   values[option.name] = now
end

-- Stores a value under its nested name.
local function place(result, name, value)
   local t = result
   for part in name:gmatch '([^.]+)%.' do
      t[part] = t[part] or {}
      t = t[part]
   end
   t[name:match '[^.]+$'] = value
end

-- Reads the value of the flag at argv[i], which may follow it; also returns the index of the next.
local function read_truth(option, value, argv, i)
   if value ~= nil then return convert(option, value), i + 1 end
   local following = truth[tostring(argv[i + 1]):lower()]
   if following == nil then return true, i + 1 end
   return following, i + 2
end

-- Reads an option that every program has: --set or --config, which take a value, or
-- --print-config. Returns the index of the next word; nil where the word is another.
local function read_common(self, name, value, argv, i, values, more)
   local key = key_of(name)
   if self.by_name[key] then return nil end
   if key == 'print_config' then
      more.print, i = read_truth({ name = key, kind = 'boolean' }, value, argv, i)
      return i
   elseif key ~= 'set' and key ~= 'config' then
      return nil
   end
   if value == nil then i, value = i + 1, argv[i + 1] end
   if key == 'set' then
      err.usage_if(value == nil, 'args', 'option --set: expected name=value')
      local set, to = value:match '^([%w_%-%.]+)=(.*)$'
      err.usage_if(not set, 'args', 'option --set: expected name=value, got %q', value)
      give(find(self, set), to, values)
   else
      err.usage_if(value == nil, 'args', 'option --config: expected a file .lua or .json')
      err.usage_if(more.config, 'args', 'option --config: expected one file, got %s and %s; put '
         .. 'the options into one of them', more.config, value)
      more.config = value
   end
   return i + 1
end

-- Reads the option at argv[i]; returns the index of the next one.
local function read_option(self, argv, i, values, more)
   local name, value = argv[i]:match '^%-%-([^=]+)=(.*)$'
   name = name or argv[i]:sub(3)
   local after = read_common(self, name, value, argv, i, values, more)
   if after then return after end
   local off = name:match '^no%-(.+)$'
   local negated = off and self.by_name[key_of(off)]
   if negated and negated.kind ~= 'boolean' then negated = nil end
   local option = negated or find(self, name)
   if option.kind == 'boolean' then
      local given, next_i = read_truth(option, value, argv, i)
      values[option.name] = given ~= (option == negated)
      return next_i
   end
   if value == nil then i, value = i + 1, argv[i + 1] end
   if value == nil then err.usage('args', 'option %s: a value is missing', flag_of(option.name)) end
   give(option, value, values)
   return i + 1
end

-- Returns the value at a dotted name of nested tables, or nil.
local function value_at(t, name)
   for part in name:gmatch '[^.]+' do
      if type(t) ~= 'table' then return nil end
      t = t[part]
   end
   return t
end

-- Returns the options of a program. base: options that replace the defaults; undeclared ones in it
-- are ignored.
local function finish(self, values, base)
   local result = {}
   for _, option in ipairs(self.list) do
      local value = values[option.name]
      if value == nil and base then
         value = value_at(base, option.name)
         if value ~= nil then value = convert(option, value) end
      end
      if value == nil then value = option.default end
      err.usage_if(value == nil and option.required, 'args', 'option %s is required',
         flag_of(option.name))
      place(result, option.name, value)
   end
   return result
end

-- Reads a table of options (nested or dotted names) as parse reads a command line. Returns full
-- name -> value. whence: the file that they are from, or nil.
local function flatten(self, t, whence)
   local values = {}
   local function walk(node, prefix)
      for k, v in each(node) do
         local name = prefix .. tostring(k)
         if type(v) == 'table' and not self.by_name[key_of(name)] then
            walk(v, name .. '.')
         else
            local option = find(self, name, whence)
            err.usage_if(values[option.name] ~= nil, 'args', "option '%s' is given twice%s, once "
               .. 'with another spelling; leave one out', name, whence and ' in ' .. whence or '')
            values[option.name] = convert(option, v)
         end
      end
   end
   walk(t, '')
   return values
end

-- Reads the words of a command line into values. Returns { config, print }, or nil with --help.
local function read_words(self, argv, values)
   local more, i = {}, 1
   while i <= #argv do
      local word = tostring(argv[i])
      if word == '--help' or word == '-h' then return nil end
      if word == '--' and i == 1 then
         i = 2
      elseif word:sub(1, 2) ~= '--' or word == '--' then
         err.usage('args', 'unexpected argument %q (options begin with --)%s', word,
            advice(word) or '')
      else
         i = read_option(self, argv, i, values, more)
      end
   end
   return more
end

-- Reads a list of words. base: options (a nested table, such as an earlier result) that replace the
-- defaults. Returns the options; those that were given (full name -> value; by --config or by
-- words); and { config (the file), print (whether values are to be shown), of (full name ->
-- 'command line' or the file) }. If --help is among the words, it returns nil and the help text.
function Parser:parse(argv, base)
   local values, of = {}, {}
   local more = read_words(self, argv, values)
   if not more then return nil, self:help() end
   for name in each(values) do of[name] = 'command line' end
   if more.config then
      local read = require('tide.util.config').read
      local file = err.people({ 'E_IO', 'E_FORMAT' }, read, 'args', more.config)
      for name, v in each(flatten(self, file, more.config)) do
         if values[name] == nil then values[name], of[name] = v, more.config end
      end
   end
   more.of = of
   return finish(self, values, base), values, more
end

-- Checks a table of options (nested or dotted names) as parse checks a command line.
function Parser:check(t) return finish(self, flatten(self, t)) end

local function shown(v)
   if v == nil then return 'not given' end
   return type(v) == 'table' and table.concat(v, ', ') or tostring(v)
end

-- Returns the lines "--lr 0.003 in the checkpoint, now 1" for every option that differs between two
-- results.
function Parser:changes(before, now, whence)
   local list = {}
   for _, option in ipairs(self.list) do
      local a, b = value_at(before, option.name), value_at(now, option.name)
      a, b = shown(a), shown(b)
      if a ~= b then
         list[#list + 1] = ('%s %s %s, now %s'):format(flag_of(option.name), a, whence, b)
      end
   end
   return list
end

-- Refuses a given value of a fixed option that is not the one in `before`, the options that a run
-- was begun with. given: full name -> value; name: the program.
function Parser:refuse_fixed(before, now, given, name)
   for _, option in ipairs(self.list) do
      if option.fixed and given[option.name] ~= nil then
         local a, b = value_at(before, option.name), value_at(now, option.name)
         if a == nil then a = option.default end
         err.usage_if(shown(a) ~= shown(b), name, '%s %s: the run was begun with %s, and a resumed '
            .. 'run keeps this value; leave the option out, or start another run',
            flag_of(option.name), shown(b), a == nil and 'none' or shown(a))
      end
   end
end

-- Returns the lines "lr = 0.003 (command line)" of all options of a result, with the source of
-- each. of: as parse gives it; base: what replaced the defaults, or nil.
function Parser:_sources(result, of, base)
   local lines = {}
   for _, option in ipairs(self.list) do
      local v, kept = value_at(result, option.name), base and value_at(base, option.name)
      local text = type(v) == 'string' and ('%q'):format(v) or shown(v)
      lines[#lines + 1] = ('%s = %s (%s)'):format(option.name, text, of[option.name]
         or kept ~= nil and 'checkpoint' or 'default')
   end
   return table.concat(lines, '\n') .. '\n'
end

-- Returns the default of an option as the help shows it; empty for a flag or an option without one.
local function default_text(option)
   if option.kind == 'boolean' then return '' end
   if option.default == nil then return option.required and ' [required]' or '' end
   return (' [%s]'):format(tostring(option.default))
end

local help_column, help_width = 33, 80

-- Appends an option to the lines of a help: its head, and its text wrapped in a column beside it.
local function add_help(lines, head, text)
   local line = ('%-' .. help_column - 1 .. 's'):format(head)
   for word in text:gmatch '%S+' do
      if #line + 1 + #word > help_width and line:find '%S' and #line >= help_column then
         lines[#lines + 1] = line
         line = (' '):rep(help_column - 1)
      end
      line = line .. ' ' .. word
   end
   lines[#lines + 1] = line
end

-- Returns the text of --help.
function Parser:help()
   local lines = { self.program, '', 'options:' }
   for _, option in ipairs(self.list) do
      local head = '  ' .. flag_of(option.name) .. ' <' .. option.kind .. '>'
      if option.kind == 'boolean' then
         head = '  ' .. flag_of(option.default == true and 'no-' .. option.name or option.name)
      end
      local text = option.help
      if option.default == true then text = 'do not ' .. text end
      if option.choices then text = text .. ' (' .. table.concat(option.choices, ', ') .. ')' end
      add_help(lines, head, text .. default_text(option))
   end
   add_help(lines, '  --set <name=value>', 'set an option by its dotted name')
   add_help(lines, '  --config <file>', 'read options from a .lua or .json file; the command line '
      .. 'overrides it')
   add_help(lines, '  --print-config', 'print every option with its source; run nothing')
   add_help(lines, '  --help', 'print this text')
   return table.concat(lines, '\n') .. '\n'
end

-- Prints on the first rank.
local function print_first(text)
   local host = package.loaded['tide.host']
   if type(host) ~= 'table' or (host.rank or 0) == 0 then io.stdout:write(text) end
end

-- Returns the options of a program; or prints help or the configuration and returns nil, which ends
-- the program. base(options, given), if given, returns options that replace the defaults, or nil;
-- e.g. those of the run that is resumed; and a value for the caller. Results: the options, the
-- parser, those that were given (full name -> value), the second result of base.
function args.parse(program, rows, argv, base)
   local parser = args.new(program, rows)
   local options, given, words = parser:parse(argv)
   if not options then return print_first(given) end
   local from, more
   if base then from, more = base(options, given) end
   if from then options = parser:parse(argv, from) end
   if words.print then return print_first(parser:_sources(options, words.of, from)) end
   return options, parser, given, more
end

-- Returns whether the word after an option belongs to it. option: its declaration.
local function takes(option, word)
   return option.kind ~= 'boolean' or truth[word:lower()] ~= nil
end

-- Splits the words of a command line into those that are neither options nor their values, and the
-- rest. rows: the options.
function args.split(rows, words)
   local options, places, rest, open = args.new('', rows).by_name, {}, {}, nil
   for _, word in ipairs(words) do
      local is_value = open and takes(open, word)
      local name = not is_value and word:match '^%-%-([^=]+)$'
      if is_value or word:sub(1, 1) == '-' then
         rest[#rest + 1] = word
      else
         places[#places + 1] = word
      end
      open = name and (options[key_of(name)] or { kind = common[key_of(name)] or 'boolean' })
   end
   return places, rest
end

-- Returns the list of ids in the text of the option --ids of a program: whole numbers below n, at
-- least `least` (1 or 2) of them.
function args.ids(program, text, n, least)
   local list = {}
   for word in text:gmatch '[^%s,]+' do
      local id = tonumber(word)
      err.usage_if(not id or id % 1 ~= 0 or id < 0 or id >= n, program, "--ids: expected whole "
         .. "numbers below %d, got '%s'", n, word)
      list[#list + 1] = id
   end
   err.usage_if(#list < least, program, '--ids: expected at least %s',
      least == 1 and 'one id' or 'two ids')
   return list
end

-- Runs a recipe's main function. Under the tide program that prints errors; under plain luajit they
-- are printed here in the same form, and the process ends: 2 after a mistake on the command line,
-- 128 + signal after a signal that has ended the recipe.
function args.main(fn, ...)
   if type(package.loaded['tide.host']) == 'table' then return fn(...) end
   local function told(e)
      e = err.of(e) or e
      if type(e) == 'table' and rawget(e, 'brief') then return e end
      return err.traced(err.text(e))
   end
   local r = pack(xpcall(fn, told, ...))
   if r[1] then
      local noted = package.loaded['tide.ffi.signal']
      local number = type(noted) == 'table' and noted.seen()
      if number then os.exit(128 + number, true) end
      return unpack(r, 2, r.n)
   end
   io.stdout:flush()
   io.stderr:write('tide: ', err.text(r[2]), '\n')
   os.exit(type(r[2]) == 'table' and r[2].code == 'E_ARG' and 2 or 1, true)
end

-- Words; a recipe may write numbers among them.
signature.reader('words', 'a list of words', function(op, name, v)
   for k, word in ipairs(err.type(op, name, v, 'table')) do
      err.arg_if(type(word) ~= 'number' and type(word) ~= 'string', op, ('%s[%d]'):format(name, k),
         'a string', word)
   end
   return v
end, 'string[]')
signature.doors('util.args', Parser, { parse = 'argv: words', check = 't: table' })
return signature.doors('util.args', args, {
   new = 'program: string; rows: table[]', split = 'rows: table[]; words: words',
   ids = 'program: string; text: string; n: integer >= 1; least: integer in [1, 2] = 1',
})
