"""Make the judges of a run from its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.preparation.filter_functions import FunctionRecipe, plan_function
from tokenmill.preparation.filter_judge import FilterRecipe
from tokenmill.preparation.filters.rules import Rule, parse_filters
from tokenmill.preparation.judges import JudgeRecipe
from tokenmill.preparation.settings import PrepareSettings


def plan_judges(settings: PrepareSettings) -> tuple[JudgeRecipe, ...]:
    """Return the recipes of the judges that the settings ask for: rules first, then functions."""
    rules = parse_filters(settings.filter)
    recipes: list[JudgeRecipe] = []
    own = tuple(rule for rule in rules if isinstance(rule, Rule))
    if own:
        recipes.append(FilterRecipe(own))
    recipes += [plan_function(rule) for rule in rules if not isinstance(rule, Rule)]
    return tuple(recipes)


def describe_judges(recipes: Sequence[JudgeRecipe]) -> dict[str, Any]:
    """Return what decides the verdicts besides the settings: the checksums of functions."""
    checksums = {
        recipe.rule.name: recipe.checksum
        for recipe in recipes
        if isinstance(recipe, FunctionRecipe)
    }
    return {"filter_functions": checksums} if checksums else {}
