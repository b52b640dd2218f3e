-- The kit of a GPU's first day: packed with the emulated libraries, moved elsewhere, and run there
-- with nothing of this tree in the environment.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

-- Output and exit status of a shell command.
local function shell(command)
   local text = emulated.capture('{ { ' .. command .. '; }; echo "status=$?"; }')
   local body, status = text:match '^(.*)status=(%d+)%s*$'
   return body, tonumber(status)
end

local function write(path, text)
   local f = assert(io.open(path, 'w'))
   f:write(text)
   f:close()
   os.execute('chmod +x ' .. path)
end

describe('the folder of make gpu-pack', function()
   local where, kit, packed

   setup(function()
      where = os.tmpname()
      os.remove(where)
      os.execute(('mkdir -p %s/made %s/tools'):format(where, where))
      packed = shell(('TIDE_PACK_CUDA=%s spec/cuda/firstday/pack %s %s/made/gpu-pack')
         :format(emulated.folder, emulated.build, where))
      kit = where .. '/elsewhere'
      os.execute(('mv %s/made/gpu-pack %s'):format(where, kit))
   end)

   teardown(function() os.execute('rm -rf ' .. where) end)

   -- A script of the kit, with `env` before it and nothing else but a path.
   local function run(script, env)
      return shell(('cd %s && timeout 600 env -i PATH=%s/tools:/usr/bin:/bin OUT=%s/out JOBS=2 %s '
         .. 'spec/cuda/firstday/%s'):format(kit, where, where, env or '', script))
   end

   local function summary(script)
      local f = assert(io.open(('%s/out/%s/summary.txt'):format(where, script)))
      local text = f:read '*a'
      f:close()
      return text
   end

   it('says its size, below 64 MiB, and the glibc that it asks for', function()
      local mib = tonumber(packed:match ': (%d+) MiB, needs GLIBC_2%.%d+; there')
      assert.is_truthy(mib, packed)
      assert.is_true(mib < 64)
   end)

   it('has libraries that find each other by the path of the scripts alone', function()
      local text = shell(('cd %s && for f in build/*.so* build/tide bin/luajit lib/*.so* '
         .. 'lib/lua/*.so; do LD_LIBRARY_PATH=build:lib ldd $f; done'):format(kit))
      assert.is_nil(text:find('not found', 1, true), text)
      assert.is_nil(text:find('/work/', 1, true) or text:find('/build/spec/', 1, true), text)
   end)

   it('a: runs specs with its own interpreter, and passes', function()
      local text, status = run('a', 'ONLY="^(case-event|train)$"')
      assert.equal(0, status, text)
      assert.is_truthy(text:find('a: 2 of 2 passed', 1, true), text)
      assert.is_truthy(summary 'a':find('luajit: ' .. kit .. '/bin/luajit', 1, true), summary 'a')
      assert.is_truthy(summary 'a':find 'train: ok, %d+ passed, 0 failed', summary 'a')
   end)

   it('a: shows what failed, and ends with 1', function()
      local case = kit .. '/spec/cuda/event_case.lua'
      os.execute(('cp %s %s.kept'):format(case, case))
      write(case, "it('fails', function() assert.equal(1, 2) end)\n")
      local text, status = run('a', 'ONLY="^case-event$"')
      os.execute(('mv %s.kept %s'):format(case, case))
      assert.equal(1, status, text)
      assert.is_truthy(text:find('case-event: FAILED', 1, true), text)
      assert.is_truthy(text:find('not ok 1', 1, true), text)
   end)

   it('a: ends at its limit, and counts what did not run', function()
      local text, status = run('a', 'LIMIT=1 ONLY="^(case-near|op-scan|op-all)$"')
      assert.equal(1, status, text)
      assert.is_truthy(text:find('a: 0 of 3 passed', 1, true), text)
   end)

   it('a: ends with 2 and a sentence where there is no GPU, or no such task', function()
      local text, status = run('a', 'TIDE_EMULATE_DEVICES=0')
      assert.equal(2, status, text)
      assert.is_truthy(text:find('a: the smoke test failed', 1, true), text)
      text, status = run('a', 'ONLY=nothing')
      assert.equal(2, status, text)
      assert.is_truthy(text:find("no task is called 'nothing'", 1, true), text)
   end)

   it('a: says which library is missing', function()
      os.execute(('mv %s/build/libcublasLt.so.13 %s/kept'):format(kit, where))
      local text, status = run('a', 'ONLY="^case-event$"')
      os.execute(('mv %s/kept %s/build/libcublasLt.so.13'):format(where, kit))
      if text:find('cuBLASLt: /', 1, true) then return end        -- the machine has one
      assert.equal(2, status, text)
      assert.is_truthy(text:find('libcublasLt.so.13 was not found', 1, true), text)
   end)

   it('a: has the op specs of the emulation', function()
      local f = assert(io.open 'spec/cuda/firstday/a')
      local script = f:read '*a'
      f:close()
      local files = shell "grep -ho 'spec/[a-z]*/[a-z0-9_]*_spec.lua' spec/cuda/emulated_*_spec.lua"
      local n = 0
      for name in files:gmatch 'spec/op/([%w_]+)_spec' do
         n = n + 1
         assert.is_truthy(script:find('[ -]' .. name .. '[ ;]'), name)
      end
      for file in files:gmatch 'spec/grad/[%w_]+%.lua' do
         n = n + 1
         assert.is_truthy(script:find(file, 1, true), file)
      end
      assert.is_true(n >= 18, n .. ' files')
   end)

   it('b: puts cases under each tool; a finding is a failure', function()
      local text, status = run('b', 'ONLY="^memcheck-conv1d$"')
      if not text:find('compute-sanitizer is missing', 1, true) then
         assert.equal(2, status, text)                            -- a toolkit without a GPU
      end
      write(where .. '/tools/compute-sanitizer', '#!/bin/bash\n[ "$1 $2" = "--tool memcheck" ] || '
         .. 'exit 3\nshift 6\n[ -z "$FOUND" ] || exit 9\nexec "$@"\n')
      text, status = run('b', 'ONLY="^memcheck-conv1d$"')
      assert.equal(0, status, text)
      assert.is_truthy(text:find('b: 1 of 1 passed', 1, true), text)
      text, status = run('b', 'ONLY="^memcheck-conv1d$" FOUND=1')
      assert.equal(1, status, text)
      assert.is_truthy(text:find('memcheck-conv1d: FAILED (9)', 1, true), text)
   end)

   it('c: times every row, and fails without a GPU', function()
      local text, status = run('c', 'TIDE_EMULATE_CAPABILITY=90 ARGS="--small --once '
         .. '--no-peer --peaks 10,20"')
      assert.equal(0, status, text)
      local f = assert(io.open(where .. '/out/c/cuda.json'))
      local rows = f:read '*a'
      f:close()
      local n = select(2, rows:gsub('"name":', ''))
      assert.equal(n, select(2, rows:gsub('"ours":[%d.]+', '')))
      assert.equal(n, select(2, rows:gsub('"share":[%d.]+', '')))
      assert.is_truthy(rows:find('"llama-step-captured"', 1, true))
      text, status = run('c', 'ARGS="--small --no-peer" TIDE_EMULATE_DEVICES=0')
      assert.equal(1, status, text)
      assert.is_truthy(text:find("bench: skipped, device 'cuda' cannot be used", 1, true), text)
   end)

   it('d: profiles rows by name', function()
      write(where .. '/tools/ncu', '#!/bin/bash\nwhile [ "${1#*luajit}" = "$1" ]; do shift; done\n'
         .. '"$@" || exit\necho "  some_kernel(int)"\necho "    Duration  us  3"\n')
      local text, status = run('d', 'ROWS="add conv1d" ARGS=--small')
      assert.equal(0, status, text)
      assert.is_truthy(text:find('== conv1d', 1, true), text)
      assert.is_truthy(text:find('Duration', 1, true), text)
   end)
end)

describe('the CUDA rows of the benchmark', function()
   local run = ('luajit kernels/bench/run.lua --device cuda --build %s --small --no-peer '
      .. '--out /dev/null '):format(emulated.folder)

   it('are skipped with one line where there is no GPU', function()
      local text, status = shell('TIDE_EMULATE_DEVICES=0 ' .. run)
      assert.equal(0, status, text)
      assert.equal(1, select(2, text:gsub('\n', '')), text)
      assert.is_truthy(text:find("^bench: skipped, device 'cuda' cannot be used: "), text)
   end)

   it('are listed, chosen by a part of their name, and refused by another', function()
      local text, status = shell(run .. '--list gemm-up')
      assert.equal(0, status, text)
      assert.equal('gemm-up-fwd\ngemm-up-dx\ngemm-up-dw\n', text)
      text, status = shell(run .. 'nothing')
      assert.equal(2, status)
      assert.is_truthy(text:find("no row is called 'nothing'", 1, true), text)
   end)

   it('leave out what another chip has, and time the rest', function()
      local text, status = shell('TIDE_EMULATE_CAPABILITY=80 ' .. run .. 'attention-d64')
      assert.equal(0, status, text)
      assert.is_truthy(text:find 'attention%-d64%-wgmma%-fwd%s+not on this chip: .*wgmma', text)
      assert.is_truthy(text:find 'attention%-d64%-both%s+[%d.]+ [mu]s', text)
   end)

   it('say that a row failed, go on, and end with 1', function()
      local text, status = shell('TIDE_EMULATE_FAULT=1 ' .. run .. 'add copy')
      assert.equal(1, status, text)
      assert.is_truthy(text:find '\nadd%s+FAILED: .*illegal memory access', text)
      assert.is_truthy(text:find '\ncopy%s+FAILED: ', text)
   end)
end)
