-- Models, chats and command lines for the specs of recipes/finetune.lua.

local tide = require 'tide'
local fs = require 'tide.util.fs'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local case = {}

-- Raises, in the name of the caller of the caller, unless v.
local function check(v, text) if not v then error(text, 3) end end

-- Returns two functions that run a recipe. ok(n, words) runs it on n ranks and returns its output.
-- bad(words, text) runs it on one rank, where it must end with one message that has `text`.
function case.runs(name)
   local function ok(n, words)
      local out, status = recipe.ranks(n, name .. ' ' .. words)
      check(status == 0, out)
      return out
   end
   local function bad(words, text)
      local out, status = recipe.ranks(1, name .. ' ' .. words)
      check(status == 1 or status == 2, status .. ': ' .. out)
      check(not out:find('stack traceback', 1, true), out)
      check(out:find(text, 1, true), ("'%s' is not in: %s"):format(text, out))
   end
   return ok, bad
end

case.ok, case.bad = case.runs 'finetune.lua'

local template = '{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}'
   .. '{% if add_generation_prompt %}<assistant>{% endif %}'

-- n chats of different lengths, as JSON Lines.
function case.chats(n)
   local list = {}
   for i = 1, n do
      list[i] = ('{"messages": [{"role": "user", "content": "say %d%s"}, {"role": "assistant", '
         .. '"content": "%s"}]}\n'):format(i % 9, ('x'):rep(i % 37),
         ('yes %d '):format(i % 9):rep(1 + i % 11))
   end
   return table.concat(list)
end

-- A small decoder over bytes, as a folder with a chat template.
function case.save(dir, model)
   tide.model.save(model or tide.model.llama({ vocab_size = 258, hidden_size = 16,
      num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
      intermediate_size = 24, max_position_embeddings = 128 }, { seed = 5 }), dir)
   write(dir .. '/chat_template.jinja', template)
   return dir
end

-- Calls fn(dir, words, words without --data) with a model in dir/m and chats in dir/c.jsonl.
function case.with_data(fn)
   tmp.with(function(dir)
      case.save(dir .. '/m')
      write(dir .. '/c.jsonl', case.chats(80))
      local words = ('--threads 1 --from %s/m --seq 96 --batch 4 --lr 3e-3 --val-every 3 '
         .. '--save-every 0 '):format(dir)
      fn(dir, ('%s--data %s/c.jsonl '):format(words, dir), words)
   end)
end

-- The losses of the steps of a run.
function case.losses(out)
   local list = {}
   for line in io.lines(out .. '/metrics.jsonl') do
      list[#list + 1] = tonumber(line:match '"loss":([%d.e+-]+)')
   end
   return list
end

-- Runs words of a recipe (a checkpoint every 2 of 20 steps) in dir/a, and again in dir/b, where
-- a rank is killed after 2 checkpoints, and resumed. Raises unless both end with the same bits.
-- which: 'first' or 'last' of the ranks.
function case.survives(dir, n, words, which)
   words = words .. ' --save-every 2 --keep 99 --steps 20 --out ' .. dir
   local out, status = recipe.ranks(n, words .. '/a')
   check(status == 0, out)
   -- the processes at the end of the chain below the one that this shell starts are the ranks
   out, status = recipe.shell(([[%s %s run -n %d %s & p=$!
      for i in $(seq 1200); do
         test "$(ls %s/b 2>/dev/null | grep -c step-)" -gt 1 && break; sleep 0.05
      done
      c=$p; while q=$(pgrep -P $c | %s -1) && test -n "$q"; do c=$q; done
      kill -9 $c; wait $p]]):format(recipe.timeout, recipe.program, n,
      recipe.path('recipes/' .. words .. '/b'), dir, which == 'first' and 'head' or 'tail'))
   check(status ~= 0, out)
   local at = tide.train.checkpoint.step_in(dir .. '/b')
   check(at >= 2 and at < 20, out)
   out, status = recipe.ranks(n, words:match '^%S+' .. ' --resume --out ' .. dir .. '/b')
   check(status == 0, out)
   local compared = 0
   for _, name in ipairs(fs.list('spec', dir .. '/a/step-00000020')) do
      if name:find '%.safetensors$' then
         name, compared = '/step-00000020/' .. name, compared + 1
         local whole = fs.read('spec', dir .. '/a' .. name)
         check(whole == fs.read('spec', dir .. '/b' .. name), name)
      end
   end
   check(compared >= 2, 'no tensors')
   case.same_losses(case.losses(dir .. '/a'), case.losses(dir .. '/b'))
end

-- Losses that are equal but for the order of sums in f32.
function case.same_losses(a, b)
   check(#a == #b, ('%d and %d steps'):format(#a, #b))
   for i = 1, #a do
      check(math.abs(a[i] - b[i]) <= 1e-6 * a[i], ('step %d: %.9g %.9g'):format(i, a[i], b[i]))
   end
end

return case
