"""datatrove's files: `00000_train.ds` with its index and metadata; no document crosses files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import tokenmill.dataset.opening
from tokenmill.convert.borders import cut_between, find_starts
from tokenmill.convert.targets.protocol import Advance, FileJob, TokenRange, choose_dtype
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import TokenizerError
from tokenmill.storage.files import AtomicFile, write_file
from tokenmill.store.tokens import Tokens


class Datatrove:
    """Files of at least `tokens_per_shard` tokens, three names each."""

    keeps_documents = True
    keeps_empty = True
    eot = None

    def plan(self, dataset: Dataset, splits: list[str], tokens_per_shard: int) -> Iterator[FileJob]:
        dtype, tokenizer = choose_dtype(dataset), _tokenizer_name(dataset)
        for split in splits:
            tokens = dataset[split]
            for number, (start, stop) in enumerate(cut_between(tokens, tokens_per_shard)):
                name = f"{number:05}_{split}.ds"
                part = TokenRange(tokens=tokens, start=start, stop=stop, dtype=dtype)
                told = f"{tokenizer}|{dtype.itemsize}\n{len(part)}\n{_humanize(len(part))}"
                # The ids last: a `.ds` file is there with all that belongs to it.
                yield FileJob(name=f"{name}.metadata", tokens=0, write=partial(_write_text, told))
                yield FileJob(name=f"{name}.index", tokens=0, write=partial(_write_index, part))
                yield FileJob(name=name, tokens=len(part), write=part.write)

    def open(
        self, folder: Path, splits: list[str], _eot_id: int | None = None
    ) -> dict[str, Tokens]:
        opened = tokenmill.dataset.opening.open(folder, format="datatrove")
        return {split: opened[split] for split in splits}


def _tokenizer_name(dataset: Dataset) -> str:
    if dataset.manifest is not None:
        return dataset.manifest.tokenizer
    try:
        return dataset.tokenizer.name
    except TokenizerError:
        return "Unknown Tokenizer"


def _humanize(count: int) -> str:
    """A number of tokens as datatrove writes it for people, with its package humanize.

    >>> [_humanize(count) for count in (950, 90048, 999_999, 1_234_567)]
    ['950 T', '90.0 kT', '1.00 MT', '1.23 MT']
    """
    thousands, digits = divmod(len(str(count)) - 1, 3)
    amount = f"{count / 1000**thousands:.{2 - digits}f}"
    if amount == "1000":
        amount, thousands = "1.00", thousands + 1
    return f"{amount} {('', *'kMGTPE')[thousands]}T"


def _write_text(text: str, path: Path, _: Advance) -> None:
    write_file(path, text.encode())


def _write_index(part: TokenRange, path: Path, _: Advance) -> None:
    """Where each document ends: the starts but the first, and the end."""
    with AtomicFile(path) as file:
        for number, starts in enumerate(find_starts(part.tokens, part.start, part.stop)):
            file.write((starts[not number :] - part.start).astype("<u8"))
        file.write(len(part).to_bytes(8, "little"))
        file.finish()
