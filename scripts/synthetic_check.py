"""Run extraction and classification on heads with a known band (claims S1 and S2): writes synthetic.json."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from pydantic import Field, ValidationError

from hwh_core import rope
from hwh_core.config import BandConfig, PositiveInt, Strict
from hwh_core.files import write_json
from hwh_core.gpband import oracle
from hwh_core.gpband.synthetic import HeadSizes, untrained_layer
from hwh_core.progress import progress
from hwh_core.provenance import write_manifest
from hwh_core.scripting import UserError, load_settings, run


class Settings(Strict):
    """Content of --settings; only ``seed`` and ``band`` have no default."""

    seed: int
    band: BandConfig
    length: PositiveInt = 256
    head_dim: PositiveInt = 64
    num_queries: PositiveInt = 16
    num_samples: int = Field(default=4, ge=2)
    num_seeds: PositiveInt = 3
    rope_thetas: list[float] = Field(default=[1e4, 1e6], min_length=1)


def parse_settings(text_or_path: str) -> Settings:
    """Check --settings; raises UserError naming the key."""
    try:
        return Settings.model_validate(load_settings(text_or_path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"--settings: key {key!r}: {first['msg']}; expected {sorted(Settings.model_fields)}") from None


def measure(q: np.ndarray, k: np.ndarray, inv_freq: np.ndarray, scaling: float) -> tuple[np.ndarray, np.ndarray]:
    """RFIS and RPD [H, F] of q [H, Q, d] and k [H, T, d], by the exact reference in float32."""
    import torch

    from hwh_kernels.rfis_rpd_reference import rfis_rpd_per_query

    positions = torch.arange(k.shape[1])
    maps = rfis_rpd_per_query(
        torch.as_tensor(q, dtype=torch.float32),
        torch.as_tensor(k, dtype=torch.float32),
        torch.as_tensor(inv_freq),
        positions[-q.shape[1] :],
        positions,
        scaling=scaling,
    )
    rfis, rpd = (values.mean(dim=1).double().numpy() for values in maps)
    return rfis, rpd


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON text or file: {seed, band} and, if wanted, sizes")
    parser.add_argument("--output", required=True, type=Path, help="synthetic.json to write")
    arguments = parser.parse_args()
    started = time.time()
    settings = parse_settings(arguments.settings)
    sizes = HeadSizes(settings.head_dim, settings.length, settings.num_queries)
    single, spread, nulls, heads = [], [], [], []
    runs = [(theta, settings.seed + seed) for theta in settings.rope_thetas for seed in range(settings.num_seeds)]
    for theta, seed in progress(runs, "planted heads", unit="runs"):
        inv_freq = rope.inverse_frequencies(settings.head_dim, theta)
        layer = untrained_layer(sizes, inv_freq, oracle.BAND_HEADS, settings.num_samples, seed, measure)
        single += oracle.recover_single_groups(layer, theta, settings.band, measure)
        spread += oracle.recover_spread_bands(layer, theta, settings.band, measure)
        nulls += oracle.null_cases(layer, theta, settings.band, measure)
        heads += oracle.classify_planted_heads(sizes, theta, settings.num_samples, settings.band, seed, measure)
    record = oracle.summarise(single, spread, nulls, heads)
    write_json(arguments.output, record)
    write_manifest(
        arguments.output,
        inputs=[],
        settings=load_settings(arguments.settings),
        seed=settings.seed,
        started=started,
    )
    s1, s2 = record["S1"], record["S2"]
    print(f"S1: {s1['recovered']} of {s1['n']} bands recovered; S2: {s2['right']} of {s2['n']} heads classified")


if __name__ == "__main__":
    run(main)
