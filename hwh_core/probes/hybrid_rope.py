"""RFIS and RPD of the heads of our own models that rotate, and the band that they show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..config import BandConfig
from ..gpband.maps import check_maps
from ..gpband.record import BandModel, band_record
from ..modeling import build_model
from .maps import ProbeMaps
from .measure import measure_maps


def rope_maps(settings: dict[str, Any], model: Any, windows: np.ndarray, num_queries: int) -> ProbeMaps:
    """RFIS and RPD of the heads of a trained model that rotate, on ``windows`` [n, T], with those at initialisation.

    Settings {model: {name and what :func:`~hwh_core.modeling.build_model` needs}, band, seed}. The description holds
    ``band``, a record as of :func:`~hwh_core.gpband.record.band_record` with the one factor 1 (None where no head
    rotates, and for one window alone); it is sought within what these heads see, the training length or their window. A
    model without such heads gives maps without layers.
    """
    rotating = [module for _, _, module in model.rope_groups()]
    if not rotating:
        empty = np.zeros((len(windows), 0, 0, 0), np.float32)
        return ProbeMaps(
            rfis=empty, rpd=empty, inv_freq=np.zeros(0), null=np.zeros(0), sample_weight=np.ones(len(windows)),
            layer_index=np.zeros(0, int), description={"band": None, "rotating_heads": 0},
        )  # fmt: skip
    about = settings["model"]
    # Weights at initialisation are a function of the settings: no file of them is needed.
    initial = build_model(
        about["shape"], about["architecture"], about["rope_theta"], about["qk_norm"], about["length"],
        model.config.vocab_size, about["seed"],
    ).eval().requires_grad_(False).to(next(model.parameters()).device)  # fmt: skip
    title = about["name"]
    maps = measure_maps(model, None, windows, num_queries, description=f"RFIS and RPD of {title}")
    before = measure_maps(initial, None, windows, num_queries, description=f"{title} at initialisation")
    reach = {module.window for module in rotating}
    context = about["length"] if None in reach else min(about["length"], *reach)
    band = None
    if len(windows) > 1:
        checked = check_maps(
            maps.rfis, maps.rpd, maps.inv_freq, maps.null, rfis_initial=before.rfis, rpd_initial=before.rpd,
            sample_weight=maps.sample_weight, layer_index=maps.layer_index,
        )  # fmt: skip
        known = BandModel(title, about["rope_theta"], context, about["qk_norm"], about["seed"], rotating[0].head_dim)
        band = band_record(known, {1.0: (checked, context)}, BandConfig(**settings["band"]), settings["seed"])
    heads = sum(module.num_heads for module in rotating)
    description = {**maps.description, "rotating_heads": heads, "context": context, "band": band}
    return replace(maps, rfis_initial=before.rfis, rpd_initial=before.rpd, description=description)
