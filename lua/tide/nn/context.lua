-- Passes the context of a sequence over ranks (parallel.cp) from models to their layers, and
-- refuses calls that would silently give wrong numbers with one.
--
-- parallel/cp/context.lua lists what a context has. Or a context is null: the whole sequence is
-- here, and is one document.
--
-- `at`, which every layer gets beside x, says where the tokens lie. All of its fields may be nil.
-- Those that a caller of a layer gives:
--    positions         [B or 1, T], or [3, B or 1, T] of rotary positions with three axes
--    q_index, k_index  which keys a query sees (see nn.mask)
--    attention_mask    [B, T] of document numbers, in place of an index
--    sequence          [B or 1, T]: numbers of documents, of layers that keep a state
--    context           that of a sequence over ranks (parallel.cp)
--    cache             keys and values, or the state, of earlier tokens of this layer
--    is_causal         in place of the layer's own
--    rows              index [K] of the tokens whose result is needed (see nn.rows)
-- Those that a model (model.backbone) adds:
--    length, rope_length   tokens of the call, and the length for rotary positions
--    tiles             those of its indices (see nn.tiles)
--    mask_index        the index of attention_mask, made once; mask_checked: the mask needs no more
--    balance           the record of a call for nn.balance
--    caches, after, last_rows, blocks   of all blocks together (see nn.Stack)
--    is_made           the model made its input, which may be given up

local tide = require 'tide'
local err = require 'tide.util.err'

local context = {}

local function checked(op, c)
   err.arg_if(type(c) ~= 'table' or type(c.size) ~= 'number', op, 'context', 'a context of '
      .. 'parallel.cp', c)
   return c
end

-- Returns the context among the options of a model's call with ids [B, T]; nil without one, or for
-- null.
function context.of(op, opts, ids)
   err.type(op, 'opts', opts, 'table')
   local c = opts.context
   if c == nil or checked(op, c).null then return nil end
   for _, name in ipairs { 'index', 'q_index', 'k_index', 'sequence', 'caches' } do
      err.arg_if(opts[name] ~= nil, op, name, 'nil with a context, which gives the documents and '
         .. 'takes no caches', opts[name])
   end
   local n = c:tokens()[c.rank + 1]
   if ids:size(2) ~= n then
      err.raise('E_SHAPE', op, 'expected the %d tokens of this rank in the context, got %d', n,
         ids:size(2))
   end
   return c
end

-- Returns what a call of a layer gets as `at`; an empty table for nil.
function context._place(op, at)
   if at == nil then return {} end
   return err.type(op, 'at', at, 'table')
end

-- Returns the positions, i64 [B or 1, T], that an index [B or 1, T, 2 or 3] (see nn.mask) gives, at
-- least 0 in padding too.
function context._in_documents(index) return index:select(3, 2):to 'i64':clamp(0, 2^31 - 1) end

-- Returns the positions of the tokens of a call that `at` gives, i64 [B or 1, T]: its positions,
-- else those of its context, which records where this rank's tokens lie, else those of its q_index;
-- else nil.
function context._given_positions(at, device)
   local c = at.context
   if at.positions ~= nil then return at.positions end
   if c ~= nil and not c.null then return c:positions(device) end
   if at.q_index ~= nil then return context._in_documents(at.q_index) end
end

-- Returns the index of a context of one rank, which has all tokens; nil of another or without one.
function context._whole_index(c, device)
   return c and c.size == 1 and c:q_index(device) or nil
end

-- Returns the positions 0 .. T - 1, i64 [1, T].
function context._plain_positions(T, device)
   return tide.arange(T, { dtype = 'i64', device = device }):reshape(1, T)
end

-- Returns the positions of the T tokens of a call, i64 [B or 1, T]: those given, else 0 .. T - 1.
function context._positions(at, T, device)
   return context._given_positions(at, device) or context._plain_positions(T, device)
end

-- Refuses a shift of labels on a part of the sequence: the token after a rank's last is on another
-- rank.
function context.check_shift(op, c)
   err.raise_if(c ~= nil and not checked(op, c).null, 'E_UNSUPPORTED', op, "option 'shift': the "
      .. 'next tokens are on other ranks; shift the labels of the whole sequence (nn.loss.shift), '
      .. 'then split it')
end

-- Returns `over` and `whole`, two contexts or nil, of a layer that mixes along the sequence. A
-- layer whose plan has replaced its inner call (takes_context) gets its context as `over`. Another
-- one gets a context of one rank as `whole`, for its documents and mask; of several it is E_STATE.
function context.for_layer(op, layer, at)
   if at ~= nil and type(at) ~= 'table' then err.arg(op, 'at', 'a table', at) end
   local c = at and at.context
   if c == nil or layer.takes_context then return c end
   if checked(op, c).null then return nil end
   err.raise_if(c.size > 1, 'E_STATE', op, 'the sequence is split over %d ranks, but this layer '
      .. 'sees only its own part; attach the model (parallel.cp.attach)', c.size)
   return nil, c
end

return context
