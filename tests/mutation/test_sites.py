"""The places that mutation testing changes."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.sites import apply, find_mutants

SOURCE = '''\
"""A module."""

LIMIT = 5


def first(values: list[int] | None, wide: bool = True) -> int:
    """Return the first positive value."""
    if not values:
        raise ValueError(f"no values below {LIMIT + 1}")
    for value in values:
        if (value) > 0 and wide:
            return value - 1
    values.append(3)
    return LIMIT
'''


def test_each_kind_of_place_is_found_once(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(SOURCE)
    found = find_mutants(tmp_path, tmp_path / "module.py")
    assert [(m.line, m.before, m.replacement) for m in found] == [
        (6, "True", "False"),
        (8, "not ", ""),
        (8, "not values", "False"),
        (8, "not values", "True"),
        (9, 'raise ValueError(f"no values below {LIMIT + 1}")', "pass"),
        (11, "(value) > 0 and wide", "False"),
        (11, "(value) > 0 and wide", "True"),
        (11, ">", ">="),
        (11, "0", "1"),
        (11, "and", "or"),
        (12, "value - 1", "None"),
        (12, "-", "+"),
        (12, "1", "2"),
        (13, "values.append(3)", "pass"),
        (13, "3", "4"),
        (14, "LIMIT", "None"),
    ]


def test_a_mutant_is_one_change_and_keeps_its_name_when_lines_move(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    before = find_mutants(tmp_path, path)
    changed = apply(SOURCE, before[1])
    assert changed == SOURCE.replace("not values", "values")
    path.write_text("# a comment with an é\n" + SOURCE)
    after = find_mutants(tmp_path, path)
    assert [m.name for m in after] == [m.name for m in before]
    assert [m.line for m in after] == [m.line + 1 for m in before]
    assert len({m.name for m in before}) == len(before)
