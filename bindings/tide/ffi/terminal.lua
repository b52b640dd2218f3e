-- The terminal: its size, its raw mode, and the bytes that it sends. Linux.

local ffi = require 'ffi'

pcall(ffi.cdef, [[
int     isatty(int fd);
int     ioctl(int fd, unsigned long request, ...);
struct tide_winsize { unsigned short row, col, xpixel, ypixel; };
]])
pcall(ffi.cdef, [[
struct tide_termios {
  unsigned int c_iflag, c_oflag, c_cflag, c_lflag;
  unsigned char c_line, c_cc[32];
  unsigned int c_ispeed, c_ospeed;
};
int tcgetattr(int fd, struct tide_termios *t);
int tcsetattr(int fd, int how, const struct tide_termios *t);
struct tide_pollfd { int fd; short events, revents; };
int poll(struct tide_pollfd *fds, unsigned long n, int timeout);
long read(int fd, void *buf, unsigned long n);
int raise(int sig);
int getppid(void);
int open(const char *path, int flags, ...);
int close(int fd);
]])

local C = ffi.C
local terminal = {}

local TIOCGWINSZ, EINTR, EAGAIN, POLLIN, SIGTSTP, TCSADRAIN = 0x5413, 4, 11, 1, 20, 1
local O_NOCTTY, O_NONBLOCK = 0x100, 0x800
local BRKINT, ICRNL, INPCK, ISTRIP, IXON = 0x2, 0x100, 0x10, 0x20, 0x400
local ECHO, ICANON, IEXTEN, ISIG = 0x8, 0x2, 0x8000, 0x1
local VTIME, VMIN = 5, 6

-- Returns whether the descriptor (0, 1 or 2) is a terminal.
function terminal.isatty(fd) return C.isatty(fd) == 1 end

-- Returns whether the parent process, a launcher that passes its input on, reads from a terminal.
function terminal.launcher_isatty()
   local fd = C.open(('/proc/%d/fd/0'):format(C.getppid()), O_NOCTTY + O_NONBLOCK)
   if fd < 0 then return false end
   local is = C.isatty(fd) == 1
   C.close(fd)
   return is
end

-- Returns the width of the terminal; 80 if unknown.
function terminal.columns()
   local size = ffi.new 'struct tide_winsize'
   for fd = 2, 0, -1 do
      if C.ioctl(fd, ffi.cast('unsigned long', TIOCGWINSZ), size) == 0 and size.col > 0 then
         return size.col
      end
   end
   return 80
end

-- Returns the columns for printed text: those of the terminal, or 80 if the output goes elsewhere.
function terminal.width() return terminal.isatty(1) and terminal.columns() or 80 end

-- Sends keys as they are typed, Ctrl-C among them, and does not echo them, until the returned
-- function is called. nil if standard input is not a terminal.
function terminal.raw()
   local before, now = ffi.new 'struct tide_termios', ffi.new 'struct tide_termios'
   if C.tcgetattr(0, before) ~= 0 then return nil end
   ffi.copy(now, before, ffi.sizeof(now))
   now.c_iflag = bit.band(now.c_iflag, bit.bnot(BRKINT + ICRNL + INPCK + ISTRIP + IXON))
   now.c_lflag = bit.band(now.c_lflag, bit.bnot(ECHO + ICANON + IEXTEN + ISIG))
   now.c_cc[VMIN], now.c_cc[VTIME] = 1, 0
   C.tcsetattr(0, TCSADRAIN, now)
   return function() C.tcsetattr(0, TCSADRAIN, before) end
end

-- Stops the program, as Ctrl-Z does outside of raw mode; returns when it is continued.
function terminal.suspend() C.raise(SIGTSTP) end

local one = ffi.new 'unsigned char[1]'

-- Blocks until the terminal sends a byte, or for `ms` milliseconds. Returns it as a text; nil at
-- the end of input and after that time.
function terminal.byte(ms)
   if ms then
      local fds = ffi.new('struct tide_pollfd[1]', { { 0, POLLIN, 0 } })
      if C.poll(fds, 1, ms) <= 0 then return nil end
   end
   while true do
      local n = tonumber(C.read(0, one, 1))
      if n == 1 then return string.char(one[0]) end
      if n == 0 or ffi.errno() ~= EINTR and ffi.errno() ~= EAGAIN then return nil end
   end
end
jit.off(terminal.byte)

return terminal
