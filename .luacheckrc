-- luacheck: LuaJIT, no globals, lines to 100 columns; specs may use busted's words.
std = 'luajit'
max_line_length = 100
codes = true
self = false            -- a method need not use self
files['spec'] = { std = '+busted' }
files['.busted'] = { std = 'luajit' }
exclude_files = { 'build' }
