"""Train a tiny GPT-2 with the Trainer of transformers on made-up tokens; nothing is downloaded."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Tokens(Dataset):
    def __init__(self, count: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.rows = torch.randint(0, 96, (count, 16), generator=draw)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=3,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=Tokens(64)).train()
    print("trained", sum(one.numel() for one in model.parameters()), "parameters")


if __name__ == "__main__":
    main()
