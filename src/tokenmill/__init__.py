"""tokenmill: text to tokens on disk, and tokens on disk to training batches.

Importing the package takes a few hundredths of a second, because each public name is imported when
it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Batch": "tokenmill.load.batches",
    "Config": "tokenmill.training.config",
    "Dataset": "tokenmill.dataset.opening",
    "DocumentedBatch": "tokenmill.load.batches",
    "Loader": "tokenmill.load.loader",
    "Mixture": "tokenmill.load.mixture",
    "Report": "tokenmill.preparation.prepare",
    "Tokenizer": "tokenmill.tokenizers",
    "TokenmillError": "tokenmill.errors",
    "Tokens": "tokenmill.store.tokens",
    "cache": "tokenmill.dataset.caching",
    "contaminated": "tokenmill.inspect.contaminated",
    "diff": "tokenmill.inspect.diff.diff",
    "download": "tokenmill.dataset.download",
    "exclude": "tokenmill.inspect.exclude",
    "explain": "tokenmill.inspect.explain",
    "export": "tokenmill.convert.export",
    "import_dataset": "tokenmill.convert.import_dataset",
    "index": "tokenmill.inspect.search.search",
    "load_tokenizer": "tokenmill.tokenizers",
    "open": "tokenmill.dataset.opening",
    "prepare": "tokenmill.preparation.prepare",
    "pretokenize": "tokenmill.preparation.pretokenize",
    "register_tokenizer": "tokenmill.tokenizers",
    "reshard": "tokenmill.convert.reshard",
    "sample": "tokenmill.training.sample",
    "search": "tokenmill.inspect.search.search",
    "spikes": "tokenmill.inspect.spikes.spikes",
    "stats": "tokenmill.inspect.stats.stats",
    "train": "tokenmill.training.run",
    "train_tokenizer": "tokenmill.preparation.train_tokenizer",
    "verify": "tokenmill.dataset.verify",
    "view": "tokenmill.inspect.view.server",
    "where": "tokenmill.inspect.where.where",
}

__all__ = [
    "Batch",
    "Config",
    "Dataset",
    "DocumentedBatch",
    "Loader",
    "Mixture",
    "Report",
    "Tokenizer",
    "TokenmillError",
    "Tokens",
    "cache",
    "contaminated",
    "diff",
    "download",
    "exclude",
    "explain",
    "export",
    "import_dataset",
    "index",
    "load_tokenizer",
    "open",
    "prepare",
    "pretokenize",
    "register_tokenizer",
    "reshard",
    "sample",
    "search",
    "spikes",
    "stats",
    "train",
    "train_tokenizer",
    "verify",
    "view",
    "where",
]

if TYPE_CHECKING:
    from tokenmill.convert.export import export
    from tokenmill.convert.import_dataset import import_dataset
    from tokenmill.convert.reshard import reshard
    from tokenmill.dataset.caching import cache
    from tokenmill.dataset.download import download
    from tokenmill.dataset.opening import Dataset, open
    from tokenmill.dataset.verify import verify
    from tokenmill.errors import TokenmillError
    from tokenmill.inspect.contaminated import contaminated
    from tokenmill.inspect.diff.diff import diff
    from tokenmill.inspect.exclude import exclude
    from tokenmill.inspect.explain import explain
    from tokenmill.inspect.search.search import index, search
    from tokenmill.inspect.spikes.spikes import spikes
    from tokenmill.inspect.stats.stats import stats
    from tokenmill.inspect.view.server import view
    from tokenmill.inspect.where.where import where
    from tokenmill.load.batches import Batch, DocumentedBatch
    from tokenmill.load.loader import Loader
    from tokenmill.load.mixture import Mixture
    from tokenmill.preparation.prepare import Report, prepare
    from tokenmill.preparation.pretokenize import pretokenize
    from tokenmill.preparation.train_tokenizer import train_tokenizer
    from tokenmill.store.tokens import Tokens
    from tokenmill.tokenizers import Tokenizer, load_tokenizer, register_tokenizer
    from tokenmill.training.config import Config
    from tokenmill.training.run import train
    from tokenmill.training.sample import sample
else:  # hidden from type checkers, so that they report unknown names

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")
        value = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
