-- Token sources, samplers, chats and the byte tokenizer, each loaded at first use.

return require 'tide.util.lazy' ('data', {
   bytes = 'tide.tokenizer.bytes', tokens = 'tokens', text = 'text', sampler = 'sampler',
   entropy = 'entropy', batch = 'batch', packed = 'packed', survey = 'survey',
   chat = 'chat', jsonl = 'jsonl', record = 'record', megatron = 'megatron', mixture = 'mixture',
   choices = 'choices', preference = 'preference', image = 'image',
   image_processor = 'image_processor', vision = 'vision',
})
