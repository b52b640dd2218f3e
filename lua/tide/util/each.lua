-- pairs under another name, which the library uses everywhere.
--
-- LuaJIT compiles `for k, v in pairs(t)` and `in next, t` to a special instruction, chosen by those
-- names. In the LuaJIT of Debian 12 (2.1.0-beta3 of 2022) such a loop, while it gets hot, sometimes
-- ends before its first entry, which silently loses options and state. Any other name gives the
-- ordinary loop, which has no such fault. (spec/lua/util_spec.lua saw it in two of five runs; never
-- with the compiler off.)

return pairs
