"""The rules of filters: their measures, their thresholds, and how users write them.

A rule has a name that begins with `min_` or `max_`, and a threshold: it drops documents whose measure
is below or above. A preset is a set of rules with published thresholds. Users write

    gopher                      all rules of a preset
    gopher.min_words=30         one rule of it with another threshold; `off` turns it off
    min_bytes=200               one rule
    script=Latin:0.5            the share of letters that belong to a script must be at least 0.5
    my_module:function          a function of the user, which returns the texts to keep
    my_module:function>0.5      or numbers; the others are dropped

An override without its preset is a rule on its own. Rules are checked in the order of presets, cheap
ones before the n-grams; a document is counted under the first rule that drops it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from tokenmill.errors import UsageError
from tokenmill.preparation.filters import measures
from tokenmill.preparation.filters.measures import Measure
from tokenmill.preparation.filters.scripts import SCRIPTS, share_of_script

# The measures of rules, and what they measure. Rules about repetition have none here: `filter_judge.py`
# measures all of them together.
MEASURES: Mapping[str, Measure] = {
    "bytes": measures.count_bytes,
    "words": measures.count_words,
    "word_length": measures.mean_word_length,
    "hashes": measures.hashes_per_word,
    "ellipses": measures.ellipses_per_word,
    "bullet_lines": measures.bullet_lines,
    "ellipsis_lines": measures.ellipsis_lines,
    "letter_words": measures.letter_words,
    "stop_words": partial(measures.stop_words, enough=float("inf")),
    "punctuated_lines": measures.punctuated_lines,
    "short_lines": measures.short_lines,
    "newlines": measures.newlines_per_word,
    "line_bytes": measures.longest_line,
    "encoded_lines": measures.encoded_lines,
    "brace_lines": measures.braces,
    "placeholder_lines": measures.placeholders,
    "sentences": measures.c4_sentences,
}
REPEATS = (
    "repeated_lines",
    "repeated_line_characters",
    "repeated_line_text",
    "repeated_paragraphs",
    "repeated_paragraph_characters",
)
TOP = {f"top_{n}_grams": n for n in (2, 3, 4)}
REPEATED = {f"repeated_{n}_grams": n for n in (5, 6, 7, 8, 9, 10)}
_BOTH = ("bytes", "words", "word_length")  # with a rule for the smallest and one for the largest
_LEAST = ("letter_words", "stop_words", "punctuated_lines", "sentences")

PRESETS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        # Rae et al., "Scaling Language Models: Methods, Analysis & Insights from Training Gopher",
        # 2021: the rules of section A1.1 and table A1.
        "gopher": {
            "min_words": 50,
            "max_words": 100_000,
            "min_word_length": 3,
            "max_word_length": 10,
            "max_hashes": 0.1,
            "max_ellipses": 0.1,
            "max_bullet_lines": 0.9,
            "max_ellipsis_lines": 0.3,
            "min_letter_words": 0.8,
            "min_stop_words": 2,
            "max_repeated_paragraphs": 0.3,
            "max_repeated_paragraph_characters": 0.2,
            "max_repeated_lines": 0.3,
            "max_repeated_line_characters": 0.2,
            "max_top_2_grams": 0.2,
            "max_top_3_grams": 0.18,
            "max_top_4_grams": 0.16,
            "max_repeated_5_grams": 0.15,
            "max_repeated_6_grams": 0.14,
            "max_repeated_7_grams": 0.13,
            "max_repeated_8_grams": 0.12,
            "max_repeated_9_grams": 0.11,
            "max_repeated_10_grams": 0.1,
        },
        # Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
        # Transformer", 2020, section 2.2: the rules about whole pages.
        "c4": {"max_placeholder_lines": 0, "max_brace_lines": 0, "min_sentences": 5},
        # Penedo et al., "The FineWeb Datasets: Decanting the Web for the Finest Text Data at
        # Scale", 2024: the rules that were developed for FineWeb.
        "fineweb": {
            "min_punctuated_lines": 0.12,
            "max_short_lines": 0.67,
            "max_repeated_line_text": 0.01,
            "max_newlines": 0.3,
        },
    }
)
_FUNCTION = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)(?:(>=|<=|>|<)(.+))?")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: drop documents whose measure is below or above the threshold.

    `name` is how the ledger names the rule, such as gopher.min_words. `argument` is a script.
    """

    name: str
    measure: str
    is_least: bool  # whether the threshold is the smallest value allowed, not the largest
    threshold: float
    argument: str = ""

    @property
    def repeats(self) -> bool:
        """Whether the rule is about repeated lines or n-grams."""
        return self.measure in REPEATS or self.measure in TOP or self.measure in REPEATED

    @property
    def function(self) -> Measure:
        """The function that measures documents, if the rule is not about repetition."""
        if self.measure == "script":
            return partial(share_of_script, script=self.argument)
        if self.measure == "stop_words":
            return partial(measures.stop_words, enough=self.threshold)
        return MEASURES[self.measure]


@dataclass(frozen=True, kw_only=True)
class FunctionRule:
    """A function of the user. `operator` is empty if the function returns which texts to keep."""

    name: str  # how the ledger names the rule
    module: str
    function: str
    operator: str = ""
    threshold: float = 0.0


def _names() -> dict[str, tuple[str, bool]]:
    """Return for the name of each rule its measure, and whether its threshold is a minimum."""
    found = {}
    for measure in (*MEASURES, *REPEATS, *TOP, *REPEATED):
        if measure in _BOTH or measure in _LEAST:
            found[f"min_{measure}"] = (measure, True)
        if measure not in _LEAST:
            found[f"max_{measure}"] = (measure, False)
    return found


RULES = MappingProxyType(_names())


def split_list(values: str | Iterable[str]) -> tuple[str, ...]:
    """Return the items of a setting that may be a list, or text with commas.

    >>> split_list("a, b"), split_list(["a,b", "c"])
    (('a', 'b'), ('a', 'b', 'c'))
    """
    listed = [values] if isinstance(values, str) else list(values)
    return tuple(part.strip() for value in listed for part in value.split(",") if part.strip())


def parse_filters(filters: Sequence[str]) -> tuple[Rule | FunctionRule, ...]:
    """Return the rules that a user asks for. Raises `UsageError` if one is unknown."""
    rules: dict[str, Rule | FunctionRule] = {}
    presets = [one for one in filters if one in PRESETS]
    for preset in presets:
        for name, threshold in PRESETS[preset].items():
            rules[f"{preset}.{name}"] = _make_rule(f"{preset}.{name}", name, threshold)
    for written in filters:
        if written in PRESETS:
            continue
        name, equals, value = written.partition("=")
        if (match := _FUNCTION.fullmatch(written)) and not written.startswith("script="):
            rules[written] = _make_function(written, match)
            continue
        preset, _, rule = name.strip().rpartition(".")
        if not equals or (preset and preset not in PRESETS):
            raise _unknown(written)
        if preset and rule not in PRESETS[preset]:
            known = ", ".join(PRESETS[preset])
            raise UsageError(f"`filter` is {written!r}; the rules of {preset} are {known}.")
        if not preset and rule == "script":
            script, _, share = value.partition(":")
            rules[f"script={script}"] = _make_script(written, script, share)
            continue
        if rule not in RULES:
            raise _unknown(written)
        if value.strip() == "off":
            rules.pop(name.strip(), None)
            continue
        rules[name.strip()] = _make_rule(name.strip(), rule, _number(written, value))
    return tuple(rules.values())


def _make_rule(name: str, rule: str, threshold: float) -> Rule:
    measure, is_least = RULES[rule]
    return Rule(name=name, measure=measure, is_least=is_least, threshold=threshold)


def _make_script(written: str, script: str, share: str) -> Rule:
    if script not in SCRIPTS:
        raise UsageError(f"`filter` is {written!r}; the scripts are {', '.join(SCRIPTS)}.")
    least = _number(written, share or "0.5")
    return Rule(
        name=f"script={script}", measure="script", is_least=True, threshold=least, argument=script
    )


def _make_function(written: str, match: re.Match[str]) -> FunctionRule:
    module, function, operator, value = match.groups()
    threshold = _number(written, value) if operator else 0.0
    return FunctionRule(
        name=written,
        module=module,
        function=function,
        operator=operator or "",
        threshold=threshold,
    )


def _number(written: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if number != number or abs(number) == float("inf"):
        raise UsageError(
            f"`filter` is {written!r}; {value.strip()!r} is not a number. Write a rule as "
            "gopher.min_words=30."
        )
    return number


def _unknown(written: str) -> UsageError:
    return UsageError(
        f"`filter` is {written!r}, which is not a filter. Give one of {', '.join(PRESETS)}; a rule "
        "with its threshold, such as min_words=30 or gopher.min_words=30; script=Latin:0.5; or a "
        f"function as my_module:function. The rules are {', '.join(RULES)}."
    )
