-- The most likely ids of a teacher after each token of a corpus, computed once and kept, so that
-- distillation runs without the teacher.
--
--    local top = train.teacher.top(run, sampler, corpus, { k = 16 })     -- run: the teacher's
--    train.teacher.save('top.safetensors', top)
--    train.teacher.use(sampler, corpus, top)         -- batches have them, for nn.distil.objective
--
-- top holds, for `train` and `val`, ids i32 [tokens, K] and logp f32 [tokens, K] on the host, a row
-- for each token of the source: 8 K bytes. They are of the documents as seq and long cut them.

local tide = require 'tide'
local batches = require 'tide.train.batches'
local checkpoint = require 'tide.train.checkpoint'
local data_tokens = require 'tide.data.tokens'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local nn = require 'tide.nn'
local signature = require 'tide.util.signature'

local teacher = {}

-- ---- computing -------------------------------------------------------------------------------

-- Returns the rows of top of a batch, [T, K] each, on the host.
local function run_batch(model, batch, k, chunk)
   local found
   tide.no_grad(function()
      model:with_head(batch.ids, batches.place_of(model, batch), function(x, w, cap)
         found = nn.distil.top(x, w, k, { cap = cap, chunk = chunk })
      end)
   end)
   return found.ids:to 'i32':to 'cpu', found.logp:to 'cpu'
end

-- Copies the rows of the pieces of a batch to their places in the source. rows: those of the batch.
local function put(part, rows, seq, ids, logp)
   for r, row in ipairs(rows) do
      local at = (r - 1) * seq
      for _, piece in ipairs(row) do
         local n = piece[2]
         part.ids:narrow(1, piece[1] + 1, n):copy_(ids:narrow(1, at + 1, n))
         part.logp:narrow(1, piece[1] + 1, n):copy_(logp:narrow(1, at + 1, n))
         at = at + piece[4]
      end
   end
end

-- Returns top of one source; each rank has its share of the rows, and all run the model equally
-- often.
local function part_of(run, sampler, source, rows, o)
   local comm, like = run.comm, { source.count, o.k }
   local part = { ids = tide.zeros(like, { dtype = 'i32' }),
      logp = tide.zeros(like, { dtype = 'f32' }) }
   for k = 0, math.ceil(#rows / (o.batch * comm.size)) - 1 do
      local first = (k * comm.size + comm.rank) * o.batch + 1
      local here = { unpack(rows, first, math.min(first + o.batch - 1, #rows)) }
      tide.scope(function()
         local batch = sampler:make(source, #here > 0 and here or { rows[1] }, o.device)
         local ids, logp = run_batch(run.model, batch, o.k, o.chunk)
         put(part, here, sampler.seq, ids, logp)
      end)
   end
   if run.sharded then run.sharded:release() end
   if comm.size > 1 then
      comm:all_reduce(part.ids)
      comm:all_reduce(part.logp)
   end
   return part
end

-- Returns what top depends on, beside the teacher.
local function conditions(sampler, corpus, vocab)
   return { vocab = vocab, seq = sampler.seq, long = sampler.long,
      train = data_tokens.fingerprint(corpus.train),
      val = sampler.val_cu and data_tokens.fingerprint(corpus.val) or nil }
end

-- Computes top, the likeliest ids of a teacher after each token of a corpus. run: { model, comm
-- (ranks that share the rows), sharded (nil: each holds the model whole) } of the teacher, without
-- a context axis; sampler: of data.packed. Collective.
function teacher.top(run, sampler, corpus, opts)
   local top = { k = opts.k, teacher = opts.teacher,
      conditions = conditions(sampler, corpus, run.model.config.vocab_size),
      train = part_of(run, sampler, corpus.train, sampler:all(), opts) }
   if sampler.val_cu then
      top.val = part_of(run, sampler, corpus.val, sampler:all(true), opts)
   end
   return top
end

-- ---- files -----------------------------------------------------------------------------------

-- Returns the checksums of tensors, by their names.
local function checksums_of(tensors)
   local sums = {}
   for name, t in each(tensors) do sums[name] = fs.io().checksum(t) end
   return sums
end

-- Writes top (see teacher.top) to a file of safetensors; one rank calls it.
function teacher.save(path, top)
   local tensors = {}
   for _, name in ipairs { 'train', 'val' } do
      if top[name] then
         tensors[name .. '.ids'], tensors[name .. '.logp'] = top[name].ids, top[name].logp
      end
   end
   local io_, staged = fs.io(), path .. '.part'
   io_.safetensors_save(staged, tensors, { tide_teacher = io_.json.encode {
      k = top.k, conditions = top.conditions, teacher = top.teacher,
      checksums = checksums_of(tensors) } })
   io_.rename(staged, path)
end

-- Returns the tensors of a file, compared with the checksums that save wrote.
local function checked_tensors(op, path, sums)
   err.raise_if(type(sums) ~= 'table', 'E_FORMAT', op, '%s has no checksums, as an earlier version '
      .. 'of tide wrote it; remove the file, and the teacher computes it again', path)
   local tensors = checkpoint.tensors(path)
   for name, sum in each(sums) do
      local t = tensors[name]
      err.raise_if(not t or fs.io().checksum(t) ~= sum, 'E_FORMAT', op, '%s: %s differs from its '
         .. 'checksum: the file is damaged; remove it, and the teacher computes it again', path,
         name)
   end
   return tensors
end

local function refuse(op, path, what, was, is)
   err.raise('E_ARG', op, '%s was written with %s = %s, this run has %s; remove the file, or name '
      .. 'another one', path, what, tostring(was), tostring(is))
end

-- Reads top (see teacher.top) from a file that save wrote for this corpus. E_FORMAT: it is another
-- kind of file, or damaged; E_ARG: it is of other data or another vocabulary, seq, long or k.
function teacher.load(path, sampler, corpus, opts)
   local op, io_ = 'train.teacher.load', fs.io()
   local file = fs.open_tensors(op, path)
   local meta = file.metadata.tide_teacher
   file:close()
   err.raise_if(not meta, 'E_FORMAT', op, '%s holds no output of a teacher', path)
   local top, now = io_.json.decode(meta), conditions(sampler, corpus, opts.vocab)
   for _, what in ipairs { 'vocab', 'seq', 'long', 'train', 'val' } do
      if top.conditions[what] ~= now[what] then
         refuse(op, path, what, top.conditions[what], now[what])
      end
   end
   if opts.k and opts.k ~= top.k then refuse(op, path, 'k', top.k, opts.k) end
   if opts.teacher and opts.teacher ~= top.teacher then
      refuse(op, path, 'teacher', top.teacher or 'a model that it does not name', opts.teacher)
   end
   local tensors = checked_tensors(op, path, top.checksums)
   top.checksums = nil
   for _, name in ipairs { 'train', 'val' } do
      if tensors[name .. '.ids'] then
         top[name] = { ids = tensors[name .. '.ids'], logp = tensors[name .. '.logp'] }
      end
   end
   return top
end

-- ---- batches ---------------------------------------------------------------------------------

-- Returns the values of a batch of rows, [1, T, K]; 0 in padding.
local function gathered(values, rows, seq, device)
   local list, K = {}, values:size(2)
   for r, row in ipairs(rows) do
      local at = (r - 1) * seq
      for i, piece in ipairs(row) do
         local slot = i == #row and r * seq - at or piece[4]
         list[#list + 1] = values:narrow(1, piece[1] + 1, piece[2])
         if slot > piece[2] then
            list[#list + 1] = tide.zeros({ slot - piece[2], K }, { dtype = values.dtype })
         end
         at = at + slot
      end
   end
   local all = tide.cat(list, 1)
   return all:reshape { 1, all:size(1), K }:to(device or 'cpu')
end

-- Gives the batches of a sampler of data.packed the fields teacher_ids i64 and teacher_logp f32 [1,
-- T, K], which nn.distil.objective reads. top: see teacher.top.
function teacher.use(sampler, corpus, top)
   local make = sampler.make
   function sampler.make(self, source, rows, device, same_rows)
      local batch = make(self, source, rows, device, same_rows)
      local part = source == corpus.val and top.val or top.train
      batch.teacher_ids = gathered(part.ids, rows, self.seq, device):to 'i64'
      batch.teacher_logp = gathered(part.logp, rows, self.seq, device)
      return batch
   end
   return sampler
end

return signature.doors('train.teacher', teacher, {
   top = { 'run: table; sampler: table; corpus: table', opts = {
      'k: integer >= 1 = 16 -- ids of a token that are kept',
      'batch: integer >= 1 = 1 -- rows at a time on a rank', 'device: string?',
      'teacher: string? -- which model it is (train.identity), kept in files',
      'chunk: integer? >= 1 -- tokens whose logits exist at a time' } },
   save = 'path: string; top: table',
   load = { 'path: string; sampler: table; corpus: table', opts = {
      'k: integer? >= 1 -- ids of a token that the file must have',
      'teacher: string? -- the model that must have written it (train.identity)',
      'vocab: integer >= 1 -- size of the vocabulary of the student' } },
   use = 'sampler: table; corpus: table; top: table',
})
