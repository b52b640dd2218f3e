-- The terminal: line editing, history and completion through libedit; plain reading without it.
--
-- libedit is loaded at run time and optional. Its completion is a callback into Lua, the one
-- exception to "C never calls Lua": it can only happen inside `readline`, whose caller is kept out
-- of the JIT compiler, and errors are caught before they could cross C.

local ffi = require 'ffi'

pcall(ffi.cdef, [[
int   isatty(int fd);
int   ioctl(int fd, unsigned long request, ...);
void *malloc(size_t n);
void  free(void *p);
char *strdup(const char *s);
struct tide_edit_winsize { unsigned short row, col, xpixel, ypixel; };
]])
pcall(ffi.cdef, [[
typedef char **(*tide_edit_complete)(const char *text, int start, int stop);
char *readline(const char *prompt);
int   add_history(const char *line);
int   read_history(const char *path);
int   write_history(const char *path);
void  using_history(void);
void  stifle_history(int n);
tide_edit_complete rl_attempted_completion_function;
const char *rl_readline_name;
char *rl_line_buffer;
int   rl_attempted_completion_over;
int   rl_completion_append_character;
]])

local C = ffi.C
local edit = {}

local TIOCGWINSZ, EINTR = 0x5413, 4

-- True if the descriptor (0, 1 or 2) is a terminal.
function edit.isatty(fd) return C.isatty(fd) == 1 end

-- Width of the terminal; 80 if unknown.
function edit.columns()
   local size = ffi.new 'struct tide_edit_winsize'
   if C.ioctl(2, ffi.cast('unsigned long', TIOCGWINSZ), size) == 0 and size.col > 0 then
      return size.col
   end
   return 80
end

local function open()
   for _, name in ipairs { 'libedit.so.2', 'libedit.so.0', 'libedit.so', 'libedit.3.dylib' } do
      local ok, lib = pcall(ffi.load, name)
      if ok then return lib end
   end
end

-- An array of malloc'ed texts for libedit, which frees it: the common prefix, the matches, null.
local function matches(list)
   local n = #list
   local prefix = list[1]
   for i = 2, n do
      while list[i]:sub(1, #prefix) ~= prefix do prefix = prefix:sub(1, -2) end
   end
   local out = ffi.cast('char **', C.malloc(ffi.sizeof 'char *' * (n + 2)))
   if out == nil then return nil end
   out[0] = C.strdup(prefix)
   for i = 1, n do out[i] = C.strdup(list[i]) end
   out[n + 1] = nil
   return out
end

local Editor = {}
Editor.__index = Editor

-- complete(text, line): list of full replacements of `text`, or nil to complete file names.
local function install(self, complete)
   local lib = self.lib
   self.callback = ffi.cast('tide_edit_complete', function(text)
      local ok, list = pcall(complete, ffi.string(text), ffi.string(lib.rl_line_buffer))
      lib.rl_attempted_completion_over = (ok and list) and 1 or 0
      if not ok or not list or #list == 0 then return nil end
      return matches(list)
   end)
   lib.rl_attempted_completion_function = self.callback
   lib.rl_completion_append_character = 0
end

-- opts: complete (function), history (path of a file). Returns nil without libedit or if standard
-- input is not a terminal.
function edit.open(opts)
   if not edit.isatty(0) or not edit.isatty(1) then return nil end
   local lib = open()
   if not lib then return nil end
   local self = setmetatable({ lib = lib, history = opts.history }, Editor)
   lib.using_history()
   lib.stifle_history(2000)
   if self.history then lib.read_history(self.history) end
   if opts.complete then install(self, opts.complete) end
   return self
end

local function read_line(lib, prompt)
   ffi.errno(0)
   local line = lib.readline(prompt)
   return line, ffi.errno()
end
jit.off(read_line)

-- Returns a line without its end; nil at the end of input; nil and 'interrupt' after Ctrl-C: either
-- the program's handler returned and the read was cut short, or a hook of it raised "interrupted!".
function Editor:read(prompt)
   local ok, line, errno = pcall(read_line, self.lib, prompt)
   if not ok then
      if tostring(line):find('interrupted', 1, true) then return nil, 'interrupt' end
      error(line, 0)
   end
   if line == nil then return nil, errno == EINTR and 'interrupt' or nil end
   local text = ffi.string(line)
   C.free(line)
   if text:match '%S' then self.lib.add_history(text) end
   return text
end

-- Writes the history and removes the callback.
function Editor:close()
   if self.history then self.lib.write_history(self.history) end
   if self.callback then
      self.lib.rl_attempted_completion_function = nil
      self.callback:free()
      self.callback = nil
   end
end

return edit
