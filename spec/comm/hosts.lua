-- Two hosts on one machine, for specs: two network namespaces, joined by a cable, each with a host
-- name and a folder for temporary files of its own. mpirun runs in the first and reaches the second
-- by a script in the place of ssh. A connection with data on the way is given up after some seconds
-- (tcp_retries2), for which mpirun waits when the cable is cut. Needs root and iproute2.

local mpi = require 'spec.comm.mpi_run'

local hosts = {}
hosts.__index = hosts

local function sh(command) return mpi.shell(("sh -c '%s'"):format(command)) end

-- A pair of hosts, or nil and the reason.
function hosts.new()
   local name = os.tmpname()                -- unique; the tag, too
   os.remove(name)
   local tag = name:sub(-6)
   local self = setmetatable({ a = 'tideA' .. tag, b = 'tideB' .. tag, dir = name .. '.d' }, hosts)
   local names = { A = self.a, B = self.b, D = self.dir, T = tag }
   local out, status = sh((([[set -e; mkdir -p D/A D/B
ip netns add A; ip netns add B
ip link add vaT netns A type veth peer name vbT netns B
ip -n A addr add 10.77.0.1/24 dev vaT; ip -n B addr add 10.77.0.2/24 dev vbT
ip -n A link set lo up; ip -n B link set lo up
ip -n A link set vaT up; ip -n B link set vbT up
for h in A B; do ip netns exec $h sysctl -qw net.ipv4.tcp_retries2=5; done
ip netns exec A unshare -u true]]):gsub('%f[%w](v?[ab]?)([ABDT])%f[%W]', function(head, key)
      return head .. names[key]
   end)))
   if status ~= 0 then
      self:close()
      return nil, 'network namespaces are not allowed here: ' .. out:sub(1, 120)
   end
   self.link = 'vb' .. tag
   local f = assert(io.open(self.dir .. '/agent', 'w'))
   f:write(('#!/bin/sh\nshift\nexec ip netns exec %s unshare -u sh -c "hostname %s; '
      .. 'export TMPDIR=%s/B; $*"\n'):format(self.b, self.b, self.dir))
   f:close()
   sh('chmod +x ' .. self.dir .. '/agent')
   return self
end

-- `tide run WORDS` as one rank on each host. Output, status, seconds.
function hosts:job(words, limit)
   -- The far daemon may outlive a cut cable; it must not hold our pipe.
   local out = self.dir .. '/out'
   local _, status, span = mpi.shell(('ip netns exec %s unshare -u sh -c "hostname %s; '
      .. 'export TMPDIR=%s/A; '
      .. 'exec mpirun --allow-run-as-root --quiet --mca plm_rsh_agent %s/agent '
      .. '--mca btl self,tcp --mca btl_tcp_if_include 10.77.0.0/24 '
      .. '--mca oob_tcp_keepalive_time 20 --mca oob_tcp_keepalive_intvl 5 '
      .. '--mca oob_tcp_keepalive_probes 2 '    -- the far daemon hears nothing of the end, either
      .. '--mca oob_tcp_if_include 10.77.0.0/24 -H 10.77.0.1:1,10.77.0.2:1 -np 2 '
      .. '%s run %s" >%s 2>&1 </dev/null')
      :format(self.a, self.a, self.dir, self.dir, mpi.program, words, out), limit)
   local f = assert(io.open(out))
   local text = f:read '*a'
   f:close()
   return text, status, span
end

-- True once nothing runs on the second host.
function hosts:is_quiet()
   local _, status = sh(('for i in $(seq 1500); do test -z "$(ip netns pids %s)" && exit 0; '
      .. 'sleep 0.1; done; exit 1'):format(self.b))
   return status == 0
end

-- A shell command with the second host's network, such as `tc`; {link} is its end of the cable.
function hosts:network(command)
   return sh(('ip netns exec %s %s'):format(self.b, (command:gsub('{link}', self.link))))
end

function hosts:close()
   sh(('ip netns pids %s 2>/dev/null | xargs -r kill -9; ip netns pids %s 2>/dev/null | '
      .. 'xargs -r kill -9; ip netns del %s; ip netns del %s; rm -rf %s'):format(self.a, self.b,
      self.a, self.b, self.dir))
end

return hosts
