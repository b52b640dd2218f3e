-- Attention, whole and in parts, and the index pairs of packed streams. Masks are data (see
-- tide_attention_attrs), so one option table serves the op, its parts on other ranks and their
-- backward.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local C = lib.C
local each = pairs -- by another name: see "faults" in bindings/README.md

local M = {}
local make, _, once = require('tide.ffi.row').adders(M)
local raw = {}                              -- C functions behind wrappers that check the arguments
local call, _, _, two = require('tide.ffi.row').adders(raw, 'raw')
call 'attention(q, k, v, attrs) -> nil, q, k, v, attrs'
two 'attention: attention_lse(q, k, v, attrs)'
local new_box, take, again, check = own.new_box, own.take, own.again, own.check
local tensor, finite, int = arg.tensor, arg.finite, arg.int
local tensor_or_nil, flag, bad = arg.tensor_or_nil, arg.flag, status.bad_arg

local attention_opts = arg.set { 'causal', 'window', 'scale', 'softcap', 'q_start', 'q_index',
   'k_index', 'q_tiles', 'k_tiles', 'bias', 'sinks', 'return_lse' }
local new_attrs = ffi.typeof 'tide_attention_attrs'

-- Writes the window of a call: {left, right} with nil for no limit, or one number for both sides.
local function fill_window(a, window)
   if window == nil then return end
   if type(window) == 'number' then
      int('attention', 'opts.window', window, 0)
      a.window_left, a.window_right = window, window
   elseif type(window) == 'table' then
      for k in each(window) do
         if type(k) ~= 'number' or k ~= 1 and k ~= 2 then
            bad('attention', 'opts.window', '{left, right} and nothing else', window)
         end
      end
      if window[1] ~= nil then a.window_left = int('attention', 'opts.window[1]', window[1], -1) end
      if window[2] ~= nil then
         a.window_right = int('attention', 'opts.window[2]', window[2], -1)
      end
   else
      bad('attention', 'opts.window', 'an integer, {left, right} or nil', window)
   end
end

-- Returns the options without bias and return_lse.
local function fill_mask(opts)
   local a = new_attrs()
   C.tide_attention_attrs_init(a)
   a.causal = flag('attention', 'opts.causal', opts.causal) and 1 or 0
   fill_window(a, opts.window)
   if opts.scale ~= nil then
      a.scale = finite('attention', 'opts.scale', opts.scale)
      if a.scale == 0 then bad('attention', 'opts.scale', 'a number that is not 0', opts.scale) end
   end
   if opts.softcap ~= nil then a.softcap = finite('attention', 'opts.softcap', opts.softcap, 0) end
   if opts.q_start ~= nil then a.q_start = int('attention', 'opts.q_start', opts.q_start) end
   a.q_index = tensor_or_nil('attention', 'opts.q_index', opts.q_index)
   a.k_index = tensor_or_nil('attention', 'opts.k_index', opts.k_index)
   a.q_tiles = tensor_or_nil('attention', 'opts.q_tiles', opts.q_tiles)
   a.k_tiles = tensor_or_nil('attention', 'opts.k_tiles', opts.k_tiles)
   return a
end

local function fill_attention(opts)
   opts = arg.opts('attention', opts, attention_opts)
   local a = fill_mask(opts)
   a.bias = tensor_or_nil('attention', 'opts.bias', opts.bias)
   a.sinks = tensor_or_nil('attention', 'opts.sinks', opts.sinks)
   return a, flag('attention', 'opts.return_lse', opts.return_lse)
end

-- Returns attention out [B, T, H, D] of q [B, T, H, D] over k and v [B, Tk, Hk, D]; with return_lse
-- also lse [B, H, Tq]. opts: causal (false); window (how far a key may lie from its query: a number
-- for both sides, or { left, right }, -1 or nil for any); scale (1 / sqrt(D); not 0); softcap;
-- q_start (position of the first query); q_index and k_index (i32 [B or 1, T, 2] of (document,
-- position): each query sees its document only; tide.document_index makes them; [.., 3] of
-- (document, position, until): a causal query sees keys up to `until` in place of its position, so
-- that tokens of an image see each other); q_tiles and k_tiles (tide.attention_tiles of the two,
-- made once for all calls with them); bias; sinks [H] (a score of each head, without a value, that
-- takes a share of the softmax); return_lse.
function M.attention(q, k, v, opts)
   tensor('attention', 'q', q)
   tensor('attention', 'k', k)
   tensor('attention', 'v', v)
   local a, want_lse = fill_attention(opts)
   return (want_lse and raw.attention_lse or raw.attention)(q, k, v, a)
end

-- Merges attention over further keys into out [B, T, H, D] and lse [B, H, T] (f32, f64 for f64),
-- which start as zeros and -inf. part and part_lse: of tide.attention with return_lse. Not
-- recorded; raises E_STATE if one of them needs a gradient.
once 'attention_merge_(out, lse, part, part_lse)'

local part_opts = arg.set { 'causal', 'window', 'scale', 'softcap', 'q_start', 'q_index',
   'k_index', 'q_tiles', 'k_tiles', 'sinks' }

-- Returns the gradients of q, k and v from one part of the keys; out and lse are those over all
-- parts, opts those of the part's forward. Not recorded; raises E_STATE if one of them needs a
-- gradient.
function M.attention_backward(dout, q, k, v, out, lse, opts)
   tensor('attention_backward', 'dout', dout)
   tensor('attention_backward', 'q', q)
   tensor('attention_backward', 'k', k)
   tensor('attention_backward', 'v', v)
   tensor('attention_backward', 'out', out)
   tensor('attention_backward', 'lse', lse)
   opts = arg.opts('attention_backward', opts, part_opts)
   local a = fill_mask(opts)
   a.sinks = tensor_or_nil('attention_backward', 'opts.sinks', opts.sinks)
   local dq, dk, dv = new_box(), new_box(), new_box()
   local rc = C.tide_attention_backward(dq, dk, dv, dout, q, k, v, out, lse, a)
   if rc ~= 0 and again(q, rc) then
      check(q, C.tide_attention_backward(dq, dk, dv, dout, q, k, v, out, lse, a))
   end
   local gk, gv = take(dk), take(dv)
   return take(dq), gk, gv
end

-- Returns the gradient of the sinks [H] of an attention from dout, its output and its lse. Of a
-- sequence in parts, out and lse are those over all parts, one of which was given the sinks. Not
-- recorded; raises E_STATE if one of them needs a gradient.
make 'attention_sinks_backward(dout, out, lse, sinks)'

local row_opts = arg.set { 'causal', 'window' }
local new_run = ffi.typeof 'int64_t[2]'

-- Returns the run of keys that some query may see: its first key, from 1, and how many (0: none).
-- Indices as in attention; opts: causal, window.
function M.attention_rows(q_index, k_index, opts)
   tensor('attention_rows', 'q_index', q_index)
   tensor('attention_rows', 'k_index', k_index)
   local a = fill_mask(arg.opts('attention_rows', opts, row_opts))
   local run = new_run()
   check(q_index, C.tide_attention_rows(q_index, k_index, a, run, run + 1))
   return tonumber(run[0]) + 1, tonumber(run[1])
end

-- Returns the span of each 64 tokens of an index [B or 1, T, 2 or 3], as i32 [B or 1, ceil(T /
-- 64), 4]: least and greatest document (the least complemented if a token has no document), least
-- and greatest position (until is one, too). GPU kernels skip tiles by it.
make 'attention_tiles(index)'

-- Returns (document, position) pairs, i32 [1, ntoken, 2], of a packed stream from cumulative
-- lengths cu, an i32 or i64 tensor {0, ..., ntoken}. Tokens after the last document get document
-- -1.
make 'document_index(cu, ntoken: int 0)'

return M
