"""Results of imagined models with known numbers, written in the layout that the workflow writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from hwh_core.architectures import describe_allocation, layers_of_shape
from hwh_core.config import BandConfig, ControlledModel, PresetConfig
from hwh_core.gpband.emergence import Probe, curve_tables
from hwh_core.gpband.maps import check_maps
from hwh_core.gpband.record import BandModel
from hwh_core.reporting import selection
from hwh_core.rope import inverse_frequencies, predicted_index, predicted_period

SHA = "a" * 64


def put_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def put_table(path: Path, frame: pd.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False)


def factor_entry(peak: float, eval_length: int, *, verdict: str = "peak", layers: int = 4, **changes: object) -> dict:
    entry = {
        "eval_length": eval_length,
        "peak": peak,
        "peak_ci": [peak - 0.05, peak + 0.05],
        "centroid": peak,
        "rfis_peak": peak + 0.2,
        "edge": peak + 2.0,
        "period": 500.0,
        "prominence": 0.6,
        "height_over_initial": 4.0,
        "verdict": verdict,
        "below_band_ratio": 0.02,
        "below_band_ratio_ci": [0.018, 0.022],
        "below_band_ratio_initial": 0.3,
        "below_band_over_initial": 0.07,
        "below_band_over_initial_ci": [0.06, 0.08],
        "num_samples": 3,
        "num_layers": layers,
        "num_layers_with_peak": layers if verdict == "peak" else 0,
        "layers": [{"layer": i, "peak": peak, "verdict": verdict} for i in range(layers)],
        "layer_iqr": 0.5,
        "c8_rate": 1.0,
        "c8_chance": 0.1,
        "initial": {"peak": peak + 0.1, "height": 0.01},
    }
    return {**entry, **changes}


def band(model, peak: float | None = None, drift: float = 0.1, head_dim: int = 64, **changes: object) -> dict:
    """band.json of one controlled model whose peak lies at ``peak`` (default: where it is predicted)."""
    peak = predicted_index(head_dim, model.rope_theta, model.length) if peak is None else peak
    return {
        "model": model.name,
        "seed": model.seed,
        "rope_theta": model.rope_theta,
        "length": model.length,
        "qk_norm": model.qk_norm,
        "head_dim": head_dim,
        "predicted": {
            "covariance": predicted_index(head_dim, model.rope_theta, model.length),
            "oka": predicted_index(head_dim, model.rope_theta, model.length, "oka"),
            "period": predicted_period(model.length),
        },
        "factors": {
            "0.5": factor_entry(peak - drift, model.length // 2, **changes),
            "1": factor_entry(peak, model.length, **changes),
            "2": factor_entry(peak + drift, 2 * model.length, **changes),
        },
        "drift": {
            "shifts": {
                factor: {"shift": sign * drift, "ci": [sign * drift - 0.05, sign * drift + 0.05], "verdict": "peak"}
                for factor, sign in (("0.5", -1), ("2", 1))
            }
        },
    }


def bump(count: int, peak: float, width: float = 1.2) -> np.ndarray:
    return np.exp(-(((np.arange(count) - peak) / width) ** 2))


def controlled_maps(model, peak: float, layers: int = 4, heads: int = 2, samples: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(model.seed)
    shape = (samples, layers, heads, 32)
    noise = lambda: 1 + 0.1 * rng.random(shape)  # noqa: E731
    base = bump(32, peak) * 0.02 + bump(32, 4, 3) * 0.005
    tail = np.where(np.arange(32) > peak + 2, 0.004, 0.0)
    null = 0.5 + 0.4 * bump(32, peak, 3)
    return {
        "rfis": ((base + tail) * noise()).astype(np.float32),
        "rpd": (base * noise()).astype(np.float32),
        "rfis_initial": (0.001 * noise()).astype(np.float32),
        "rpd_initial": (0.001 * null * noise()).astype(np.float32),
        "inv_freq": inverse_frequencies(64, model.rope_theta),
        "null": null,
        "sample_weight": np.ones(samples),
        "layer_index": np.arange(layers),
    }


def write_controlled(
    root: Path, config: PresetConfig, peaks: dict[str, float] | None = None, **changes: object
) -> None:
    for model in config.controlled.models:
        shift = 0.1 * model.seed + (0.0 if model.qk_norm else 1.5)
        peak = (peaks or {}).get(model.name, predicted_index(64, model.rope_theta, model.length) + shift)
        folder = root / "controlled" / model.name
        put_json(folder / "band.json", band(model, peak, **changes))
        put_json(folder / "metrics.json", {"tokens": 819200, "parameters": 200000, "seconds": 30.0})
        np.savez(folder / "probe_x1.npz", **controlled_maps(model, peak))


# How far each step of a curve has come from the maps at initialisation (0) to those of a trained model (1).
GROWTH = (0.0, 0.0, 0.02, 0.2, 0.5, 0.8, 1.0)


def write_curve(root: Path, config: PresetConfig, growth: dict[str, tuple[float, ...]] | None = None) -> None:
    """Curves whose band grows from nothing as ``growth`` says of a model; made by the extraction itself."""
    training, curve = config.controlled.training, config.controlled.curve
    for model in config.controlled.curve_models:
        maps = controlled_maps(model, predicted_index(64, model.rope_theta, model.length))
        probes = []
        for step, share in zip(curve.steps, (growth or {}).get(model.name, GROWTH), strict=True):
            rpd, rfis = (maps[f"{name}_initial"] + share * maps[name] for name in ("rpd", "rfis"))
            named = {key: maps[key] for key in ("rfis_initial", "rpd_initial", "sample_weight", "layer_index")}
            checked = check_maps(rfis, rpd, maps["inv_freq"], np.ones(32), **named)
            probes.append(Probe(step, step * training.tokens_per_step, 6.0 - 2 * share, model.length, checked))
        about = BandModel(**model.model_dump(), head_dim=64)
        rows, means = curve_tables(about, probes, BandConfig(bootstrap_resamples=30), seed=0)
        put_table(root / "controlled" / model.name / "curve.csv", rows)
        put_table(root / "controlled" / model.name / "curve_maps.csv", means)


def write_pretrained(root: Path, config: PresetConfig, layers: int = 12, heads: int = 6, frequencies: int = 32) -> None:
    """Retrieval heads (RFIS below the band, no RPD there) in the middle layers, positional heads elsewhere."""
    for model in config.pretrained.models:
        rng = np.random.default_rng(len(model.name))
        samples = 3
        index = [(layer, head) for layer in range(layers) for head in range(heads)]
        retrieval = {(layers // 2, 0), (layers // 2, 1), (layers // 2 + 1, 2), (layers // 2 - 1, 3)}
        peak = frequencies * 0.6
        groups = np.arange(frequencies)
        rfis = np.zeros((samples, layers, heads, frequencies), np.float32)
        rpd = np.zeros_like(rfis)
        rows = []
        for layer, head in index:
            noise = 1 + 0.1 * rng.random((samples, frequencies))
            low = np.where(groups > peak + 1.5, 0.02, 0.001)
            positional = bump(frequencies, peak) * 0.03 + bump(frequencies, 5, 3) * 0.02
            is_retrieval = (layer, head) in retrieval
            rfis[:, layer, head] = (low if is_retrieval else positional + 1e-4) * noise
            rpd[:, layer, head] = (0.05 * low if is_retrieval else positional) * noise
            total, positional_total = rfis[:, layer, head].sum(), rpd[:, layer, head].sum()
            s_ret = float(rfis[:, layer, head][:, groups > peak + 1].sum() / total)
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "kv_group": head // 3,
                    "s_ret": s_ret,
                    "s_ret_lo": s_ret - 0.02,
                    "s_ret_hi": s_ret + 0.02,
                    "d_ratio": float(positional_total / total),
                    "boundary": peak + 1,
                    "head_class": "retrieval" if s_ret >= 0.5 else "positional",
                    "qr": float(0.2 + 0.05 * rng.random() if is_retrieval else 0.004 * rng.random()),
                    "qr_calibrated": 0.0,
                    "ld": float(0.2 + 0.6 * rng.random()),
                    "rfis_total": float(total / samples),
                    "rpd_total": float(positional_total / samples),
                }
            )
        frame = pd.DataFrame(rows)
        folder = root / "pretrained" / model.name
        put_table(folder / "heads.csv", frame)
        np.savez(
            folder / "probe.npz",
            rfis=rfis,
            rpd=rpd,
            inv_freq=inverse_frequencies(2 * frequencies, 1e5),
            null=np.ones(frequencies),
            sample_weight=np.ones(samples),
            layer_index=np.arange(layers),
        )
        qr = frame["qr"].to_numpy().reshape(1, layers, heads) * (1 + 0.05 * rng.random((samples, layers, heads)))
        ld = frame["ld"].to_numpy().reshape(1, layers, heads, 1, 1) * np.ones((samples, 1, 1, 1, 1))
        np.savez(folder / "behavior.npz", qr=qr, qr_calibrated=qr, ld=ld, windows=np.array([128]), sinks=np.array([4]))
        # Norms follow RFIS, but for one wide bump where RFIS has none: there they disagree.
        norms = np.sqrt(rfis + 0.02 * bump(frequencies, 12, 2).astype(np.float32))
        np.savez(
            folder / "norms.npz", q_norm=norms, k_norm=norms, scaling=np.full(layers, 0.125),
            inv_freq=inverse_frequencies(2 * frequencies, 1e5), layer_index=np.arange(layers),
        )  # fmt: skip
        put_table(folder / "causal_summary.csv", causal_summary())
        put_json(folder / "bands.json", bands(peak))


def causal_summary() -> pd.DataFrame:
    """Two interventions that cost more than random sets."""
    rows = [
        {
            "intervention": name, "kind": kind, "measure": measure, "places": 10, "baseline": 3.0, "change": sign * 0.5,
            "change_low": sign * 0.5 - 0.1, "change_high": sign * 0.5 + 0.1, "random_change": sign * 0.1,
            "random_low": sign * 0.1 - 0.05, "random_high": sign * 0.1 + 0.05, "over_random": sign * 0.4,
            "over_random_low": sign * 0.4 - 0.1, "over_random_high": sign * 0.4 + 0.1, "n_samples": 8,
        }
        for name, kind in (("retrieval heads", "heads"), ("below the band", "rotation"))
        for measure, sign in (("loss", 1), ("needle", 1), ("exact", -1))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def statistic(estimate: float | None, half_width: float = 0.02) -> dict:
    ci = None if estimate is None else [estimate - half_width, estimate + half_width]
    return {"estimate": estimate, "ci": ci, "n_heads": 72}


def bands(peak: float, **statistics: float | None) -> dict:
    """bands.json with two clusters 6 groups apart; ``statistics`` replace validation estimates by name."""
    values = {
        "auroc_s_ret_top_qr": 0.95,
        "auroc_distance_gap": 0.3,
        "pearson_qr_one_minus_ld": 0.1,
        "low_low_share_third": 0.1,
        "qr_mass_top": 0.7,
        "top_heads_in_middle_half": 0.9,
        "spearman_s_ret_qr": 0.6,
        "spearman_s_ret_ld": -0.2,
        "auroc_s_ret_top_ld": 0.4,
        **statistics,
    }
    return {
        "clusters": [
            {"centre": peak - 6, "centre_ci": [peak - 6.1, peak - 5.9], "layers": [3, 4, 5], "num_layers": 3},
            {"centre": peak, "centre_ci": [peak - 0.1, peak + 0.1], "layers": [0, 1, 2], "num_layers": 3},
        ],
        "num_clusters_ci": [2.0, 2.0],
        "largest_gap": 6.0,
        "largest_gap_ci": [5.8, 6.2],
        "band": factor_entry(peak, 2048, layers=12, edge_ci=[peak + 1.9, peak + 2.1], c8_rate_ci=[0.9, 1.0]),
        "validation": {name: statistic(value) for name, value in values.items()},
    }


TASKS = {
    "lambada_openai": (("perplexity", 60.0), ("acc", 0.30)),
    "held_out_articles": (("word_perplexity", 40.0),),
    "piqa": (("acc", 0.6), ("acc_norm", 0.6)),
    "hellaswag": (("acc", 0.28), ("acc_norm", 0.3)),
    "winogrande": (("acc", 0.5),),
    "arc_easy": (("acc", 0.4),),
    "arc_challenge": (("acc", 0.2), ("acc_norm", 0.24)),
    "social_iqa": (("acc", 0.35),),
    "boolq": (("acc", 0.55),),
    "wikitext": (("word_perplexity", 30.0),),
    "swde": (("contains", 0.3),),
    "fda": (("contains", 0.2),),
    "squad_completion": (("contains", 0.35),),
}


def write_scores(
    folder: Path, scale, model, shift: float = 0.0, tasks: dict = TASKS, n: int = 400, rows_sha256: str | None = SHA,
    task_version: str | None = "1.0", max_length: int | None = 256, add_bos: bool = False,
) -> None:  # fmt: skip
    rows = []
    for task, metrics in tasks.items():
        for metric, value in metrics:
            ppl = "perplexity" in metric or metric == "bits_per_byte"
            shifted = value * (1 - shift) if ppl else value + shift
            rows.append(
                {
                    "scale": scale.name,
                    "model": model.name,
                    "architecture": model.architecture,
                    "seed": model.seed,
                    "task": task,
                    "metric": metric,
                    "value": shifted,
                    "stderr": value * 0.4 / np.sqrt(n) if ppl else np.sqrt(value * (1 - value) / n),
                    "n": n,
                    "num_truncated": 0,
                    "num_tokens": 1000,
                    "task_version": task_version,
                    "rows_sha256": rows_sha256,
                    "label": task,
                    "max_length": max_length,
                    "add_bos": add_bos,
                }
            )
    put_table(folder / "scores.csv", pd.DataFrame(rows))


def write_niah(folder: Path, scale, model, config: PresetConfig, accuracy) -> None:
    """``accuracy(length, depth, distance_to_the_end) -> probability``; prompts are drawn with the model's seed."""
    niah = config.evaluation.niah
    rng = np.random.default_rng(model.seed)
    cells = [(n, d, round(n * (1 - d / 100))) for n in niah.lengths for d in niah.depths]
    chance = np.repeat([accuracy(*cell) for cell in cells], niah.samples_per_cell)
    frame = pd.DataFrame(
        np.repeat(cells, niah.samples_per_cell, axis=0), columns=["length", "depth", "needle_distance"]
    )
    frame = frame.assign(
        scale=scale.name,
        model=model.name,
        architecture=model.architecture,
        seed=model.seed,
        sample=np.tile(np.arange(niah.samples_per_cell), len(cells)),
        prompt_tokens=frame["length"] - 8,
        correct=(rng.random(len(chance)) < chance).astype(int),
        metric=niah.metric,
        haystack=niah.haystack,
        wording="ruler",
    )
    put_table(folder / "niah.csv", frame)
    mean = frame["correct"].to_numpy().reshape(len(cells), -1).mean(axis=1)
    n = niah.samples_per_cell
    summary = frame.iloc[::n][["scale", "model", "architecture", "seed", "length", "depth"]]
    summary = summary.assign(mean=mean, n=n, stderr=np.sqrt(mean * (1 - mean) / n))
    put_table(folder / "niah_cells.csv", summary)


def paper_like_accuracy(architecture: str, length: int):
    """Needle accuracies in the shape that the paper reports, for a training length."""

    def accuracy(n: int, depth: float, distance: float) -> float:
        if architecture in ("transformer", "hwh_std_r"):
            return 1.0 if n <= length else 0.0
        if architecture == "gdn":
            return 1.0 if distance <= length else 0.0
        if architecture in ("inter", "hwh_uniform13"):
            return 1.0 if n <= 1.5 * length else 0.0
        return 1.0

    return accuracy


def write_hwh(
    root: Path, config: PresetConfig, shifts: dict[str, float] | None = None, accuracies=None, rows: int = 400
) -> None:
    for scale_ in config.hwh.scales:
        for model in scale_.models:
            folder = root / "hwh" / scale_.name / model.name
            shift = (shifts or {}).get(model.architecture, 0.0) + 0.001 * model.seed
            write_scores(folder, scale_, model, shift, n=rows)
            chosen = (accuracies or paper_like_accuracy)(model.architecture, scale_.length)
            write_niah(folder, scale_, model, config, chosen)
            put_json(folder / "metrics.json", {"tokens": 204800, "parameters": 1900000, "held_out_loss": 4.7})


# Needle share, decay of the reading (tokens), and share of it that lies evenly on all tokens, by kind of head.
READING = {
    "none": (0.6, 20.0, 0.9),
    "rope": (0.3, 30.0, 0.4),
    "window": (0.02, 20.0, 0.0),
    "recurrent": (0.005, 6.0, 0.0),
}


def head_influence(scale, model, reading: dict = READING) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Heads of one model that read exponentially less with distance, plus an even share: heads and bins."""
    heads, bins, distances = [], [], np.arange(scale.length - 4)
    rng = np.random.default_rng(model.seed)
    # As the probe makes them for a length that is a power of two.
    edges = [(0, 1), *((2**k, 2 ** (k + 1)) for k in range(scale.length.bit_length() - 1))]
    layers = layers_of_shape(scale.shape.model_dump(exclude_none=True), model.architecture)
    places = [(index, place) for index, layer in enumerate(layers) for place in range(len(layer))]
    for (layer, place), group in zip(places, describe_allocation(layers), strict=True):
        windowed = group["kind"] == "sliding_window"
        needle, decay, even = reading["window" if windowed else group["position_encoding"]]
        for head in range(group["heads"]):
            key = {
                "scale": scale.name, "model": model.name, "architecture": model.architecture, "seed": model.seed,
                "layer": layer, "group": place, "head": head, "kind": group["kind"],
                "position_encoding": group["position_encoding"],
            }  # fmt: skip
            near = np.exp(-distances / (decay * rng.uniform(0.8, 1.25)))
            share = (1 - even) * near / near.sum() + even / len(distances)
            heads.append(
                {
                    **key,
                    "median_distance_tokens": float(np.searchsorted(share.cumsum(), 0.5)),
                    "share_within_128_tokens": share[:128].sum(),
                    "needle_share": needle * rng.uniform(0.8, 1.25),
                    "needle_share_stderr": 0.01,
                    "needle_share_if_even": 0.08,
                }
            )
            bins += [
                {**key, "distance_from_tokens": low, "distance_below_tokens": high, "share": share[low:high].sum()}
                for low, high in edges
            ]
    return pd.DataFrame(heads), pd.DataFrame(bins)


def write_head_influence(root: Path, config: PresetConfig, reading: dict = READING) -> None:
    """What the heads of the probed models read, and a band at group 5 of those that rotate."""
    scale, models = selection.probed(config)
    for model in models:
        folder = root / "hwh" / scale.name / model.name
        heads, bins = head_influence(scale, model, reading)
        put_table(folder / "head_influence.csv", heads)
        put_table(folder / "head_influence_bins.csv", bins)
        rotates = heads["position_encoding"].eq("rope").any()
        about = band(controlled(scale), peak=5.0 + 0.1 * model.seed, head_dim=16) if rotates else None
        put_json(folder / "rope_heads.json", {"band": about})


def controlled(scale) -> ControlledModel:
    """A controlled model of the training length of a scale."""
    return ControlledModel(name="own", rope_theta=10000.0, length=scale.length, qk_norm=True, seed=0)


def write_all(root: Path, config: PresetConfig) -> None:
    write_controlled(root, config)
    write_pretrained(root, config)
    write_hwh(root, config)
    put_json(root / "synthetic.json", synthetic())


def synthetic(error: float = 0.1, right: int = 36) -> dict:
    """synthetic.json of 40 planted bands with one largest error and of 36 planted heads."""
    recovered = 40 if error <= 0.5 else 39
    return {
        "S1": {
            "n": 40,
            "recovered": recovered,
            "rate": recovered / 40,
            "max_abs_error": error,
            "tolerance": 0.5,
            "minimum_angle": 1.0,
            "all_groups_of_the_range": {"n": 60, "recovered": recovered},
        },
        "S2": {"n": 36, "right": right, "rate": right / 36},
    }
