-- Token sources from files: one file, or every text (or .bin) file below a folder.
--
-- Each file gives its last part to validation and the rest to training, so that both see every
-- file. Files are taken in the order of their sorted paths; names that begin with a dot are left
-- out. Text is tokenized by bytes or a tokenizer, each file followed by the end-of-document id.

local bytes = require 'tide.tokenizer.bytes'
local encoder = require 'tide.data.encoder'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local index = require 'tide.data.megatron_index'
local kind = require 'tide.data.kind'
local megatron = require 'tide.data.megatron'
local signature = require 'tide.util.signature'
local tokens = require 'tide.data.tokens'

local text = {}

local op = 'data.text.load'

local extensions = {}
for ext in ([[txt md rst tex org html xml css csv tsv json jsonl yaml yml toml ini cfg def cmake
   lua c h cc cpp hpp cu cuh py js ts go rs java rb sh pl sql mk]]):gmatch '%S+' do
   extensions[ext] = true
end

local function extension(path) return (path:match '%.([%w_]+)$' or ''):lower() end

local function wanted(name)
   return extensions[extension(name)] or name == 'Makefile' or name == 'README'
end

-- Adds the files below a folder to `list`, and those that are neither text nor .bin to `left`. An
-- .idx is read with its .bin.
local function collect(path, list, left, depth)
   err.raise_if(depth > 32, 'E_IO', op, 'folders are nested too deeply at %s; a link in it may '
      .. 'lead to a folder above', path)
   for _, name in ipairs(fs.list(op, path)) do
      local full = fs.join(path, name)
      if name:sub(1, 1) ~= '.' then
         if fs.is_dir(full) then
            collect(full, list, left, depth + 1)
         elseif extension(name) ~= 'idx' then
            local is_data = fs.size(full) and (wanted(name) or extension(name) == 'bin')
            local to = is_data and list or left
            to[#to + 1] = full
         end
      end
   end
end

-- Returns the files at or below a path; .bin files only if there is no text file. Also returns the
-- files that are left out, by their extension or since they cannot be read.
function text.files(path)
   if not fs.is_dir(path) then
      if not fs.size(path) then
         err.raise('E_IO', op, 'cannot read %s: %s%s', path,
            fs.exists(path) and 'it is not a regular file' or 'there is no such file or folder',
            fs.size(path .. '.bin') and ('; give %s.bin'):format(path) or '')
      end
      return { path }, {}
   end
   local list, left = {}, {}
   collect(path, list, left, 0)
   local plain, binary = {}, {}
   for _, file in ipairs(list) do
      local t = extension(file) == 'bin' and binary or plain
      t[#t + 1] = file
   end
   err.raise_if(#plain == 0 and #binary == 0, 'E_IO', op, 'no text or .bin file below %s', path)
   if #plain == 0 then return binary, left end
   for _, file in ipairs(binary) do left[#left + 1] = file end
   return plain, left
end

-- Returns where validation begins, in units of the file: nothing is split off tiny files.
local function split_at(n, share)
   local held = math.floor(n * share)
   return held < 16 and n or n - held
end

-- Refuses a file with a zero byte: it is not text in a common encoding of bytes.
local function check_text(path, content)
   local zero = content:find('\0', 1, true)
   if not zero then return end
   local what = kind.of(content)
   err.raise('E_FORMAT', op, '%s is not text, byte %d of it is 0%s; binary = true (--binary) takes '
      .. 'files as bytes whatever they hold', path, zero, what and ': ' .. what or '')
end

-- Returns the place of a cut, moved to the end of a character that it would divide.
local function between_characters(content, cut)
   while cut < #content and content:byte(cut + 1) >= 0x80 and content:byte(cut + 1) < 0xC0 do
      cut = cut + 1
   end
   return cut
end

local function load_text(files, share, binary, code)
   local train, val, raw, total, cu, val_cu = {}, {}, {}, 0, { 0 }, { 0 }
   local tok, eos, width = code.tokenizer, code.eos, code.width
   local is_bytes = tok.unit == 'byte'
   for _, path in ipairs(files) do
      local content = fs.read(op, path)
      if not binary then check_text(path, content) end
      local cut = split_at(#content, share)
      if not is_bytes then cut = between_characters(content, cut) end
      local head, tail = content:sub(1, cut), content:sub(cut + 1)
      total = total + #content
      if #head > 0 then
         raw[#raw + 1] = head
         train[#train + 1] = code.encode(path, head) .. (#tail == 0 and eos or '')
         cu[#cu + 1] = cu[#cu] + #train[#train] / width
      end
      if #tail > 0 then
         val[#val + 1] = code.encode(path, tail) .. eos
         val_cu[#val_cu + 1] = val_cu[#val_cu] + #val[#val] / width
      end
   end
   if total == 0 then err.raise('E_FORMAT', op, '%s: there is no text', files[1]) end
   return {
      kind = 'text', files = #files, bytes = total, cu = cu,
      raw = is_bytes and raw or nil, val_cu = val_cu,
      vocab_size = tok.vocab_size, tokenizer = tok,
      train = tokens.memory(table.concat(train), width),
      val = tokens.memory(table.concat(val), width),
   }
end

-- Adds the ends of the documents of a Megatron data set to cumulative lengths: those up to a place
-- to cu, the others to val_cu. A document that lies across the place becomes two.
local function add_documents(cu, val_cu, ends, cut)
   local before, val_before = cu[#cu], val_cu[#val_cu]
   for i = 2, #ends do
      if ends[i - 1] < cut then cu[#cu + 1] = before + math.min(ends[i], cut) end
      if ends[i] > cut then val_cu[#val_cu + 1] = val_before + ends[i] - cut end
   end
end

local function load_binary(files, share, width, documents)
   local train, val, cu, val_cu = {}, {}, { 0 }, { 0 }
   for _, path in ipairs(files) do
      local source = tokens.file(path, { width = width })
      local cut = split_at(source.count, share)
      train[#train + 1] = tokens.slice(source, 0, cut)
      val[#val + 1] = tokens.slice(source, cut, source.count - cut)
      documents = documents and index.beside(op, path) ~= nil
      if documents then
         local set = megatron.open(path)
         set.source:close()
         add_documents(cu, val_cu, set.cu, cut)
      end
   end
   return { kind = 'tokens', files = #files, train = tokens.join(train), val = tokens.join(val),
      cu = documents and cu or nil, val_cu = documents and val_cu or nil }
end

-- Reads a path or a list of them. Returns { kind, train, val, files, left_out (the paths of files
-- below a folder that are not read), ... }; for text also raw, the training parts as strings, and
-- cu and val_cu, the cumulative lengths of the files' parts in tokens; with documents also of .bin
-- files that all have the .idx of a Megatron data set.
function text.load(paths, opts)
   local share = opts.val
   if type(paths) == 'string' then paths = { paths } end
   local files, left_out = {}, {}
   for _, path in ipairs(paths) do
      local list, left = text.files(path)
      for _, file in ipairs(list) do files[#files + 1] = file end
      for _, file in ipairs(left) do left_out[#left_out + 1] = file end
   end
   if #files == 0 then err.arg_text(op, 'paths', 'at least one file', 'none') end
   local nbin = 0
   for _, file in ipairs(files) do
      if extension(file) == 'bin' then nbin = nbin + 1 end
   end
   err.raise_if(nbin > 0 and nbin < #files, 'E_ARG', op, 'text and .bin files cannot be mixed')
   local corpus = nbin > 0 and load_binary(files, share, opts.width, opts.documents)
      or load_text(files, share, opts.binary, encoder.of(opts.tokenizer or bytes, opts.cache))
   corpus.left_out = left_out
   return corpus
end

return signature.doors('data.text', text, {
   files = 'path: string',
   load = { 'paths: string | table', opts = {
      'val: number in [0, 0.5] = 0.05 -- share that is held out for validation',
      'width: integer? -- bytes of an id in raw .bin files (see data.tokens.file)',
      'binary: boolean = false -- takes files with zero bytes as text',
      'documents: boolean = false -- reads the documents of .bin files from the .idx beside them',
      'tokenizer: table? -- a tokenizer; by default bytes',
      'cache: string? -- folder that keeps the ids of a tokenizer' } },
})
