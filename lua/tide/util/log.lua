-- Log lines: levels, a rank prefix, and lines that only rank 0 writes.
--
-- A logger is a value, not a global: the program makes one and hands it down. Every line is one
-- write to the sink, so lines of several ranks do not mix.

local err = require 'tide.util.err'
local signature = require 'tide.util.signature'

local log = {}

local levels = { error = 0, warn = 1, info = 2, debug = 3 }

local Log = {}
Log.__index = Log

-- Makes a logger.
function log.new(opts)
   return setmetatable({
      level = levels[opts.level], rank = opts.rank or 0, size = opts.size or 1,
      sink = opts.sink or function(line) io.stderr:write(line) end,
   }, Log)
end

local function write(self, level, fmt, ...)
   err.type('util.log.' .. level, 'fmt', fmt, 'string')
   if levels[level] > self.level then return end
   local text = select('#', ...) > 0 and fmt:format(...) or fmt
   local prefix = self.size > 1 and ('[r%d] '):format(self.rank) or ''
   local mark = level ~= 'info' and level .. ': ' or ''
   self.sink(prefix .. mark .. text .. '\n')
end

-- Writes a line at this level; fmt is a format if values follow.
function Log:error(fmt, ...) write(self, 'error', fmt, ...) end
-- Writes a warning.
function Log:warn(fmt, ...) write(self, 'warn', fmt, ...) end
-- Writes a line without a mark.
function Log:info(fmt, ...) write(self, 'info', fmt, ...) end
-- Writes a line for debugging, at level 'debug' alone.
function Log:debug(fmt, ...) write(self, 'debug', fmt, ...) end

-- Writes a line on rank 0 only, without a prefix.
function Log:once(fmt, ...)
   if self.rank ~= 0 or self.level < levels.info then return end
   self.sink((select('#', ...) > 0 and fmt:format(...) or fmt) .. '\n')
end

signature.doors('util.log', Log, { once = 'fmt: string' })
return signature.doors('util.log', log, {
   new = { opts = {
      "level: 'error' | 'warn' | 'info' | 'debug' = 'info' -- the least important that is written",
      'rank: any? -- rank of the lines; 0 by default', 'size: any? -- ranks; 1 by default',
      'sink: any? -- takes a line; standard error by default' } },
})
