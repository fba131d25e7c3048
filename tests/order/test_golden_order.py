"""The orders equal the golden values, so that old runs can be reproduced row by row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tokenmill.order.mixture import MixtureOrder
from tokenmill.order.permutation import Permutation, make_key
from tokenmill.order.rows import RowOrder

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "order.json").read_text())


def test_golden_keys_do_not_change():
    for case in GOLDEN["keys"]:
        assert make_key(*case["parts"]) == case["key"]


def test_golden_permutations_do_not_change():
    for case in GOLDEN["permutations"]:
        reached = Permutation(case["size"], case["key"])(np.array(case["places"]))
        assert reached.tolist() == case["to"], case


def test_golden_rows_do_not_change():
    for case in GOLDEN["rows"]:
        starts = RowOrder(**case["order"]).starts(np.array(case["rows"]))
        assert starts.tolist() == case["starts"], case["order"]


def test_golden_mixtures_do_not_change():
    for case in GOLDEN["mixtures"]:
        mixture = MixtureOrder(names=("a", "b", "c"), **case["order"])
        assigned = np.stack(mixture.assign(np.arange(len(case["assigned"]))), axis=1)
        assert assigned.tolist() == case["assigned"], case["order"]


def test_nothing_golden_is_empty():
    assert [len(cases) for cases in GOLDEN.values()] == [4, 36, 7, 2]
