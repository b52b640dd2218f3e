-- Completion in Neovim by a small model, on a thread of its own.
--
--   :let g:tide_model = 'runs/mine'
--   :luafile /usr/share/tide/recipes/embed/neovim.lua
--   :inoremap <C-x><C-t> <Cmd>TideComplete<CR>
--   :TideComplete                         continues the line after the cursor
--
-- The model lives on one thread, which reads requests from a pipe and answers through another; the
-- editor never waits. A request is a line "number length" and the text before the cursor.

local vim = vim                          -- luacheck: ignore
local uv = vim.loop
local here = debug.getinfo(1, 'S').source:match '^@(.*)/recipes/embed/[^/]*$' or '.'

-- Runs on the thread, in a Lua state of its own: nothing from outside but its arguments.
local function serve(root, dir, from, to)
   local loop = require 'luv'
   for _, place in ipairs { '/?.lua', '/lua/?/init.lua', '/lua/?.lua', '/bindings/?.lua' } do
      package.path = root .. place .. ';' .. package.path
   end
   local function answer(number, kind, text)
      loop.fs_write(to, ('%d %s %d\n%s'):format(number, kind, #text, text), -1)
   end
   local ok, writer = pcall(function()
      require('tide').set_error_form 'text'
      return require('recipes.embed.writer').open(dir, { threads = 1 })
   end)
   local function leave()
      loop.fs_close(from)
      loop.fs_close(to)
   end
   if not ok then
      answer(0, 'error', tostring(writer))
      return leave()
   end
   local input = ''
   local function read(n)                                      -- n bytes; nil at the end
      while #input < n do
         local more = loop.fs_read(from, 65536, -1)
         if not more or more == '' then return nil end
         input = input .. more
      end
      local text = input:sub(1, n)
      input = input:sub(n + 1)
      return text
   end
   local function header()
      local line = ''
      repeat
         local c = read(1)
         if not c then return nil end
         line = line .. c
      until c == '\n'
      return line:match '^(%d+) (%d+)'
   end
   for number, length in header do
      local prompt = read(tonumber(length))
      local good, text = pcall(writer.continue, writer, prompt, { tokens = 48, stop = { '\n' } })
      answer(tonumber(number), good and 'text' or 'error', good and text or tostring(text))
   end
   leave()
end

local state = { number = 0, waiting = {}, input = '' }

-- Takes the answers that are complete out of the input.
local function receive(data)
   state.input = state.input .. (data or '')
   while true do
      local number, kind, length, first = state.input:match '^(%d+) (%a+) (%d+)\n()'
      if not number or #state.input < first - 1 + length then return end
      local text = state.input:sub(first, first - 1 + length)
      state.input = state.input:sub(first + length)
      local done = state.waiting[tonumber(number)]
      state.waiting[tonumber(number)] = nil
      vim.schedule(function()
         if kind == 'error' then return vim.notify('tide: ' .. text, vim.log.levels.ERROR) end
         if done then done(text) end
      end)
   end
end

-- Closes the pipes, without which the thread ends. The next question starts another one.
function state.stop()
   if not state.thread then return end
   state.to:close()
   state.from:close()
   state.thread, state.waiting, state.input = nil, {}, ''
end

local function start(dir)
   local question, reply = uv.pipe(), uv.pipe()
   local to, from = uv.new_pipe(), uv.new_pipe()
   state.thread = uv.new_thread(serve, here, dir, question.read, reply.write)
   state.to, state.from = to, from
   to:open(question.write)
   from:open(reply.read)
   from:read_start(function(_, data)
      if data then return receive(data) end
      vim.schedule(function()                                   -- the thread has ended
         if state.from == from then state.stop() end
      end)
   end)
end

-- Asks for the text that follows `before`; calls done(text) in the editor's loop.
local function ask(before, done)
   if not state.thread then start(vim.g.tide_model or error('set g:tide_model to a folder', 0)) end
   state.number = state.number + 1
   state.waiting[state.number] = done
   state.to:write(('%d %d\n%s'):format(state.number, #before, before))
end

-- Bytes of a line before the place to write at: the cursor's while one inserts, else after the
-- character under it.
local function place_in(line, column)
   if vim.api.nvim_get_mode().mode:find '^[iR]' or column >= #line then return column end
   return column + 1 + vim.str_utf_end(line, column + 1)
end

-- Continues the line at the cursor, unless the cursor has moved meanwhile.
local function complete()
   local buffer, cursor = vim.api.nvim_get_current_buf(), vim.api.nvim_win_get_cursor(0)
   local row = cursor[1]
   local lines = vim.api.nvim_buf_get_lines(buffer, math.max(0, row - 32), row, false)
   local place = place_in(lines[#lines], cursor[2])
   lines[#lines] = lines[#lines]:sub(1, place)
   ask(table.concat(lines, '\n'), function(text)
      local now = vim.api.nvim_win_get_cursor(0)
      if vim.api.nvim_get_current_buf() ~= buffer or now[1] ~= row or now[2] ~= cursor[2] then
         return
      end
      vim.api.nvim_buf_set_text(buffer, row - 1, place, row - 1, place, { text })
      vim.api.nvim_win_set_cursor(0, { row, place + #text })
   end)
end

-- The thread ends when no question is left.
vim.api.nvim_create_autocmd('VimLeavePre', { callback = state.stop })
vim.api.nvim_create_user_command('TideComplete', complete, {})
