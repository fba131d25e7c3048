"""Filters: rules that drop documents by their text. docs/filters.md describes them for users.

`block.py` finds characters, words and lines of many documents at once. `measures.py`, `repetition.py`
and `scripts.py` measure documents, and `rules.py` has the rules with their thresholds, the published
sets of rules, and how users write them. The modules here know nothing of `prepare`: `filter_judge.py`
drops documents by rules, and `filter_functions.py` by functions of the user.
"""
