"""A tiny GPT-2 under `Trainer` learns to count: writes its rows and its predictions.

counting_program.py FOLDER: trains in FOLDER/run, stops in the middle, and resumes.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import tokenmill
from tokenmill.huggingface import TokenRows

VOCAB, STOP = 29, 5


class Stop(TrainerCallback):
    def on_step_end(self, arguments, state, control, **_):
        control.should_training_stop = control.should_save = state.global_step == STOP


class Recorded(GPT2LMHeadModel):
    seen: list = []  # noqa: RUF012

    def forward(self, input_ids, labels=None, **others):
        if self.training:
            self.seen.append((input_ids.tolist(), labels.tolist()))
        return super().forward(input_ids=input_ids, labels=labels, **others)


def make_trainer(folder, callbacks):
    torch.manual_seed(0)
    tokens = tokenmill.Tokens.of(np.arange(16 * 32 + 1) % VOCAB)
    shape = {"n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
    arguments = TrainingArguments(
        str(folder / "run"),
        train_sampling_strategy="sequential",
        per_device_train_batch_size=8,
        num_train_epochs=40,
        learning_rate=1e-2,
        dataloader_num_workers=1,
        dataloader_persistent_workers=True,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    rows = TokenRows(tokens, seq_len=16, seed=1)
    model = Recorded(GPT2Config(vocab_size=VOCAB, **shape))
    return Trainer(model, arguments, train_dataset=rows, callbacks=callbacks)


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    make_trainer(folder, [Stop()]).train()
    trainer = make_trainer(folder, [])
    trainer.train(resume_from_checkpoint=str(folder / "run" / f"checkpoint-{STOP}"))
    model = trainer.model.eval()
    with torch.no_grad():
        logits = model(torch.arange(4, 20)[None]).logits
    result = {"seen": Recorded.seen, "predicted": logits.argmax(-1)[0].tolist()}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
