-- The collectives of spec/comm/cases.lua, by name.
return { 'all_reduce', 'all_reduce_list', 'reduce', 'broadcast', 'all_gather', 'all_gather_v',
   'reduce_scatter', 'reduce_scatter_v', 'all_to_all', 'all_to_all_v', 'gather', 'scatter',
   'send_recv', 'chain' }
