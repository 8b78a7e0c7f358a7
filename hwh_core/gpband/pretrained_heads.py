"""Heads and bands of one pretrained model, from its probe and behaviour files: heads.csv and bands.json."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from hwh_core.config import BandConfig, Name, Strict
from hwh_core.files import write_json, write_table
from hwh_core.provenance import write_manifest
from hwh_core.scripting import UserError, load_settings

from . import clustering
from .errors import BandError
from .extraction import BandResult, analyse
from .heads import CLASSES, classify_heads, gqa_entanglement, head_rows, kv_groups, layer_boundaries
from .maps import Maps, load_maps, read_description, read_npz
from .record import factor_record, number, predictions
from .stages import predicted_stages
from .validation import mean_over_samples, validate


class Model(Strict):
    """The pretrained model; rows of ``candidate_bands`` hold label, length and rope_theta of a training stage."""

    name: Name
    title: str
    candidate_bands: list[dict[str, float | str]] = Field(default_factory=list)
    source: dict[str, Any] | None = Field(default=None, description="where the weights come from; recorded, not used")


class Settings(Strict):
    """What decides heads.csv and bands.json besides the maps and scores."""

    model: Model
    band: BandConfig
    seed: int


def parse_settings(text_or_path: str) -> Settings:
    """Check --settings; raises UserError naming the key."""
    try:
        return Settings.model_validate(load_settings(text_or_path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"--settings: key {key!r}: {first['msg']}; expected model, band and seed") from None


def read_behavior(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """QR, calibrated QR and LD at the default window and number of sinks, each [sample, layer, head]."""
    arrays = read_npz(path, ("qr", "qr_calibrated", "ld", "windows", "sinks"))
    about = read_description(path, ("default_window", "default_sinks"))
    ld = arrays["ld"]
    if ld.ndim != 5:
        raise BandError(f"{path}: ld has shape {ld.shape}, expected [sample, layer, head, window, sink]")
    place = []
    for key, name in (("default_window", "windows"), ("default_sinks", "sinks")):
        found = np.flatnonzero(arrays[name] == about[key])
        if len(found) != 1:
            raise BandError(f"{path}: {key} {about[key]} is not among {name} {arrays[name].tolist()}")
        place.append(int(found[0]))
    return arrays["qr"], arrays["qr_calibrated"], ld[..., place[0], place[1]]


def candidates(model: Model, inv_freq: np.ndarray, centres: list[float]) -> list[dict[str, Any]]:
    """Predicted bands of the candidate training stages, with the distance of the nearest cluster found."""
    stages = predicted_stages(model.candidate_bands, inv_freq, "--settings: model.candidate_bands")
    nearest = [min((centre - stage.covariance for centre in centres), key=abs, default=None) for stage in stages]
    return [
        asdict(stage) | {"nearest_cluster_minus_predicted": None if distance is None else number(distance)}
        for stage, distance in zip(stages, nearest, strict=True)
    ]


def bands_record(result: BandResult, model: Model, training_length: int | None) -> dict[str, Any]:
    """Everything in bands.json that comes from the maps alone; ``training_length`` None where it is unknown."""
    found = clustering.band_clusters(result)
    rotary_dim = 2 * result.area.rotated
    return {
        "model": model.name,
        "title": model.title,
        "rotary_dim": rotary_dim,
        "null_rule": "closed-form null scaled to its median over the search range (weights at initialisation unknown)"
        if result.mean_initial is None
        else "same model at initialisation",
        **found,
        "clusters_all_candidates": clustering.all_candidate_clusters(result),
        "layer_mean_peaks": clustering.layer_mean_peaks(result),
        "num_layers_by_prominence_only": clustering.layers_by_prominence_only(result),
        "candidate_bands": candidates(model, result.maps.inv_freq, [row["centre"] for row in found["clusters"]]),
        "band": factor_record(result, predictions(result.maps.inv_freq, training_length)),
    }


def by_frequencies(maps: Maps, layer_inv_freq: np.ndarray | None) -> list[tuple[np.ndarray, Maps]]:
    """Layers that rotate with the same frequencies, and their maps: those of ``maps.inv_freq`` first.

    ``layer_inv_freq`` [L, F] where layers differ, as in Gemma 3: a band lies at other groups for other frequencies.
    """
    if layer_inv_freq is None:
        return [(np.arange(maps.shape[1]), maps)]
    others = [row for row in np.unique(layer_inv_freq, axis=0) if not np.array_equal(row, maps.inv_freq)]
    parts = []
    for table in (maps.inv_freq, *others):
        rows = np.flatnonzero((layer_inv_freq == table).all(axis=1))
        part = replace(
            maps, rfis=maps.rfis[:, rows], rpd=maps.rpd[:, rows], inv_freq=table, null=maps.null[rows],
            layer_index=maps.layer_index[rows], present=maps.present[rows],
        )  # fmt: skip
        parts.append((rows, part))
    return parts


def describe_heads(settings: Settings, probe: Path, behavior: Path, heads: Path, bands: Path) -> dict[str, Any]:
    """Write ``heads`` (.csv and .parquet) and ``bands`` (.json) with their manifests; returns what bands.json holds.

    ``probe`` and ``behavior`` are probe.npz and behavior.npz with their descriptions beside them. Where the samples had
    no gold evidence, QRscore is NaN and ``validation`` None. Raises :class:`BandError`.
    """
    started = time.time()
    maps = load_maps(probe)
    about = read_description(probe, ("length", "num_kv_heads"))
    qr, calibrated, ld = read_behavior(behavior)
    kv_groups(maps.shape[2], int(about["num_kv_heads"]))

    seeds = [int(value) for value in np.random.SeedSequence(settings.seed).generate_state(3)]
    resamples = settings.band.bootstrap_resamples
    parts = by_frequencies(maps, read_npz(probe, ()).get("layer_inv_freq"))
    results = [(rows, analyse(part, int(about["length"]), settings.band, seeds[0])) for rows, part in parts]
    boundaries, origins = np.full(maps.shape[1], np.nan), [""] * maps.shape[1]
    for rows, result in results:
        boundaries[rows], sources = layer_boundaries(result)
        for row, origin in zip(rows, sources, strict=True):
            origins[row] = origin
    classes = classify_heads(maps, boundaries, origins, resamples=resamples, seed=seeds[1])
    record = bands_record(results[0][1], settings.model, about.get("training_length"))
    if len(results) > 1:
        record["bands_of_layers"] = maps.layer_index[results[0][0]].tolist()
        record["other_frequencies"] = [
            bands_record(result, settings.model, None) | {"bands_of_layers": maps.layer_index[rows].tolist()}
            for rows, result in results[1:]
        ]
    record["num_heads_by_class"] = {kind: int((classes.head_class == kind).sum()) for kind in CLASSES}
    record["gqa_entanglement"] = gqa_entanglement(classes, int(about["num_kv_heads"]))
    record["validation"] = None if np.isnan(qr).all() else validate(classes, qr, ld, seed=seeds[2])

    def sample_mean(scores: np.ndarray) -> np.ndarray:
        flat = scores.reshape(len(scores), -1).astype(np.float64)
        return mean_over_samples(flat, np.full((1, len(flat)), 1.0 / len(flat))).reshape(scores.shape[1:])

    import pandas as pd

    rows = head_rows(classes, int(about["num_kv_heads"]), sample_mean(qr), sample_mean(calibrated), sample_mean(ld))
    write_table(pd.DataFrame(rows), heads)
    write_json(bands, record)
    inputs = [path for file in (probe, behavior) for path in (file, file.with_suffix(".json"))]
    for artifact in (heads, bands):
        write_manifest(
            artifact, inputs=inputs, settings=settings.model_dump(mode="json"), seed=settings.seed, started=started
        )
    return record


def summary(record: dict[str, Any]) -> str:
    """One line on the bands and head classes in bands.json."""
    centres = ", ".join(f"{row['centre']:.1f}" for row in record["clusters"]) or "none"
    return f"{record['model']}: bands at {centres}; heads {record['num_heads_by_class']}"
