"""tar archives of texts, against `tarfile`: every member is a document, or is counted with a reason."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from reading import offsets_of, rejections_of, texts_of

from tokenmill.sources import tar
from tokenmill.sources.files import BadFileError
from tokenmill.sources.find import find_files
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.recognize import find_fault
from tokenmill.sources.records import Chunk

COMPRESS = {
    ".tar": bytes,
    ".tar.gz": gzip.compress,
    ".tgz": gzip.compress,
    ".tar.bz2": bz2.compress,
    ".tar.xz": lzma.compress,
    ".tar.zst": zstandard.compress,
}
LINES = b'{"text": "a"}\n{"id": 1}\n{"text": "b"}\n'


def pack(members: dict[str, bytes], form: int = tarfile.PAX_FORMAT, **attributes: str) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.pax_headers = attributes
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def read(path: Path, data: bytes, **how: object) -> list[Chunk]:
    path.write_bytes(data)
    ((source,), _) = find_files([path])
    how = {"separator": b"<|endoftext|>", **how}
    return list(read_range(source, 0, source.size, Reading(**how)))  # type: ignore[arg-type]


def read_with_tarfile(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            file = archive.extractfile(info) if info.isreg() else None
            if file is not None:
                yield info.name, info.offset_data, file.read()


@pytest.mark.parametrize("ending", COMPRESS)
def test_members_are_documents_at_their_offsets(tmp_path: Path, ending: str) -> None:
    members = {
        "texts/a.txt": b"One.<|endoftext|>Two.",
        "texts/b.jsonl": LINES,
        "texts/c.py": b"print()\n" * 3,
        "texts/empty.txt": b"",
        "latin.txt": "größer".encode("latin-1"),
        "d.json": b'{\n "a": 1\n}\n',
        "e.json": LINES,
    }
    data = pack(members)
    chunks = read(tmp_path / f"a{ending}", COMPRESS[ending](data))
    found = dict(zip(offsets_of(chunks), texts_of(chunks), strict=True))
    starts = {name: start for name, start, _ in read_with_tarfile(data)}
    assert found == {
        starts["texts/a.txt"]: b"One.",
        starts["texts/a.txt"] + 17: b"Two.",
        starts["texts/b.jsonl"]: b"a",
        starts["texts/b.jsonl"] + 24: b"b",
        starts["texts/c.py"]: members["texts/c.py"],
        starts["texts/empty.txt"]: b"",
        starts["latin.txt"]: members["latin.txt"],
        starts["d.json"]: members["d.json"],
        starts["e.json"]: b"a",
        starts["e.json"] + 24: b"b",
    }
    refused = [(line, offset) for line, offset, _ in rejections_of(chunks)]
    assert refused == [(None, starts[name] + 14) for name in ("texts/b.jsonl", "e.json")]
    assert offsets_of(chunks) == sorted(offsets_of(chunks))


def test_everything_that_is_not_read_is_counted(tmp_path: Path) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as archive:

        def add(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: str) -> None:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(data)
            info.linkname = more.get("to", "")
            archive.addfile(info, io.BytesIO(data))

        add("folder", kind=tarfile.DIRTYPE)
        add("./folder/good.txt", b"good")
        add("link.txt", kind=tarfile.SYMTYPE, to="/etc/passwd")
        add("hard.txt", kind=tarfile.LNKTYPE, to="./folder/good.txt")
        add("pipe", kind=tarfile.FIFOTYPE)
        add("inner.tar", pack({"x.txt": b"x"}))
        add("inner.txt.gz", gzip.compress(b"x"))
        add("picture.png", b"\x89PNG\r\n\x1a\n\0\0" * 100)
        add("wide.txt", "words".encode("utf-16"))
        add(".git/config", b"[core]")
        add("x" * 300 + ".txt", b"a long name")
    chunks = read(tmp_path / "a.tar", target.getvalue())
    assert texts_of(chunks) == [b"good", b"a long name"]
    assert [kind for _, _, kind in rejections_of(chunks)] == [
        *[tar.LINK, tar.LINK, tar.SPECIAL, tar.PACKED, tar.PACKED, tar.NOT_TEXT, tar.WIDE],
        tar.HIDDEN,
    ]


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0/."), min_size=1, max_size=150),
        st.text(max_size=1500).map(str.encode),
        max_size=6,
    ),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.integers(1, 2000),
)
def test_the_same_members_as_tarfile(members: dict[str, bytes], form: int, block: int) -> None:
    try:
        data = pack({f"{name}.txt": text for name, text in members.items()}, form)
    except ValueError:  # a name is too long for this form
        return
    found = []
    for member in tar.read_members(io.BytesIO(data), block):
        found.append((member.offset, b"".join(member.blocks)))
    assert found == [(start, text) for _, start, text in read_with_tarfile(data)]


def test_sizes_in_headers_of_every_kind(tmp_path: Path) -> None:
    # A size in the header of POSIX replaces the one of the old header, and holds beyond 8 GB.
    data = pack({"a.txt": b"some text", "b.txt": b"more"}, size="9", comment="é\n = x")
    chunks = read(tmp_path / "a.tar", data[: len(data)])
    assert texts_of(chunks)[0] == b"some text"
    # GNU writes large numbers as bytes.
    plain = bytearray(pack({"a.txt": b"words", "b.txt": b"more"}, tarfile.USTAR_FORMAT))
    plain[124:136] = b"\x80" + (5).to_bytes(11, "big")
    plain[148:156] = b" " * 8
    plain[148:156] = b"%06o\0 " % sum(plain[:512])
    assert texts_of(read(tmp_path / "a.tar", bytes(plain))) == [b"words", b"more"]


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    data = pack({"a.txt": b"one" * 500, "b.txt": b"two"}, tarfile.USTAR_FORMAT)
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512
    for cut in [0, 100, 512, 1000, 2048, end - 512, end]:
        with pytest.raises(BadFileError, match="cut short"):
            read(path, data[:cut])
    assert texts_of(read(path, data[: end + 512])) == [b"one" * 500, b"two"]
    with pytest.raises(BadFileError, match="no valid header at byte 0"):
        read(path, b"\1" + data[1:])
    with pytest.raises(BadFileError, match="more data after its end"):
        read(path, data + data)
    ((source,), _) = find_files([path])
    assert "more data after its end" in str(find_fault(source, "text"))
    long = pack({"a.txt": b"x"}, comment="x" * (2 << 20))
    with pytest.raises(BadFileError, match="the header before byte 512 has 2,097,"):
        read(path, long)
    with pytest.raises(BadFileError, match="the gzip stream ends too early"):
        read(tmp_path / "a.tgz", gzip.compress(data)[:-12])


def test_changed_bytes_are_refused_or_give_other_members(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    data = pack({"a.txt": b"one " * 300, "b.jsonl": LINES}, comment="x")
    random = Random(1)
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(random.choice([1, 2, 5])):
            changed[random.randrange(len(data))] = random.choice([0, 1, 32, 48, 55, 0x80, 0xFF])
        try:
            chunks = read(path, bytes(changed), block=256)
        except BadFileError:
            continue
        assert sum(map(len, texts_of(chunks))) <= len(data)


def test_a_long_member_comes_in_fragments(tmp_path: Path) -> None:
    from tokenmill.sources.records import Cutter

    text = b"words and more words\n" * 500
    data = pack({"a.txt": b"first", "b.txt": text, "c.txt": b"last"})
    chunks = read(tmp_path / "a.tar", data, cutter=Cutter(anywhere=True), block=1024)
    assert len(chunks) > 5
    assert b"".join(texts_of(chunks)) == b"first" + text + b"last"
    assert sum(not chunk.continues for chunk in chunks) == 3


def test_a_dataset_of_an_archive(tmp_path: Path) -> None:
    import tokenmill

    members = {f"{n}.txt": f"Text number {n}.".encode() for n in range(50)}
    data = pack({**members, "x.png": b"\0\1", "again.txt": members["3.txt"]})
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(data))
    out = tmp_path / "out"
    report = tokenmill.prepare(
        tmp_path / "a.tar.gz", out, tokenizer="bytes", val_fraction=0, workers=1
    )
    ledger = report.manifest.ledger
    assert (ledger["documents_in"], ledger["documents_kept"]) == (52, 50)
    assert {reason: one["documents"] for reason, one in ledger["dropped"].items()} == {
        tar.NOT_TEXT: 1,
        "duplicate": 1,
    }
    (rejected,) = map(json.loads, (out / "rejected.jsonl").read_text().splitlines())
    starts = {name: start for name, start, _ in read_with_tarfile(data)}
    assert (rejected["offset"], rejected["reason"]) == (
        starts["x.png"],
        "x.png is not text, in an archive",
    )
    documents = tokenmill.open(out)["train"].documents
    for number in range(50):
        assert documents[number].offset == starts[f"{number}.txt"]
