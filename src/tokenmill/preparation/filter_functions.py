"""Functions of the user as filters: `my_module:function` gets a list of texts.

It returns for each text whether to keep it or, if the filter compares with a number, as in
`my_module:function>0.5`, a number. The module is found as `import` finds it, or in the working folder
of the process that plans the run. A checksum of its file is stored with the settings, so a resumed
run notices a changed function, and a worker refuses another one.
"""

from __future__ import annotations

import importlib
import importlib.util
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tokenmill.errors import UsageError
from tokenmill.preparation.filter_judge import name_reason
from tokenmill.preparation.filters.rules import FunctionRule
from tokenmill.preparation.judges import Judge, Verdicts
from tokenmill.preparation.texts import Texts

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_BATCH = 1 << 10  # texts given to the function at once
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class FunctionRecipe:
    """Makes the judge of a user's function."""

    rule: FunctionRule
    folder: str  # in which the module is searched last
    checksum: str

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reason in the ledger."""
        return (name_reason(self.rule.name),)

    def make(self) -> Judge:
        """Import the function. Raises `UsageError` if its module is not the one of the plan."""
        function, checksum = load_function(self.rule, self.folder)
        if checksum != self.checksum:
            raise UsageError(
                f"the file of the module {self.rule.module} has changed, or a worker finds another "
                "file of that name. Use the same file everywhere, and add `restart=True`."
            )
        return FunctionJudge(self.rule, function)


def plan_function(rule: FunctionRule) -> FunctionRecipe:
    """Return the recipe of a user's function. Raises `UsageError` if it cannot be imported."""
    folder = str(Path.cwd())
    _, checksum = load_function(rule, folder)
    return FunctionRecipe(rule=rule, folder=folder, checksum=checksum)


def load_function(rule: FunctionRule, folder: str) -> tuple[Callable[..., Any], str]:
    """Import a function, and return it with the checksum of its module's file."""
    where = f"`filter` is {rule.name!r}"
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        module = importlib.import_module(rule.module)
    except Exception as error:
        raise UsageError(
            f"{where}, but importing {rule.module} failed: {type(error).__name__}: {error}. Run "
            f"tokenmill in the folder that has {rule.module.split('.')[0]}.py, or install it."
        ) from error
    function = getattr(module, rule.function, None)
    if not callable(function):
        raise UsageError(f"{where}, but {rule.module} has no function {rule.function}.")
    file = getattr(module, "__file__", None)
    if file is None:
        raise UsageError(f"{where}, but {rule.module} is not a file. Use a function in a file.")
    return function, xxhash.xxh3_128_hexdigest(Path(file).read_bytes())


class FunctionJudge(Judge):
    """Drops the texts that a user's function does not keep."""

    def __init__(self, rule: FunctionRule, function: Callable[..., Any]) -> None:
        self.reasons = (name_reason(rule.name),)
        self._rule = rule
        self._function = function

    def judge(self, texts: Texts) -> Verdicts:
        """Call the function with some texts at a time."""
        sizes = texts.text_sizes
        groups = np.maximum(np.cumsum(sizes) // _BATCH_BYTES, np.arange(len(sizes)) // _BATCH)
        begins = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
        numbers, values = [np.zeros(0, np.uint16)], []
        for first, stop in zip(begins, [*begins[1:], len(sizes)], strict=True):
            results = self._call([text.decode() for text in texts.texts[first:stop]])
            if self._rule.operator:
                kept = _COMPARE[self._rule.operator](results, self._rule.threshold)
            else:
                kept = results.astype(np.bool_)
            numbers.append(~kept)
            values += results.tolist()
        return Verdicts(numbers=np.concatenate(numbers).astype(np.uint16), values=values)

    def _call(self, texts: Sequence[str]) -> Any:
        try:
            found = np.asarray(self._function(texts))
        except Exception as error:
            raise UsageError(
                f"the filter {self._rule.name} failed: {type(error).__name__}: {error}"
            ) from error
        wanted = "biuf" if self._rule.operator else "b"
        if found.shape != (len(texts),) or found.dtype.kind not in wanted:
            kind = "a number" if self._rule.operator else "True (keep it) or False"
            raise UsageError(
                f"the filter {self._rule.name} returned {found.dtype} of shape {found.shape} for "
                f"{len(texts)} texts; it must return {kind} for each text."
            )
        return found
