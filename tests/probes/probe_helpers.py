"""Small models of our own class for the tests of the probes."""

from __future__ import annotations

import argparse

from hwh_core.modeling import build_model

VOCABULARY = 300
SHAPE = {
    "num_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "attention_head_dim": 16,
    "num_attention_heads": 3,
    "gate": True,
    "initializer_range": 0.3,
}

HYBRID_SHAPE = {
    "num_layers": 4,
    "hidden_size": 64,
    "attention_head_dim": 8,
    "gdn_head_dim": 8,
    "num_attention_heads": None,
}


def controlled_model(seed: int = 0, qk_norm: bool = True, architecture: str = "transformer", **changes):
    """A model of our own class with logits far from 0."""
    return build_model(SHAPE | changes, architecture, 10000.0, qk_norm, 64, VOCABULARY, seed).eval()


def parsed(command, *arguments):
    """Arguments of a subcommand as its parser gives them."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers(dest="command"))
    return parser.parse_args(list(map(str, arguments)))
