-- Log-probabilities of text under a checkpoint or a published folder, and accuracy on
-- multiple-choice questions, by the rules of lm-evaluation-harness. `tide score` is the same
-- program.
--
--    tide run recipes/logprob.lua --from runs/pretrain --text "local function"
--    tide run -n 4 recipes/logprob.lua --from models/llama --file book.txt
--    tide run recipes/logprob.lua --from models/llama --choices questions.jsonl
--    tide run recipes/logprob.lua --from models/llama --ids "1 450 4996 17354"
--
-- Prints the sum over tokens and perplexities by tokens, words and bytes; with --tokens, the value
-- of each token. In Lua these are tide.train.evaluate.perplexity and .choices, and
-- tide.train.score.logprob.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

require('tide.util.args').main(require 'tide.train.score_command', 'logprob', ...)
