"""Find text in the tokens of a dataset, and index its words for faster searches.

`vocabulary` has the bytes of all ids, `pattern` finds a text in ids, `scan` applies it to all
tokens, and `matches` describes what was found. `regex` searches decoded documents. `words` and
`word_index` narrow a search to a part of the data.
"""
