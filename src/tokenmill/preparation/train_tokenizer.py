"""Train a byte-level BPE tokenizer on your own text.

The same files, in any order, give the same bytes of tokenizer.json. The `tokenizers` library learns
the same merges from the same texts and gives the same ids. `<|endoftext|>` is id 256, after the 256
bytes. Where the text contains `<|endoftext|>`, a document ends, and nothing is learned from these
characters. Text is split into words as GPT-2 does. tokenizer.json is complete or absent.

Costs 4 s and 170 MB of memory for 100 MB of text and 32,000 ids on two cores. Memory grows with the
number of *different* words, about 60 bytes each, and nothing is moved to disk. So train on a sample
of a few GB: more text hardly changes a vocabulary. Training runs in its own process (`main`), so
that its memory is returned at the end and a crash is an ordinary error. The text of JSON lines,
Parquet and compressed files is extracted to the folder for temporary files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from tokenmill.errors import InputError, TokenizerError, TooLongError, UsageError, WorkError
from tokenmill.preparation.memory import DEFAULT_SHARE, holdable_bytes, machine_memory
from tokenmill.sources.csv_kind import choose_csv_kind
from tokenmill.sources.encodings import AUTO
from tokenmill.sources.files import BadFileError, SourceFile, local_path
from tokenmill.sources.find import find_files
from tokenmill.sources.read import Reading, is_converted, read_range
from tokenmill.sources.recognize import find_fault
from tokenmill.sources.records import BLOCK, Cutter
from tokenmill.storage.addresses import is_address
from tokenmill.storage.decoding import load_json
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import is_temporary, make_folder, write_file
from tokenmill.tokenizers import Tokenizer, load_tokenizer

END_OF_TEXT = "<|endoftext|>"
SMALLEST = 257
LARGEST = 1_000_000


def train_tokenizer(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    vocab_size: int,
    out: str | os.PathLike[str],
    text_field: str = "text",
) -> Tokenizer:
    """Train a tokenizer on text, write its tokenizer.json, and load it.

    Inputs are files, folders and globs, in any format that `prepare` reads; `text_field` is the
    field, or column, that holds the text. Records without that field are skipped. Text with few
    different words gives fewer ids than `vocab_size`.

    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("one two three, one two three\\n" * 10)
    >>> tokenizer = train_tokenizer(folder, vocab_size=265, out=folder / "tokenizer.json")
    >>> tokenizer.vocab_size, tokenizer.eot_id
    (265, 256)
    """
    if not SMALLEST <= vocab_size <= LARGEST:
        raise UsageError(
            f"`vocab_size` is {vocab_size}; it must be from {SMALLEST} (every byte and "
            f"{END_OF_TEXT}) to {LARGEST:,}"
        )
    target = Path(out)
    if target.suffix != ".json":
        raise UsageError(f"`out` is {str(target)!r}; it must end with .json")
    given = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    if not given:
        raise UsageError("name at least one text file or folder to train a tokenizer on")
    sources = [choose_csv_kind(source, text_field, "auto") for source in find_files(given)[0]]
    for source in sources:
        if fault := find_fault(source, text_field):
            raise BadFileError(source.path, fault)
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as folder:
        paths = _plain_files(sources, text_field, Path(folder) / "texts.txt")
        if not any(path.stat().st_size for path in paths):
            named = ", ".join(map(str, given))
            raise InputError(
                f"There is no text to train a tokenizer on in {named}. Name files with some text."
            )
        merges = _learn_merges(paths, vocab_size, Path(folder) / "merges.json")
    with explain_disk_errors("no tokenizer was written"):
        make_folder(target.parent)
        _remove_left_behind(target)
        write_file(target, _to_tokenizer_json(merges))
    return load_tokenizer(target)


def _remove_left_behind(target: Path) -> None:
    """Remove half-written copies of `target` left by processes that no longer run."""
    for path in target.parent.iterdir():
        if is_temporary(path.name) and path.name.startswith(f"{target.name}."):
            try:
                os.kill(int(path.name.split(".")[-2]), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
            except (OSError, OverflowError):  # another user's process, or not a process number
                pass


def _plain_files(sources: Sequence[SourceFile], text_field: str, rest: Path) -> list[Path]:
    """Return the sorted paths of plain text files with all the text of the sources.

    The text of sources that are not plain text is first written to the file `rest`.
    """
    plain = {
        source: Path(source.path).resolve()
        for source in sources
        if source.kind == "text"
        and not source.compression
        # gigatoken cannot open an object, or a file whose name is not UTF-8
        and local_path(source.path) == source.path
        and not is_address(source.path)
        and not is_converted(source, AUTO)
    }
    try:
        with rest.open("wb") as file:
            for source in sources:
                if source not in plain:
                    extract_text(source, text_field, file)
    except OSError as error:
        raise WorkError(
            f"The text of the inputs cannot be written to {rest.parent}: {error.strerror}. Set the "
            "environment variable TMPDIR to a folder with more space."
        ) from error
    return sorted([*plain.values(), rest])


def extract_text(source: SourceFile, text_field: str, file: BinaryIO, block: int = BLOCK) -> None:
    """Append the texts of a source to a file, with END_OF_TEXT before each document."""
    hold_limit = holdable_bytes(max(DEFAULT_SHARE, machine_memory() // 2))
    how = Reading(text_field=text_field, cutter=Cutter(), block=block, hold_limit=hold_limit)
    try:
        for chunk in read_range(source, 0, source.size, how):
            for number, text in enumerate(chunk.texts):
                if number or not chunk.continues:
                    file.write(END_OF_TEXT.encode())
                file.write(text)
    except TooLongError as error:
        reason = f"{error}, which this machine cannot hold in memory; remove that document"
        raise BadFileError(source.path, reason) from None


def _learn_merges(
    paths: Sequence[Path], vocab_size: int, result: Path
) -> list[tuple[bytes, bytes]]:
    job = {"paths": [str(path) for path in paths], "vocab_size": vocab_size}
    # Capture the output: gigatoken, which does the training, prints its progress there.
    done = subprocess.run(
        [sys.executable, "-m", "tokenmill.preparation.train_tokenizer", str(result)],
        input=orjson.dumps(job),
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        pairs = load_json(result.read_bytes())
        return [(bytes.fromhex(left), bytes.fromhex(right)) for left, right in pairs]
    if done.returncode < 0:
        raise TokenizerError(
            f"training was killed by signal {-done.returncode}, probably because memory ran out; "
            "train on less text"
        )
    last = done.stderr.decode("utf-8", errors="replace").strip().rpartition("\n")[2]
    # When memory runs out, loading Python's own modules can fail with any kind of error.
    raise TokenizerError(
        f"training failed: {last.strip()}\nMost likely memory ran out: free some, or train on less text."
    )


def _to_tokenizer_json(merges: Sequence[tuple[bytes, bytes]]) -> bytes:
    letters = _byte_letters()
    vocabulary = {letters[value]: value for value in range(256)}
    vocabulary[END_OF_TEXT] = 256
    pairs = []
    for left, right in merges:
        pair = ["".join(letters[value] for value in side) for side in (left, right)]
        pairs.append(pair)
        vocabulary.setdefault("".join(pair), len(vocabulary))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256, "content": END_OF_TEXT, "special": True, **flags}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": pairs,
        },
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _byte_letters() -> list[str]:
    """Return the character that stands for each byte in a byte-level vocabulary.

    Bytes that are visible characters in Latin-1 stand for themselves; the others get the code points
    from 256 on, in order.
    """
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [value for value in range(256) if value not in seen]
    return [chr(value if value in seen else 256 + hidden.index(value)) for value in range(256)]


def main() -> None:
    """Run in the training process: read a job from standard input, write merges to the file argv[1]."""
    import gigatoken

    job = load_json(sys.stdin.buffer.read())
    source = gigatoken.TextFileSource(job["paths"], separator=END_OF_TEXT)
    _, merges = gigatoken.train_bpe(source, job["vocab_size"], [END_OF_TEXT])
    pairs = [(left.hex(), right.hex()) for left, right in merges]
    Path(sys.argv[1]).write_bytes(orjson.dumps(pairs))


if __name__ == "__main__":
    main()
