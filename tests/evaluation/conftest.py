"""A small tokenizer and small models for the evaluation tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oracle_models import MAX_POSITIONS, prose_texts, train_tokenizer

ROWS = Path(__file__).resolve().parent.parent / "fixtures" / "rows"


@pytest.fixture(scope="session")
def rows_folder() -> Path:
    """Hand-written rows in lm-eval's layout."""
    return ROWS


@pytest.fixture(scope="session")
def prose() -> list[str]:
    """Made-up articles, several thousand words."""
    return prose_texts()


@pytest.fixture(scope="session")
def haystack(prose: list[str]) -> Any:
    """The made-up articles to hide needles in."""
    from hwh_core.evaluation.haystacks import prose_haystack

    return prose_haystack(prose, "made-up prose")


@pytest.fixture(scope="session")
def punkt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder with a sentence splitter in NLTK's layout: so nothing is downloaded, and both sides use the same."""
    import nltk

    folder = tmp_path_factory.mktemp("nltk") / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    (folder / "abbrev_types.txt").write_text("dr\nst\n")
    (folder / "collocations.tab").write_text("st\tmartin\n")
    (folder / "sent_starters.txt").write_text("the\n")
    (folder / "ortho_context.tab").write_text("the\t46\n")
    nltk.data.path.insert(0, str(folder.parents[2]))
    yield
    nltk.data.path.remove(str(folder.parents[2]))


@pytest.fixture(scope="session")
def tokenizer(prose: list[str]) -> Any:
    """Byte-level BPE of 600 tokens with single digits, in Hugging Face form."""
    return train_tokenizer(prose)


@pytest.fixture(scope="session")
def tiny_llama(tokenizer: Any) -> Any:
    """A random Llama of two layers; its length limit is MAX_POSITIONS."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=MAX_POSITIONS,
            initializer_range=0.2,
        )
    ).eval()
