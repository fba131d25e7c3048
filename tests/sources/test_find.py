"""find.py: which files are read, in which order, as what, and what is passed over."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

import tokenmill
from tokenmill.errors import InputError
from tokenmill.sources.files import local_path
from tokenmill.sources.find import PassedOver, describe_passed_over, find_files


def names_found(*inputs: Path | str, leave_out: Path | None = None) -> list[str]:
    sources, _ = find_files(inputs, leave_out=leave_out)
    return [Path(source.path).name for source in sources]


def names_passed_over(passed_over: list[PassedOver]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in passed_over:
        found.setdefault(entry.reason, []).append(Path(entry.path).name)
    return found


def write_all(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("some text\n")


def test_folders_are_walked_in_the_order_of_names_without_hidden_entries(tmp_path: Path) -> None:
    write_all(tmp_path, "b.txt", "a/2.txt", "a/1.txt", "c/x.txt", ".hidden.txt", ".git/y.txt")
    assert names_found(tmp_path) == ["b.txt", "1.txt", "2.txt", "x.txt"]
    assert names_found(tmp_path, leave_out=tmp_path / "a") == ["b.txt", "x.txt"]


def test_inputs_keep_the_given_order_and_come_once(tmp_path: Path) -> None:
    write_all(tmp_path, "a.txt", "b.txt", "c.txt")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    given = (tmp_path / "c.txt", tmp_path / "link.txt", tmp_path)
    assert names_found(*given) == ["c.txt", "link.txt", "b.txt"]
    assert names_found(tmp_path / "[ab].txt", tmp_path / "*.txt") == ["a.txt", "b.txt", "c.txt"]


def test_globs_reach_into_folders(tmp_path: Path) -> None:
    write_all(tmp_path, "x/a.txt", "x/y/b.txt", "z.txt")
    assert names_found(f"{tmp_path}/**/*.txt") == ["a.txt", "b.txt", "z.txt"]
    assert names_found(f"{tmp_path}/x*") == ["a.txt", "b.txt"]
    write_all(tmp_path, "q[1].txt")
    assert names_found(tmp_path / "q[1].txt") == ["q[1].txt"]


def test_a_missing_input_is_an_error_with_a_hint(tmp_path: Path) -> None:
    write_all(tmp_path, "corpus.txt")
    with pytest.raises(InputError, match=r"Did you mean .*corpus\.txt"):
        find_files([tmp_path / "corpsu.txt"])
    with pytest.raises(InputError, match="Nothing matches"):
        find_files([tmp_path / "*.md"])
    with pytest.raises(InputError, match="No input"):
        find_files([])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="No text was found"):
        find_files([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("name", "kind", "compression"),
    [
        ("a.txt", "text", None),
        ("a.TXT", "text", None),
        ("a.jsonl", "jsonl", None),
        ("a.ndjson", "jsonl", None),
        ("a.JSONL.GZ", "jsonl", "gzip"),
        ("a.json.zst", "jsonl", "zstd"),
        ("a.txt.xz", "text", "xz"),
        ("a.bz2", "text", "bz2"),
        ("a.parquet", "parquet", None),
        ("noending", "text", None),
    ],
)
def test_the_kind_of_a_file_follows_from_its_name(
    tmp_path: Path, name: str, kind: str, compression: str | None
) -> None:
    write_all(tmp_path, name)
    ((source,), _) = find_files([tmp_path / name])
    assert (source.kind, source.compression) == (kind, compression)
    assert source.size == 10
    assert source.modified == (tmp_path / name).stat().st_mtime_ns
    assert source.unit == ("row" if kind == "parquet" else "byte")


def test_folders_give_only_text_but_named_files_are_always_read(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    (tmp_path / "latin.dat").write_bytes("Grüße".encode("latin-1"))
    (tmp_path / "utf8.dat").write_bytes("Grüße".encode())
    (tmp_path / "cut.dat").write_bytes(b"a" * 8191 + "ü".encode())  # half of it in the head
    (tmp_path / "late.dat").write_bytes(b"a" * 8000 + b"\xff" + b"a" * 1000)
    (tmp_path / "Makefile").write_text("all:\n")
    sources, passed_over = find_files([tmp_path])
    assert [Path(source.path).name for source in sources] == ["Makefile", "cut.dat", "utf8.dat"]
    assert names_passed_over(passed_over) == {"not text": ["image.png", "late.dat", "latin.dat"]}
    assert names_found(tmp_path / "image.png") == ["image.png"]
    for name in ("Makefile", "cut.dat", "utf8.dat"):
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match="3 files that are not text"):
        find_files([tmp_path])


ARCHIVES = ["a.ZIP", "e.zip", "f.7z", "h.whl"]


def test_archives_are_passed_over_in_folders_and_globs_and_refused_by_name(tmp_path: Path) -> None:
    write_all(tmp_path, *ARCHIVES, "star.txt", "tar.gz.md")
    for given in (tmp_path, tmp_path / "*"):
        sources, passed_over = find_files([given])
        assert [Path(source.path).name for source in sources] == ["star.txt", "tar.gz.md"]
        assert names_passed_over(passed_over) == {"an archive": ARCHIVES}
    for name in ARCHIVES:
        with pytest.raises(InputError, match=rf"{name} is an archive\. Unpack it"):
            find_files([tmp_path / "star.txt", tmp_path / name])


def test_archives_of_tar_are_read_and_others_passed_over(tmp_path: Path) -> None:
    write_all(tmp_path, "texts/a.txt")
    for kind in ("gztar", "zip", "xztar", "tar"):
        shutil.make_archive(str(tmp_path / "texts" / kind), kind, tmp_path / "texts", "a.txt")
    sources, passed_over = find_files([tmp_path / "texts"])
    found = {Path(source.path).name: (source.kind, source.compression) for source in sources}
    assert found == {
        "a.txt": ("text", None),
        "gztar.tar.gz": ("tar", "gzip"),
        "tar.tar": ("tar", None),
        "xztar.tar.xz": ("tar", "xz"),
    }
    assert describe_passed_over(passed_over) == f"1 archive ({tmp_path}/texts/zip.zip)"


def test_a_finished_dataset_is_passed_over_in_folders_and_globs_and_refused_by_name(
    tmp_path: Path,
) -> None:
    write_all(tmp_path, "texts/a.txt")
    data = tmp_path / "texts" / "data"
    tokenmill.prepare(tmp_path / "texts", data, tokenizer="bytes", workers=1, val_fraction=0)
    for given in (tmp_path / "texts", tmp_path / "texts" / "*"):
        sources, passed_over = find_files([given])
        assert [Path(source.path).name for source in sources] == ["a.txt"]
        assert names_passed_over(passed_over) == {"a finished dataset": ["data"]}
        # The folder of a run that resumes is not reported.
        assert find_files([given], leave_out=data) == (sources, [])
    with pytest.raises(InputError, match=r"data is a finished dataset, not text"):
        find_files([data])


OUTSIDE = "a link that leads out of its folder"


def test_no_link_in_a_folder_leads_out_of_it(tmp_path: Path) -> None:
    write_all(tmp_path, "in/a.txt", "in/sub/c.txt", "in-beside/b.txt", "secret.txt")
    here = tmp_path / "in"
    (here / "circle").symlink_to(here)
    (here / "down").symlink_to("sub")
    (here / "folder").symlink_to(tmp_path / "in-beside")
    (here / "again.txt").symlink_to("a.txt")
    (here / "file.txt").symlink_to("../secret.txt")
    (here / "sub" / "far.txt").symlink_to("/proc/self/environ")
    (here / "sub" / "up.txt").symlink_to("../a.txt")
    sources, passed_over = find_files([here])
    assert [Path(source.path).name for source in sources] == ["a.txt", "c.txt"]
    assert names_passed_over(passed_over) == {
        "a link to a folder": ["circle", "down"],
        OUTSIDE: ["file.txt", "folder", "far.txt"],
    }


def test_links_that_the_user_names_are_followed(tmp_path: Path) -> None:
    write_all(tmp_path, "elsewhere/b.txt", "secret.txt")
    here = tmp_path / "in"
    here.mkdir()
    (here / "file.txt").symlink_to("../secret.txt")
    (here / "folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "all").symlink_to("in")
    assert names_found(here / "file.txt") == ["file.txt"]
    assert names_found(here / "folder") == ["b.txt"]
    assert names_found(f"{tmp_path}/all/*") == ["file.txt", "b.txt"]
    message = r"2 links that lead out of their folder .*name them, for example .*'FOLDER/\*'"
    with pytest.raises(InputError, match=message):
        find_files([tmp_path / "all"])


def test_a_newline_in_a_name_is_not_a_line_of_output(tmp_path: Path) -> None:
    name = "a.txt\nsound: 0 problems.txt"
    write_all(tmp_path, f"in/{name}", f"in/{name}.zip")
    os.mkfifo(tmp_path / "in" / f"{name}.pipe")
    ((source,), passed_over) = find_files([tmp_path / "in"])
    assert "\n" not in f"{source.path} {describe_passed_over(passed_over)}"
    assert Path(local_path(source.path)) == tmp_path / "in" / name
    (tmp_path / "in" / f"{name}l").symlink_to("nowhere\nat all")
    with pytest.raises(InputError) as refused:
        find_files([tmp_path / "in" / name.replace("\n", " ")])
    assert "Did you mean" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert [one.fault for one in find_files([tmp_path / "in"])[0] if one.fault] == [
        f"a broken link to {(Path.cwd() / 'nowhere').as_uri()}%0Aat%20all"
    ]


def test_broken_links_are_sources_with_a_fault(tmp_path: Path) -> None:
    write_all(tmp_path, "a.txt")
    (tmp_path / "b.parquet").symlink_to("../blobs/b5bb9d")
    (tmp_path / "circle.txt").symlink_to("circle.txt")
    (tmp_path / ".hidden").symlink_to("nowhere")
    (tmp_path / "c.zip").symlink_to("nowhere")
    for given in ([tmp_path], [tmp_path / "*"]):
        sources, passed_over = find_files(given)
        assert {Path(source.path).name: source.fault for source in sources} == {
            "a.txt": None,
            "b.parquet": "a broken link to ../blobs/b5bb9d",
            "circle.txt": "a broken link to circle.txt",
        }
        assert names_passed_over(passed_over) == {"an archive": ["c.zip"]}
    ((named,), _) = find_files([tmp_path / "b.parquet"])
    assert named.fault == "a broken link to ../blobs/b5bb9d"


def test_pipes_and_sockets_are_passed_over_and_listed(tmp_path: Path) -> None:
    write_all(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket"))  # names of sockets are short
        for given in (tmp_path, tmp_path / "*"):
            sources, passed_over = find_files([given])
            assert [Path(source.path).name for source in sources] == ["a.txt"]
            assert describe_passed_over(passed_over) == (
                f"2 pipes, sockets or devices (such as {tmp_path}/pipe.txt)"
            )


def make_deep(folder: Path, name: str, levels: int) -> None:
    """Nested folders, deeper than the longest path, with a file at the bottom."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=handle)
        inner = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(os.open("deep.txt", os.O_WRONLY | os.O_CREAT, dir_fd=handle))
    os.close(handle)


@pytest.mark.parametrize(("name", "levels"), [("n" * 250, 20), ("nn", 1500)])
def test_a_path_that_is_too_long_is_a_source_with_a_fault(
    tmp_path: Path, name: str, levels: int
) -> None:
    write_all(tmp_path, "a.txt", "z.txt")
    make_deep(tmp_path, name, levels)
    try:
        sources, _ = find_files([tmp_path])
        assert [source.fault for source in sources] == [None, None, "File name too long"]
        with pytest.raises(InputError, match="cannot be read: File name too long"):
            find_files([f"{tmp_path}/{'n' * 5000}"])
    finally:
        subprocess.run(["rm", "-r", tmp_path / name], check=True)


@pytest.mark.parametrize("name", ["", "a.json"])
def test_too_many_open_files_are_not_a_fault_of_the_input(tmp_path: Path, name: str) -> None:
    resource = pytest.importorskip("resource")
    write_all(tmp_path, "a.json")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            find_files([tmp_path / name])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_without_text_the_error_lists_what_was_passed_over(tmp_path: Path) -> None:
    write_all(tmp_path, "a.zip")
    (tmp_path / "b.bin").write_bytes(bytes(10))
    with pytest.raises(
        InputError, match=r"1 file that is not text \(.*b\.bin\), 1 archive \(.*a\.zip\)\."
    ):
        find_files([tmp_path])
