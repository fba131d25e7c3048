"""Answers of the Hugging Face Hub, from a server on 127.0.0.1, and the files in its cache."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from random import Random
from typing import Any

from tests.hub.local_hub import llmc_shard

from ..case import Case, Parser, refused, require, write_files
from ..mutate import STRINGS, change_bytes, change_tree, dump
from ..serving import Handler, serve

# Read when huggingface_hub is imported.
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ["NO_PROXY"] = "127.0.0.1,localhost"

COMMIT = "5" * 40
SHARDS = {f"web_{number:02}.bin": llmc_shard([number] * 20) for number in (1, 2)}
FILES = {**SHARDS, "README.md": b"# card", "text/a.jsonl": b'{"text": "a"}\n'}
ADDRESSES = (
    *(
        "lab/web",
        "hf://datasets/lab/web",
        "lab/web/web_01.bin",
        "lab/web/text",
        "lab/web@main/*.bin",
    ),
    *(
        "lab/web@../../x",
        "lab/web@..%2f..%2fx",
        "lab/web@%2e%2e%2fx",
        "lab/web@a%00b",
        "lab/web@/x",
    ),
    *("lab/web@%2fetc", "lab/web@refs/pr/1", "lab/web@" + "x" * 300, "lab/web@٣", "lab/web@\ud800"),
    *(
        "lab/web/[",
        "lab/web/**",
        "lab/../x",
        "hf://lab/web",
        "lab",
        "",
        "lab/web@a\nb",
        "./lab/web",
    ),
)


def describe(path: str, data: bytes) -> dict[str, Any]:
    """A file as the Hub lists it."""
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": oid}
    if path.endswith(".bin"):
        digest = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 134}
    return entry


INFO = {"id": "lab/web", "sha": COMMIT, "private": False, "gated": False, "tags": ["x"]}
INFO |= {
    "siblings": [{"rfilename": name} for name in FILES],
    "lastModified": "2026-01-01T00:00:00.000Z",
}
TREE = [describe(name, data) for name, data in FILES.items()]
TREE += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "text"}]
LISTING = [
    {"path": one["path"], "size": one["size"], "digest": one.get("lfs", one)["oid"]}
    for one in TREE
    if one["type"] == "file"
]


class _Handler(Handler):
    def do_GET(self) -> None:
        facts, files = self.case.facts, self.case.files
        if "/tree/" in self.path:
            name, body = "tree", files["tree"]
        elif "/resolve/" in self.path:
            name = self.path.partition("/resolve/")[2].partition("/")[2]
            body = files.get(f"blob/{name}", b"")
        else:
            name, body = "info", files["info"]
        status, headers = facts.get("answers", {}).get(name, (200, {}))
        if "/tree/" in self.path and "cursor" in self.path and not facts.get("endless"):
            headers, body = {}, b"[]"
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value.replace("HOST", self.headers["Host"]))
        if "Content-Type" not in headers:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


STATUSES = (200, 200, 204, 301, 304, 400, 401, 403, 404, 404, 410, 416, 418, 451)
CODES = (None, None, "RepoNotFound", "GatedRepo", "RevisionNotFound", "EntryNotFound", "Odd\u00e9")


class HubParser(Parser):
    name = "hub"

    def prepare(self, folder: Path) -> None:
        import huggingface_hub  # noqa: F401

        import tokenmill.dataset.download
        import tokenmill.hub.cache  # noqa: F401

        self.sound = {"info": json.dumps(INFO).encode(), "tree": json.dumps(TREE).encode()}
        self.sound |= {f"blob/{name}": data for name, data in FILES.items()}

    def list_sound(self) -> list[Case]:
        return [
            Case(self.sound, {"address": "lab/web", "how": how}) for how in ("list", "download")
        ]

    def make(self, random: Random) -> Case:
        files, facts = dict(self.sound), {"address": "lab/web", "how": "list"}
        name = random.choice(["info", "tree", "tree", "tree"])
        match random.randrange(8):
            case 0:
                files[name] = change_bytes(random, files[name])
            case 1:
                status, headers = random.choice(STATUSES), {}
                if code := random.choice(CODES):
                    headers["X-Error-Code"] = code.encode("ascii", "ignore").decode()
                if random.randrange(3) == 0:
                    headers["X-Error-Message"] = random.choice(["no", "x" * 5000, "\x1b[31m"])
                facts["answers"] = {name: (status, headers)}
            case 2:
                facts["address"] = random.choice(ADDRESSES)
                facts["how"] = random.choice(["list", "cache"])
            case 3:
                facts["how"] = "cache"
                files["listing"] = dump(change_tree(random, LISTING))
                facts["reference"] = random.choice([COMMIT, "", "../../x", *STRINGS[:20]])
            case 4:
                facts["how"] = "download"
                name = random.choice(list(SHARDS))
                data = bytearray(FILES[name])
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
                files[f"blob/{name}"] = bytes(data)
            case 5 if random.randrange(10) == 0:
                link = random.choice(
                    ["<http://HOST/api/datasets/lab/web/tree/x?cursor=1>", "<", "<>"]
                )
                facts["answers"] = {"tree": (200, {"Link": f'{link}; rel="next"'})}
                facts["endless"] = random.randrange(2) == 0
            case _:
                value = INFO if name == "info" else TREE
                files[name] = dump(change_tree(random, value))
        return Case(files, facts)

    def check(self, case: Case, folder: Path) -> None:
        from tokenmill.dataset.download import download
        from tokenmill.hub.cache import find_cached_dataset, find_cached_files
        from tokenmill.hub.choose import choose
        from tokenmill.hub.paths import parse_hub_path
        from tokenmill.hub.repository import find_commit, list_files

        os.environ["HF_ENDPOINT"] = serve(_Handler, case)
        os.environ["HF_HUB_CACHE"] = str(folder / "cache")
        facts = case.facts
        match facts["how"]:
            case "list":
                where = parse_hub_path(facts["address"])
                commit = find_commit(where)
                files = list_files(where.repository, commit)
                choose(files, where.repository, path=where.path)
                for shards in ({1}, {2, 99}):
                    with refused():
                        choose(files, where.repository, shards=shards)
                with refused():
                    choose(files, where.repository, split="train", max_files=2)
            case "download":
                with refused():
                    download("lab/web", to=folder / "out")
                if facts.get("intact"):
                    require((folder / "out/web_01.bin").exists(), "sound files were refused")
                for name, data in SHARDS.items():
                    path = folder / "out" / name
                    if path.exists():
                        require(path.read_bytes() == data, f"{name} arrived altered and was kept")
            case "cache":
                place = "cache/datasets--lab--web"
                kept = {f"{place}/snapshots/{COMMIT}/{name}": data for name, data in FILES.items()}
                if "listing" in case.files:
                    kept[f"{place}/tokenmill/{COMMIT}.json"] = case.files["listing"]
                    reference = facts["reference"].encode("utf-8", "surrogatepass")
                    kept[f"{place}/refs/main"] = reference
                write_files(folder, kept)
                with refused():
                    find_cached_dataset(facts["address"])
                with refused():
                    find_cached_files(facts["address"])
                allowed = {"cache", "case"}
                there = {path.name for path in folder.iterdir()}
                require(there <= allowed, f"files were written outside the cache: {there}")


PARSERS = [HubParser()]
