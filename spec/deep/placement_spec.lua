-- Tensors moved between placements over threads: more of the pairs of spec/comm.

local case = require 'spec.comm.placement_case'

describe('tensors on meshes of threads', function()
   for _, mesh in ipairs(case.meshes) do
      for _, kind in ipairs { 'sum', 'mean', 'max' } do
         it(('%s, Partial(%s)'):format(case.text(mesh), kind), function()
            case.check(mesh, kind, kind == 'sum' and mesh[3] or mesh[3] * 2 + 1)
         end)
      end
   end
end)
