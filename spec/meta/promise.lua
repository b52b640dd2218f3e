-- What holds each promise of the guides. promise_spec.lua reads this.
--
-- By file, one row a sentence: { 'the words it begins with', SPEC, TEST [, SPEC, TEST ...] }. SPEC
-- is a file of spec/ without "_spec.lua" (or a C file), TEST the name of a test there, or how it
-- begins. A sentence that promises nothing a test can hold says why: { 'its words', definition =
-- 'why' }. { section = 'Heading', definition = 'why' } stands for all sentences below a heading.
-- Case, line breaks and punctuation make no difference. Rows may name sentences without a word of
-- promise, too.

local promise = {}

promise['lua/guide/generate.md'] = {
   { 'Where the context has no room', 'recipe/chat', 'forgets the oldest turns' },
   { 'seed the draws', 'lua/rows', 'draws alike on one thread and on two' },
   { 'The letters of a special token', 'recipe/chat',
      'takes what reads as a special token in a message as text' },
}

promise['lua/guide/embed.md'] = {
   { 'What holds for all of them', 'native/embed.c', 'two_contexts', 'native/thread.c',
      'contexts_in_parallel', 'native/embed.c', 'manners' },
   { 'tide_from_memory makes a tensor', 'native/embed.c', 'memory_of_the_host', 'package/embed',
      'in Python shares arrays with numpy' },
   { 'The lender keeps the memory', 'native/embed.c', 'memory_given_back' },
}

promise['lua/guide/prompt.md'] = {
   { 'With -n N every line runs', 'lua/prompt_ranks', 'runs a line on all of them' },
   { 'It names the ranks that are missing', 'lua/prompt_ranks',
      'names the ranks that miss a collective' },
   { 'Under mpirun or srun each process is a rank', 'lua/prompt_mpi', 'runs a line on all of them',
      'lua/prompt_mpi', 'names the ranks that miss a collective' },
   { 'The running line is interrupted', 'lua/prompt_mpi', 'is interrupted any number' },
   { 'When a rank dies', 'lua/prompt_mpi', 'ends with the code of os.exit' },
}

promise['README.md'] = {
   { 'No silent wrongness', 'comm/mismatch', 'is tried in at least 150 ways',
      'parallel/cp_documents', 'are combined by the rule, or refused', 'grad/tape',
      'notices saved tensors that were changed in place' },
   { 'The same numbers on every mesh', 'recipe/parallel', 'equals one rank on every mesh' },
   { 'One rank and sixteen give', 'recipe/bits', 'one rank and sixteen have the same losses' },
   { 'Two runs with the same mesh', 'recipe/bits',
      'two runs with the same mesh agree, on any number of threads', 'op/all',
      'gives the same bits twice and on any number of threads', 'recipe/smoke',
      'resumes and ends at the same weights as without a break' },
   { 'A plan prints what becomes of every parameter', 'parallel/plan',
      'prints what happens to which part', 'recipe/parallel',
      'prints a plan for ranks that are not there, and runs nothing' },
   { 'Measured against PyTorch', definition = 'says how the table was made' },
   { 'A run is never written over', 'recipe/smoke', 'writes over a run only when told to' },
   { 'Every recipe has --help', 'recipe/smoke', 'as every recipe, has --help' },
   { 'make install puts tide lua', 'package/install', 'runs scripts from its own files' },
   { 'Every program in a guide', 'recipe/guide', 'the guide' },
   { 'Each line is the same bits', 'recipe/bits',
      'two runs with the same mesh agree, on any number of threads' },
   { 'MPI processes give the bits', 'comm/mpi', 'gives the bits of as many threads' },
   { 'Every collective is compared', 'comm/mismatch', 'is tried in at least 150 ways' },
   { 'When one rank fails', 'comm/fault', 'ends ', 'ffi/host',
      'ends although a rank loops for ever, and shows the cause once' },
   { 'tide run trace DIR records every rank', 'comm/trace', 'leaves a file a rank', 'comm/trace',
      'names who came last, by how much, and where' },
   { 'Without plan the same options train', 'recipe/parallel',
      'equals one rank: 50 steps on two axes, the sequence cut' },
   { 'tensor parallel column row vocabulary', 'parallel/logits', 'are never whole' },
   { 'A checkpoint of any mesh resumes', 'recipe/parallel', 'goes on on another mesh' },
   { 'It is opened at the first use', 'cuda/emulated_all', 'have a row for every op but views' },
   { 'No chip has run it yet', definition = 'what is missing, not a promise' },
   { 'Two contexts share nothing', 'native/embed.c', 'two_contexts', 'meta/state',
      'of the library: two facts of the process' },
   { 'The library prints nothing', 'native/embed.c', 'manners', 'meta/style',
      'of the library: no exit, output, signals or locale' },
   { 'make uninstall removes', 'package/install', 'is removed as a whole' },
   { section = 'Benchmarks', definition = 'measurements' },
}

promise['core/README.md'] = {
   { 'While TIDE_ABI stays', 'core/options', 'of an older header is taken',
      'core/options', 'with another ABI is refused' },
   { 'Nothing here prints', 'meta/style', 'of the library: no exit, output, signals or locale' },
   { 'All state hangs on a tide ctx', 'meta/state', 'of the library: two facts of the process' },
   { 'A file may use its own folder', 'meta/layer', 'of core/' },
   { '2k kernels arithmetic', 'meta/layer',
      'of kernels: core/base, the kernel interface, their own backend' },
   { '5 tide c the composition root', 'meta/layer', 'of core/' },
   { 'No op does any of that itself', 'meta/style', 'of allocation: the context hook, not malloc'
      },
   { 'What belongs to no context', 'meta/style', 'of allocation: the context hook, not malloc' },
   { 'The public function and the derivative rule', 'meta/op_table',
      'has one family of files for an op, on every side' },
   { 'The fast kernels and their rows', 'op/all', 'equals the reference in ' },
   { 'Attention takes document position pairs', 'parallel/cp_context', 'suffices, on any mesh' },
   { 'With an arena a graph', definition = 'why another design was left' },
   { 'linear cross entropy makes its gradients', 'parallel/logits', 'are never whole' },
   { 'No oneDNN', definition = 'a decision; the benchmarks use it as a peer' },
}

promise['core/GLOSSARY.md'] = {
   { 'failure', definition = 'the meaning of a word' },
}

promise['core/comm/README.md'] = {
   { 'A transport exchanges calls', definition = 'what lies where' },
   { 'collective c', definition = 'what lies where' },
   { 'MPI mpi exchange c', definition = 'what lies where' },
   { 'Rank 2 fails in a call', 'comm/mpi_fault', 'tells the others of an abort',
      'comm/mpi_fault', 'returns early is named' },
   { 'Every later call of the communicator', 'comm/matrix',
      'ends the job, at any point, in any collective' },
   { 'If rank 2 hangs', 'comm/mpi_fault',
      'is stopped is named after the timeout, with its last call' },
   { 'As the processes end', 'comm/mpi_fault', 'fails like all others speaks for them' },
   { 'When such a call has returned', 'cuda/near_case',
      'fail on every rank if one device call fails' },
   { 'comm h is the table', definition = 'names the transports' },
   { 'What is at most 2 KiB', 'comm/comm',
      'keep small payloads of one call after the other apart', 'comm/protocol',
      'end, whatever fails whenever' },
   { 'A call that fails after it has returned', 'cuda/nccl_case',
      'of the network is told by every rank that waits' },
   { 'Ranks whose contexts share a GPU', 'cuda/near_case',
      'give the bits that ranks on the host get' },
   { 'The hosts meet at entry and exit', 'cuda/near_case', 'do not make the host wait' },
   { 'If one rank cannot enqueue its own', 'cuda/near_case',
      'fail on every rank if one device call fails' },
   { 'If some cannot be', definition = 'how an abort over MPI is made' },
}

promise['core/THREADING.md'] = {
   { 'Its memory stays with the context', 'ffi/door', 'refuses each wrong handle' },
   { 'Every call on the context', definition = 'asks this of the caller' },
   { 'Contexts share nothing', 'native/thread.c', 'contexts_in_parallel', 'native/thread.c',
      'handed_over' },
   { 'It reads and writes the operands', 'comm/flight',
      'may be read while they are sent, and nothing else' },
   { 'Everything in struct tide ctx', definition = 'a rule for who changes the code' },
   { 'A release on another thread', 'native/thread.c', 'foreign_comm' },
}

promise['kernels/README.md'] = {
   { 'It never sees a tensor', 'meta/layer',
      'of kernels: core/base, the kernel interface, their own backend', 'meta/style',
      'of allocation: the context hook, not malloc' },
   { 'kernel def kernel def lists', 'meta/op_table',
      'has a reference kernel for f32 or an integer of every op that computes' },
   { 'No row means an error', 'op/dispatch',
      'is an error that says op, dtype and device, and what to do', 'op/dispatch',
      'must be on one device: nothing moves unless asked' },
   { 'ref the definition of every op', 'meta/op_table',
      'has a reference kernel for f32 or an integer of every op that computes' },
   { 'The result does not depend on the number of threads', 'op/all',
      'gives the same bits twice and on any number of threads' },
   { 'Work is cut by index', 'op/all', 'gives the same bits twice and on any number of threads' },
   { 'Sums run in f32', 'op/round', 'in sums and products', 'op/all',
      'gives the same bits twice and on any number of threads' },
   { 'Denormals count as zeros', 'op/denormal', 'is zero to unary ops and arithmetic',
      'op/denormal', 'gives the same bits with any number of threads' },
   { 'Loops that the compiler vectorises', 'op/isa', '= ' },
   { 'A masked pair has no effect', 'kernel/attention.c', 'test_not_finite' },
   { section = 'Products: what was tried', definition = 'measurements' },
   { 'A chunk of rows packs every span', definition = 'a measurement' },
   { 'Backward the gradients of states', definition = 'how the scan is cut' },
   { 'No sum depends on blocks', 'op/scan',
      'does not depend on the number of threads, backward included' },
   { 'The forward keeps the state', definition = 'what the scan keeps' },
   { 'Gradients of dt dt bias and A', 'op/scan_wild', 'over 200 random scans', 'op/scan_wild',
      'with one step in 25 a hundred thousand times the others' },
   { 'tide has no FP8 dtype', definition = 'what there is not' },
   { 'ref goes through 8 bit codes', 'op/fp8', 'rounds to e4m3 and e5m2 as PyTorch does' },
   { 'Codes are the same on all three', 'op/fp8', 'rounds to e4m3 and e5m2 as PyTorch does',
      'cuda/device_case', 'is that of the host: ' },
   { 'libtide cuda so is opened', 'cuda/absent', 'may lack the library' },
   { 'cuda cuh has loads and stores', definition = 'what is in which file' },
   { 'No atomics no order by chance', 'cuda/device_case', 'gives the same bits twice',
      'cuda/device_case', 'are in index order in ' },
   { 'Tested without a GPU', 'cuda/emulated_op', 'pass ' },
}

promise['bindings/README.md'] = {
   { 'A host that owns all memory gives', 'native/memory.c', 'owns_all' },
   { 'No second try have calls', 'ffi/own', 'collects and tries again when memory runs out',
      'op/inplace', 'draw once when a first try found no memory' },
   { 'Finalizers run in any order', 'ffi/own',
      'gives everything back when handles are dropped in any order' },
   { 'x release gives the bytes back', 'ffi/own',
      'gives the bytes back at release, keeps the handle' },
   { 'C never calls Lua', 'meta/abi', 'takes no function pointers: C is called, C never calls Lua'
      },
   { 'Errors leave the loop', 'grad/host', 'keeps the error object and recording as they were' },
   { 'A loop whose steps all need the same', 'lua/private', 'forces no collection: ' },
   { 'own spend turns a reference', 'lua/private', 'loses its bytes at once, and a use says why',
      'lua/private', 'stays for the tape and for views until they let go' },
   { 'own keep marks what user code', 'lua/private',
      'is left alone where user code has seen it, and where it is no tensor' },
   { 'No buffer is shared between calls', 'ffi/finalizer',
      'leaves results and shapes of the op under way alone' },
   { 'Handles are no table keys', 'ffi/tensor', 'compares handles by identity, elements by equal'
      },
   { 'Reloading the Lua modules', 'ffi/tensor',
      'is one metatype, also when the modules are loaded again' },
   { 'A loop that calls nothing of tide', 'ffi/host', 'ends although a rank loops for ever' },
   { 'The library writes each', 'meta/style', 'of loops: no "in pairs(" in what a recipe runs' },
   { 'In your own recipes do the same', definition = 'advice' },
   { 'The operators of tensors are therefore', 'ffi/jit',
      'leaves operators to the interpreter, with the same results' },
}

promise['spec/README.md'] = {
   { 'The helper named in busted', definition = 'how the specs begin' },
   { 'kernel C programs', definition = 'what is in which folder' },
   { 'deep fuzz makes random cases', 'meta/state', 'of the oracles: nothing of tide' },
   { 'The C specs by file', definition = 'what is in which file' },
   { 'A test states what must be true', definition = 'asks this of the author' },
   { 'The cases that only a device has', 'cuda/near_case', 'does not make the host wait: ' },
}

promise['lua/guide/checkpoint.md'] = {
   { 'It holds safetensors files', 'lua/checkpoint', 'that is damaged anywhere is refused' },
   { 'It is complete or it does not exist', 'lua/folder', 'takes one that was killed' },
   { 'A run resumes from it bit for bit', 'lua/train', 'resumes to the last bit',
      'parallel/checkpoint', 'goes on with any number of ranks' },
   { 'Every rank calls save and load', definition = 'asks this of the caller' },
   { 'A load checks the manifest first', 'recipe/smoke',
      'notices a damaged checkpoint before using it' },
   { 'A symbolic link in the folder', 'lua/folder',
      'goes, and what it leads to stays, in retention' },
   { 'A process that is killed at any point', 'lua/folder',
      'in a save of a step that is there loses nothing; the next save repairs' },
   { 'Without one of these a folder that holds a run', 'lua/train',
      'writes over no run unless it is told to' },
   { 'Going on from an earlier checkpoint', 'lua/train',
      'goes on from an earlier checkpoint and keeps the later ones aside' },
   { 'If one of them differs', 'lua/train', 'refuses to resume on other data or in other steps' },
}

promise['lua/guide/context.md'] = {
   { 'Use it when one sequence', definition = 'advice' },
   { 'attach wraps attend', 'parallel/cp_train',
      'replaces the inner call, and gives it back' },
   { 'cut returns this ranks part', 'parallel/cp_batch', 'is padded with the value of each field'
      },
   { 'Every call of the model takes', 'parallel/cp_train', 'is needed, and so is the context' },
   { 'Give cut the same rows', 'parallel/cp_agree',
      'are told so in any step, and cutting itself does not communicate' },
   { 'With cp make cp batch and ctx', 'recipe/cp', 'equals one rank, packed' },
   { 'It compares the output of every layer', 'parallel/cp_train',
      'names what differs first, on every rank' },
   { 'not set a class', 'parallel/cp_train',
      'wants to know of each class whether its tokens see each other' },
   { 'One rule combines them', 'parallel/cp_documents', 'are combined by the rule, or refused',
      'parallel/cp_documents', 'heeds what any field says, on one rank and on two' },
   { 'Padding sees nothing', 'parallel/cp_batch',
      'says with its documents which pairs attention sees', 'lua/mamba',
      'keeps padding (document -1) apart from the documents',
      'parallel/cp_documents', 'do not train what lies behind a document' },
   { 'document the zigzag', definition = 'the meaning of a word' },
   { 'Real lengths cu real', 'parallel/thd', 'knows padding from the layout' },
   { 'Masks beside lengths', 'parallel/cp_documents', 'take masks that say what the lengths say'
      },
   { 'a2a p2p needs inner', 'parallel/cp_agree', 'have neighbours inside and the others outside'
      },
   { 'With a2a p2p a rank that leaves out', 'comm/fault',
      'are told so at once, each with its call' },
   { 'make cp batch and ctx drops', definition = 'what the original does' },
   { 'one rank always a null context', definition = 'what the original does' },
   { 'padding behind the last document', 'parallel/thd',
      'gives padding to the last document only where slots are given' },
}

promise['lua/guide/loop.md'] = {
   { 'train run is the same', 'lua/run', 'driven by hand is train.loop' },
   { 'Every rank makes the same calls', definition = 'asks this of the caller' },
   { 'progress is any object', definition = 'what the option takes' },
   { 'A step whose gradient is not finite', 'lua/train',
      'leaves parameters untouched by a step that is not finite' },
   { 'The order of the data is a function', 'lua/sampler',
      'gives the same global batch whatever the number of ranks' },
   { 'It keeps no state', 'lua/optim', 'take the learning rate from a function of the step' },
}

promise['lua/guide/module.md'] = {
   { 'A name that is not known is an error', 'lua/util', 'names the nearest known option' },
   { 'A constructor that forgets', 'lua/module', 'whose constructor forgets a step' },
   { 'Here the next id is always', definition = 'the data of the example' },
   { 'Every number is a function of the seed', 'lua/module', 'depend on seed and path alone',
      'parallel/fsdp_param', 'has the same initial value on every mesh' },
   { 'load state dict state is strict', 'lua/module',
      'that does not fit changes nothing and lists every difference' },
   { 'What it returns replaces', 'lua/module',
      'replace inputs and outputs, in order, until removed' },
   { 'Hooks of the model and of its head', 'lua/module',
      'see arguments and loss at the root, logits at the head' },
   { 'A backward hook of a module that is fed', 'lua/module',
      'of modules fed with ids get no gradients and may give none' },
}

promise['lua/guide/optimizer.md'] = {
   { 'An update reads a block', 'lua/adamw8bit', 'needs no f32 moments of a parameter' },
   { 'How far does rounding move', 'op/update_8bit', 'keeps within its bound' },
   { 'What lies in checkpoints', 'lua/adamw8bit', 'goes on from a checkpoint bit for bit' },
   { 'On a decoder of 115 thousand', 'lua/adamw8bit', 'loses within 2 % of AdamW' },
   { 'A sharded model adds up its pieces', 'lua/optimizers', 'makes the updates of one rank' },
   { 'The first pattern that matches counts', 'lua/optimizers',
      'are refused where they are wrong' },
   { 'A model that is cut over', 'lua/optimizers',
      'of whole matrices refuses a model that is cut' },
   { 'Every way prints the same loss', 'recipe/guide', 'the guide' },
}

promise['lua/guide/published.md'] = {
   { '`verbose = true` lists', 'lua/dialect', 'lists its fields that change nothing' },
   { 'With `mesh` the model', 'lua/pretrained', 'read the bytes that they keep' },
   { '`tide.model.export(run, dir)`', 'recipe/published', 'is learnt on from alike' },
   { 'Attention of `phi3` and `olmo2`', 'lua/folder_ranks', 'has the numbers of transformers' },
}

promise['lua/guide/ranks.md'] = {
   { 'Every way prints the same loss', 'recipe/guide', 'the guide' },
   { 'Every call is compared', 'comm/mismatch', 'is tried in at least 150 ways' },
   { 'ZeRO each rank keeps', 'parallel/fsdp_option',
      'and collectives and bytes sent are those of the price' },
   { 'The fields of a sharded model', 'parallel/fsdp_misuse',
      'that is not whole is named by what reads it' },
   { 'Every rank gets the same batch', 'parallel/logits', 'are never whole', 'parallel/tp_train',
      'is refused where ranks have other models, seeds or batches' },
   { 'On the command line the same plan', 'recipe/parallel',
      'prints a plan for ranks that are not there, and runs nothing' },
   { 'It rehearses them on a copy', 'parallel/plan', 'changes nothing' },
   { 'tide run trace DIR records', 'comm/trace', 'names who came last, by how much, and where' },
}

promise['lua/README.md'] = {
   { 'Objects are made by a call', 'lua/util', 'is called for what new makes' },
   { 'No file here calls C', 'meta/layer', 'of the Lua library: no FFI calls', 'meta/state',
      'of the Lua library: no globals' },
   { 'cuda whether there is a GPU', definition = 'names that are not needed' },
   { 'The finalizers of tides objects', 'ffi/own',
      'ends contexts and tensors of many states without an order' },
   { '3 spaces', 'meta/state', 'of the Lua library: no globals', 'meta/style',
      'of files: each opens with what it is' },
}

promise['lua/guide/models.md'] = {
   { 'fp8 true', 'lua/llama', 'multiplies in FP8 in every Linear but the head' },
   { 'On the CPU it computes the same', 'op/fp8', 'has result and gradients of PyTorch: ' },
   { 'Fields that compute nothing', 'lua/decoder',
      'check every field of a file, also those that compute nothing' },
   { 'A Llama has no window', 'lua/decoder', 'refuse what they cannot compute, naming the field'
      },
   { 'model to bf16 casts', 'lua/mamba',
      'keeps the numbers of the recurrence in f32 where it is told to' },
   { 'One error lists every field', 'lua/published',
      'is refused with all that would change the numbers, in one message' },
   { 'Checkpoints and consolidate write', 'lua/published',
      'has values that readers with strict types take', 'lua/backbone_golden', 'a folder of' },
}

promise['lua/guide/training.md'] = {
   { 'async save true', 'parallel/checkpoint', 'is what train.loop does when asked' },
   { 'A step whose loss or gradient', 'lua/train',
      'leaves parameters untouched by a step that is not finite', 'lua/policy',
      'end the run at the max_skips-th in a row, and not before' },
   { 'Either names rank and tensor', 'comm/matrix', 'is named by rank and tensor, sharded too' },
   { 'A rank that did not use a parameter', 'parallel/unused',
      'adds zeros for parameters that a rank does not use', 'parallel/unused',
      'leaves alone what no rank uses' },
   { 'A plot or a line of metrics', 'lua/train',
      'does not end for a plot or for metrics that cannot be written', 'lua/metric',
      'writes lines that found no room when there is some, each once' },
   { 'resume folder goes on', 'lua/train',
      'goes on from an earlier checkpoint and keeps the later ones aside' },
   { 'Without resume a run is never', 'lua/train', 'writes over no run unless it is told to' },
   { 'tide trace FOLDER merges', 'comm/trace', 'names a rank that never came', 'comm/trace',
      'names who came last, by how much, and where' },
   { 'tide debug trace has the same', definition = 'names functions' },
   { 'While training', 'comm/matrix', 'is named within 20 steps, with ratio and section' },
}

promise['lua/guide/parallel.md'] = {
   { 'With one rank it does not change', 'parallel/parallelizer',
      'shards the model it is given and leaves tensor parallelism alone on one rank' },
   { 'Every rank of the axis gets', 'parallel/tp_train',
      'is refused where ranks have other models, seeds or batches' },
   { 'model loss never gathers', 'parallel/logits', 'are never whole' },
   { 'Gradients need no further sum', 'parallel/tp_train',
      'has whole gradients beside data parallelism' },
   { 'A rank with another model', 'parallel/tp_train',
      'is refused where ranks have other models, seeds or batches', 'parallel/step_misuse',
      'is refused where they begin with other weights' },
   { 'cp context what attention needs', 'parallel/cp_context',
      'are of their calls alone: made and used in turns they change nothing' },
   { 'tide document index', 'op/conv1d', 'counts the boundaries at or below a token' },
   { 'It lays what is held out', 'lua/packed',
      'is evaluated as it is trained: documents by themselves' },
   { 'The layout never changes', 'parallel/mamba_cp', 'with layouts of any order, hidden' },
   { 'Heads and groups need not divide', 'parallel/mamba_cp',
      'splits heads and groups that do not divide' },
   { 'Documents may cross ranks', 'parallel/mamba_cp',
      'keeps NaN within its document, to the bit' },
   { 'reorder chunks', 'parallel/mamba_names', 'reorder chunks, of every document for itself' },
   { 'Ranks own whole rows', 'parallel/fsdp_param',
      'falls on the row whose start is nearest to an equal share', 'parallel/checkpoint',
      'holds each element once' },
   { 'Every rank must run the units', definition = 'asks this of the caller' },
   { 'A trained parameter that no rank uses', 'parallel/fsdp_param',
      'that some ranks do not use takes part with zeros' },
   { 'Gradients are sums over ranks', 'parallel/fsdp_option',
      'trains the same as a sum and as a mean' },
   { 'Parameters are read inside', 'parallel/fsdp_misuse',
      'has no bytes to be read from an update to the next forward in any strategy' },
   { 'What fn writes', 'parallel/fsdp_param', 'keep what every rank writes into them',
      'parallel/fsdp_param', 'must be written alike, and by a function that ends alike' },
   { 'Checkpoints every rank writes', 'parallel/checkpoint', 'is read in part: each rank its own',
      'parallel/checkpoint', 'goes on with any number of ranks' },
   { 'A plan is rehearsed', 'parallel/plan', 'changes nothing' },
   { 'price runs two steps', 'parallel/fsdp_option',
      'and collectives and bytes sent are those of the price', 'parallel/plan',
      'is the memory that a forward keeps' },
   { 'HAVE NVFSDP', definition = 'names a constant of the original' },
   { 'parallel plan register', 'parallel/plan',
      'is applied in its place, rehearsed, shown, written down and read' },
}

promise['lua/guide/finetune.md'] = {
   { 'This page says what it does', definition = 'says what the page is about' },
   { 'Losses do not depend on the mesh', 'recipe/finetune',
      'loses on every mesh what one rank loses', 'recipe/finetune', 'keeps the best checkpoint',
      'recipe/finetune_lora', 'lose on every mesh what they lose on one rank' },
   { 'With lora rank R every weight', 'lua/lora', 'changes nothing at first' },
   { 'lora targets', 'lua/lora', 'changes nothing at first' },
   { 'fully_shard gathers frozen parameters', 'lua/lora', 'keeps frozen bf16 weights' },
   { 'A base in NF4 loses on any mesh', 'recipe/finetune_nf4',
      'loses on every mesh what it loses on one rank', 'recipe/finetune_nf4',
      'loses the same with trained norms' },
   { 'Checkpoints hold whole codes', 'recipe/finetune_nf4', 'goes on over other ranks' },
   { 'source lets the sampler', 'lua/packed', 'splits, cuts or refuses long documents' },
   { 'Before the first step', 'lua/lora', 'changes nothing at first' },
   { 'They go out to a folder that PEFT reads', 'lua/lora', 'goes out to a folder of peft' },
   { 'teacher cache FILE holds these ids', 'recipe/distil', 'with the most likely ids of the' },
   { 'model label_logprobs ids labels', 'recipe/dpo', 'loses on every mesh what one rank' },
}

return promise
