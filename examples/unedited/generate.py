"""Let a small language model write: a loop over transformers by hand, training first, then generating."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=32, n_embd=32, n_layer=2, n_head=2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 96, (4, 16))

model.train()
for number in range(3):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {number}: loss {loss.item():.6f}")

model.eval()
written = model.generate(tokens[:1, :4], max_new_tokens=5, do_sample=False, pad_token_id=0)
print(written.tolist())
