"""What a training is made from: settings and token stores, checked before anything heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.loader import BatchLoader
from ..data.retrieval_mix import RetrievalMixLoader
from ..data.store import TokenStore
from .settings import TrainSettings, parse_settings

# Larger stores are taken on the sizes in their index: reading them costs minutes, and a training reads them all day.
VERIFIED_BYTES = 2**32


@dataclass(frozen=True)
class Paths:
    """Folders of a run: token stores, tokenizer, outputs, checkpoints."""

    store: Path
    held_out: Path
    tokenizer: Path
    output: Path
    checkpoints: Path


@dataclass(frozen=True)
class Inputs:
    """Checked settings, the training batches and the held-out store."""

    settings: TrainSettings
    loader: BatchLoader | RetrievalMixLoader
    held_out: TokenStore

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary of both stores."""
        return self.loader.store.vocab_size


def open_inputs(values: dict[str, Any], paths: Paths) -> Inputs:
    """Check settings and open the stores.

    Raises :class:`~hwh_core.training.settings.TrainingError` for settings and
    :class:`~hwh_core.data.errors.DataError` for a store that is damaged or was not made by this tokenizer.
    """
    settings = parse_settings(values)
    stores = TokenStore.open(paths.store), TokenStore.open(paths.held_out)
    for store in stores:
        store.check_tokenizer(paths.tokenizer)
        if store.tokens.nbytes <= VERIFIED_BYTES:
            store.verify()
    length = settings.model.length
    loader = BatchLoader(stores[0], length, settings.training.tokens_per_step // length, settings.model.seed)
    if settings.retrieval_mix is not None:
        loader = RetrievalMixLoader(loader, settings.retrieval_mix, paths.tokenizer)
    return Inputs(settings, loader, stores[1])
