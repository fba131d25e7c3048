"""The finished dataset that a run with `append` adds to, and the settings that it requires.

Such a run adds shards behind those of the dataset, then replaces the manifest. It changes no other
file of the dataset, so a killed run leaves the dataset as it was. Lists that it adds have the number
of the new generation in their names. `earlier_keys.py` finds which documents are there already.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import xxhash

from tokenmill.dataset.opening import load_saved_tokenizer
from tokenmill.errors import FolderError, UsageError
from tokenmill.preparation.filters.rules import FunctionRule, parse_filters
from tokenmill.preparation.joined_ledger import add_ledgers
from tokenmill.preparation.settings import SPLITS, PrepareSettings
from tokenmill.storage.names import MANIFEST_NAME
from tokenmill.storage.object_path import as_path
from tokenmill.storage.output import describe_changes
from tokenmill.store.joined_sources import join_sources
from tokenmill.store.manifest import Manifest, Split, find_manifest
from tokenmill.store.manifest_body import MOST_GENERATIONS
from tokenmill.store.tables import Shard, ShardTable, SourceTable
from tokenmill.tokenizers import Tokenizer, load_tokenizer

_TEXT_BYTES = 4  # of a token, about: the size of the keys' layout follows from it
# Settings that may differ between the generations of a dataset. Weights are for the sources of one.
_MAY_CHANGE = {"tokens_per_shard", "skip_bad_files", "sample", "weight"}
# Entries of a manifest's settings that are not settings, and must not differ: what they describe, and
# the cure.
_DESCRIBED = {
    "filter_functions": ("code in the functions of `filter`", "Restore that code"),
    "language_library": ("software to detect languages", "Install the version in its manifest"),
    "decontaminate": ("evaluation texts", "Give the same ones with `decontaminate`"),
}


@dataclass(frozen=True, kw_only=True)
class Base:
    """The dataset that a run adds to, as it was when the run began."""

    manifest: Manifest
    checksum: str  # of the manifest's file

    @property
    def generation(self) -> int:
        """The number of the generation that the run makes."""
        return self.manifest.generation + 1

    @property
    def shards(self) -> list[Shard]:
        """The shards of all splits."""
        return [shard for split in SPLITS for shard in self.manifest.splits[split].shards]

    @property
    def text_bytes(self) -> int:
        """About how many bytes of text the dataset has."""
        return _TEXT_BYTES * sum(split.tokens for split in self.manifest.splits.values())


def read_base(out: str | os.PathLike[str]) -> Base:
    """Return the finished dataset in the folder `out`, to add to it.

    >>> read_base("no/such/folder")
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: no/such/folder has no finished dataset to add to. Make one first: \
omit `append`.
    """
    data = find_manifest(out)
    if data is None:
        raise UsageError(f"{out} has no finished dataset to add to. Make one first: omit `append`.")
    manifest = Manifest.from_json(data, out)
    is_prepared = {"documents", "text_field", "dedup"} <= manifest.settings.keys()
    if not is_prepared or set(manifest.splits) != set(SPLITS):
        raise UsageError(
            f"{out} was not made by `prepare`, so its documents cannot be compared with new text. "
            "Prepare the new text as a dataset of its own, and train on both as a mixture."
        )
    if manifest.settings["dedup"] == "lines":
        raise UsageError(
            f"{out} was made with `dedup='lines'`: which lines stay depends on all texts, and the "
            "dataset does not store its lines. Prepare the new text as a dataset of its own, or all of "
            "the text again."
        )
    for name, value, why in (
        ("dedup", "near", "near duplicates are not searched for in the documents of a dataset"),
        ("keep_fields", manifest.settings.get("keep_fields"), "fields are kept in one file"),
    ):
        if value and manifest.settings.get(name) == value:
            raise UsageError(
                f"{out} was made with `{name}={value!r}`, so nothing can be added to it: {why}. Prepare "
                "all of the text again, into a new folder."
            )
    if manifest.generation == MOST_GENERATIONS:
        raise UsageError(
            f"{out} has {MOST_GENERATIONS:,} generations, which is the limit. Join them: tokenmill "
            f"reshard {out} --out NEW"
        )
    if wrong := manifest.find_incomplete(as_path(out)):
        raise FolderError(
            f"{out} holds a finished dataset, but {wrong} is missing or cut short. Restore that file "
            "from a copy."
        )
    return Base(manifest=manifest, checksum=xxhash.xxh3_128_hexdigest(data))


def inherit_settings(base: Base, given: Mapping[str, Any]) -> PrepareSettings:
    """Return the settings of the dataset, with those that were given. Refuses others than it has."""
    there = base.manifest.settings
    names = {field.name for field in fields(PrepareSettings)} - {"weight"}
    known = {name: there[name] for name in names & there.keys()}
    before, now = PrepareSettings(**known), PrepareSettings(**{**known, **given})
    functions = [
        rule.name for rule in parse_filters(before.filter) if isinstance(rule, FunctionRule)
    ]
    if functions and "filter" not in given:
        raise UsageError(
            f"The dataset was made with the filter {functions[0]}, which is a Python function. Functions "
            "that only a manifest names are not called: give all filters of the dataset again with "
            f"`filter={','.join(before.filter)!r}`."
        )
    was, new = (
        {name: value for name, value in one.to_json().items() if name not in _MAY_CHANGE}
        for one in (before, now)
    )
    if changes := describe_changes(was, new):
        raise UsageError(
            f"The dataset was made with other settings: {'; '.join(changes)}. Omit these settings to "
            "use those of the dataset, or make another dataset."
        )
    return now


def check_described(base: Base, described: Mapping[str, Any]) -> None:
    """Refuse what decides the content besides the settings, if it differs from that of the dataset.

    `described` are these facts about the run, as a manifest stores them.
    """
    there = base.manifest.settings
    for name, (what, cure) in _DESCRIBED.items():
        if there.get(name) != described.get(name):
            how = "with other" if name in there else "without"
            raise UsageError(
                f"The dataset was made {how} {what}. {cure if name in there else f'Omit `{name}`'}, or "
                "make another dataset."
            )


def inherit_tokenizer(
    base: Base, out: str | os.PathLike[str], given: str | os.PathLike[str] | Tokenizer | None
) -> Tokenizer:
    """Return the tokenizer of the dataset. Refuses another one, if one was given."""
    manifest = base.manifest
    tokenizer = load_saved_tokenizer(as_path(out)) if given is None else load_tokenizer(given)
    if tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        raise UsageError(
            f"The dataset was made with the tokenizer {manifest.tokenizer!r} (fingerprint "
            f"{manifest.tokenizer_fingerprint!r}), not {tokenizer.name!r} (fingerprint "
            f"{tokenizer.fingerprint!r}). Omit `tokenizer` to use the tokenizer of the dataset."
        )
    return tokenizer


def check_base(base: Base, out: Path) -> None:
    """Raise `FolderError` if the dataset is not the one that the run began with."""
    data = find_manifest(out)
    if data is None or xxhash.xxh3_128_hexdigest(data) != base.checksum:
        raise FolderError(
            f"{out} has changed since this run began: its {MANIFEST_NAME} is another one. Run the same "
            "command again to add to the dataset as it is now."
        )


def grow(
    manifest: Manifest,
    settings: Mapping[str, Any],
    ledger: Mapping[str, Any],
    shards: Mapping[str, Sequence[Shard]],
    sources: SourceTable,
) -> Manifest:
    """Return the manifest of a dataset with added shards and sources. `ledger` is of what was added."""
    return replace(
        manifest,
        splits={
            name: Split(shards=ShardTable.of([*split.shards, *shards[name]]))
            for name, split in manifest.splits.items()
        },
        settings=settings,
        ledger=add_ledgers(manifest.ledger, ledger),
        sources=join_sources([*manifest.sources.parts, sources]),
        generations=(*manifest.generations, manifest.as_earlier()),
    )
