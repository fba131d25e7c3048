"""The presets: settings by name, such as `tiny` or `124M`, as JSON files in this folder.

A path from the guides, such as configs/150M_1024.json, selects the preset if there is no such file.
"""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path(__file__).parent
_GUIDES = {"124M_1024": "124M", "150M_1024": "150M", "250M_1024": "250M", "tiny_cpu": "tiny"}


def preset_names() -> list[str]:
    """The names of all presets, the smallest model first.

    >>> preset_names()
    ['tiny', 'laptop', '124M', '150M', '250M']
    """
    names = [path.stem for path in _FOLDER.glob("*.json")]
    return sorted(names, key=lambda name: (name[0].isdigit(), name != "tiny", name))


def find_preset(name: str | os.PathLike[str]) -> Path | None:
    """The file of a preset, by its name or by the path that a guide uses for it.

    A plain name always selects the preset; a path selects the preset only if there is no such file.

    >>> find_preset("tiny").name, find_preset("configs/150M_1024.json").name
    ('tiny.json', '150M.json')
    >>> find_preset("configs/mine.json") is None
    True
    """
    text = os.fspath(name)
    if text not in preset_names() and Path(text).exists():
        return None
    stem = Path(text).stem
    stem = _GUIDES.get(stem, stem)
    return _FOLDER / f"{stem}.json" if stem in preset_names() else None
