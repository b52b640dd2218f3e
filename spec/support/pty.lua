-- A program at a terminal of its own.

local ffi = require 'ffi'

ffi.cdef [[
struct pty_size { unsigned short row, col, x, y; };
int forkpty(int *master, char *name, const void *termios, const struct pty_size *size);
int execvp(const char *file, char *const argv[]);
int kill(int pid, int sig);
int waitpid(int pid, int *status, int options);
int setenv(const char *name, const char *value, int replace);
int close(int fd);
long write(int fd, const void *buf, unsigned long n);
void _exit(int code);
]]
local terminal = require 'tide.ffi.terminal' -- declares poll and read
local C = ffi.C
local util = pcall(function() return C.forkpty end) and C or ffi.load 'libutil.so.1'

local pty = {}

local Pty = {}
Pty.__index = Pty

-- Starts a program. env: variables. columns: of the terminal (80).
function pty.start(argv, env, columns)
   local args = ffi.new('char *[?]', #argv + 1)
   for i, word in ipairs(argv) do args[i - 1] = ffi.cast('char *', word) end
   local master = ffi.new 'int[1]'
   local size = ffi.new('struct pty_size', { 24, columns or 80, 0, 0 })
   local pid = util.forkpty(master, nil, nil, size)
   assert(pid >= 0, 'no terminal')
   if pid == 0 then
      for name, value in pairs(env or {}) do C.setenv(name, value, 1) end
      C.execvp(argv[1], args)
      C._exit(127)
   end
   return setmetatable({ pid = pid, fd = master[0], seen = '', terminal = terminal }, Pty)
end

function Pty:send(text) C.write(self.fd, text, #text) end

function Pty:signal(number) C.kill(self.pid, number) end

local chunk = ffi.new 'char[4096]'

-- Reads once; false at the end of output, or if nothing is written for `ms`.
local function fill(self, ms)
   local fds = ffi.new('struct tide_pollfd[1]', { { self.fd, 1, 0 } })
   if C.poll(fds, 1, ms) <= 0 then return false end
   local n = tonumber(C.read(self.fd, chunk, 4096))
   if n <= 0 then return false end
   self.seen = self.seen .. ffi.string(chunk, n)
   return true
end

-- Waits until the output since the last wait has a plain text; returns all of it up to there.
function Pty:wait(text)
   while true do
      local _, stop = self.seen:find(text, 1, true)
      if stop then
         local part = self.seen:sub(1, stop)
         self.seen = self.seen:sub(stop + 1)
         return part
      end
      if not fill(self, 30000) then
         error(('no %q in the output: %q'):format(text, self.seen), 2)
      end
   end
end

-- Waits for the end of the program; returns its exit code, or 128 and the signal.
function Pty:finish()
   while fill(self, 30000) do end
   local status = ffi.new 'int[1]'
   C.kill(self.pid, 1)
   C.waitpid(self.pid, status, 0)
   C.close(self.fd)
   local signal = status[0] % 128
   return signal == 0 and math.floor(status[0] / 256) % 256 or 128 + signal
end

return pty
