"""Make the judges of a run from its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.preparation.filter_functions import FunctionRecipe, plan_function
from tokenmill.preparation.filter_judge import FilterRecipe
from tokenmill.preparation.filters.rules import Rule, parse_filters
from tokenmill.preparation.judges import JudgeRecipe
from tokenmill.preparation.language_judge import LanguageRecipe, plan_languages
from tokenmill.preparation.settings import PrepareSettings


def plan_judges(settings: PrepareSettings, *, functions: bool = True) -> tuple[JudgeRecipe, ...]:
    """Return the recipes of the judges that the settings ask for.

    Rules are first, then languages, then functions of the user: the cheapest first. With
    `functions=False`, functions of the user are neither imported nor included.
    """
    rules = parse_filters(settings.filter)
    recipes: list[JudgeRecipe] = []
    own = tuple(rule for rule in rules if isinstance(rule, Rule))
    if own:
        recipes.append(FilterRecipe(own))
    if settings.language:
        recipes.append(plan_languages(settings.language))
    if functions:
        recipes += [plan_function(rule) for rule in rules if not isinstance(rule, Rule)]
    return tuple(recipes)


def describe_judges(recipes: Sequence[JudgeRecipe]) -> dict[str, Any]:
    """Return what decides the verdicts besides the settings.

    These are the checksums of functions, and the library that detects languages.
    """
    checksums = {
        recipe.rule.name: recipe.checksum
        for recipe in recipes
        if isinstance(recipe, FunctionRecipe)
    }
    described: dict[str, Any] = {"filter_functions": checksums} if checksums else {}
    for recipe in recipes:
        if isinstance(recipe, LanguageRecipe):
            described["language_library"] = recipe.library
    return described
