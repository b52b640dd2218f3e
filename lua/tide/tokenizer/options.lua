-- Rows of the options that tokenizers take, those of files and that of bytes.

local options = {}

-- Options of encode.
options.encode = {
   'add_special_tokens: any? -- true: with the ids that the file puts around a text',
   'special: any? -- false: text that looks like a special token is text',
   'offsets: any? -- true: the places of ids, too',
   "invalid: 'error' | 'replace' = 'error' -- what to do with bytes that are not UTF-8",
   'width: integer? -- 2 or 4: a string of little-endian ids in the place of the list',
   "where width == nil or width == 2 or width == 4 -- argument 'width': expected 2 or 4, got "
      .. '{width}',
   "where not width or not offsets -- argument 'width': expected nil where offsets are wanted, got "
      .. '{width}',
}

-- Options of encode_batch.
options.batch = { 'threads: integer in [0, 64] = 0 -- 0: those of the default context',
   options.encode }

-- Options of decode and stream.
options.decode = { 'special: any? -- false: special tokens give no text' }

return options
