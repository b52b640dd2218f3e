-- Writes tide(1) from what `tide help` says: luajit man.lua PROGRAM VERSION FILE.

local program, version, path = arg[1], arg[2], arg[3]

local function help(topic)
   local pipe = assert(io.popen(("'%s' help %s"):format(program:gsub("'", "'\\''"), topic)))
   local text = pipe:read '*a'
   assert(pipe:close() and #text > 0, 'no help on ' .. topic)
   return text
end

-- Returns a text as roff prints it: no macros at the start of a line, minus signs that can be
-- copied.
local function roff(text)
   return (text:gsub('\\', '\\e'):gsub('%-', '\\-'):gsub('%f[^\n%z]([.\'])', '\\&%1'))
end

local function section(title, text)
   return ('.SH %s\n.nf\n%s\n.fi\n'):format(title, roff(text:gsub('%s+$', '')))
end

local first = help ''
local purpose, usage = first:match '^tide: ([^\n]*)\n+(.*)$'
assert(usage, 'tide help begins with another line than "tide: PURPOSE"')
usage = usage:gsub('\n\nRecipes: .*$', '')          -- folders of the build tree
local page = ('.TH TIDE 1 "" "tide %s" "User Commands"\n.SH NAME\ntide \\- %s\n'):format(version,
   roff(purpose)) .. section('SYNOPSIS', usage) .. section('RUN', help 'run')
   .. section('PROMPT', help 'repl') .. section('PARAMETERS', help 'params')
   .. section('ERRORS', help 'errors')
   .. '.SH FILES\n.TP\n.I ~/.tide_history\nlines of the prompt\n'
   .. '.TP\n.I PREFIX/share/tide/recipes\nrecipes to run and to copy; below embed: tide in other '
   .. 'programs. PREFIX is /usr for the Debian packages\n'
   .. '.TP\n.I PREFIX/share/doc/lua-tide\nguides (the Debian package lua-tide)\n'

local f = assert(io.open(path, 'w'))
assert(f:write(page))
assert(f:close())
