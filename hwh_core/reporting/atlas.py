"""The head atlas of one probed model: one HTML page that holds its data and needs neither a server nor a network."""

from __future__ import annotations

import base64
import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..files import atomic_write
from ..provenance import write_manifest
from ..rope import period_at, periods, predicted_index_on_grid, predicted_period
from ..statistics import spearman
from .causal import causal_rows, figure_link
from .qk_norms import norm_product
from .results import HEADS_COLUMNS, Maps, ResultFolder
from .selection import ReportError

DATA_FILES = ("templates/atlas*",)
TEMPLATES = Path(__file__).with_name("templates")
PAGE = "atlas.html"
PARTS = ("atlas_values.js", "atlas.js", "atlas.css")
CLASSES = ("retrieval", "positional", "mixed", "unclassified")
# Columns of heads.csv that the page knows, beside the class.
HEAD_NUMBERS = ("s_ret", "s_ret_lo", "s_ret_hi", "qr", "qr_calibrated", "ld", "d_ratio", "kv_group", "boundary")
# Facts of probe.json that stand in the page's head, with the words for them.
FACTS = {
    "num_layers": "layers",
    "num_heads": "heads a layer",
    "num_kv_heads": "key-value heads",
    "head_dim": "head size",
    "rope_theta": "RoPE base",
    "training_length": "positions of the model",
    "length": "tokens of a sample",
    "num_samples": "samples",
    "num_queries": "last positions measured",
    "text_source": "text",
}


def encode(values: np.ndarray) -> str:
    """Numbers as base64 of little-endian float16 (three digits): 2 bytes a value, NaN for what is not there.

    float16 ends at 6e-8, far below what RFIS and RPD are read for; larger values than it holds become infinite.
    """
    with np.errstate(over="ignore"):
        return base64.b64encode(np.asarray(values, dtype="<f2").tobytes()).decode("ascii")


def _head_arrays(heads: pd.DataFrame, maps: Maps, source: Path) -> dict[str, np.ndarray]:
    """Columns of heads.csv as arrays [layer, head] in the order of the maps; heads that are not there are NaN."""
    shape = maps.rpd.shape[1:3]
    row_of = {int(layer): row for row, layer in enumerate(maps.layer_index)}
    unknown = sorted(set(heads["layer"]) - set(row_of))
    if unknown or heads["head"].max() >= shape[1] or heads.duplicated(["layer", "head"]).any():
        raise ReportError(
            f"{source}: its layers and heads are not those of probe.npz ({shape[0]} layers of {shape[1]} heads); "
            "make both again from one model"
        )
    place = (heads["layer"].map(row_of).to_numpy(), heads["head"].to_numpy())
    arrays = {}
    for name in HEAD_NUMBERS:
        if name in heads:
            arrays[name] = np.full(shape, np.nan)
            arrays[name][place] = heads[name].to_numpy(dtype=float)
    arrays["head_class"] = np.full(shape, CLASSES.index("unclassified"))
    codes = heads["head_class"].map({name: code for code, name in enumerate(CLASSES)})
    if codes.isna().any():
        raise ReportError(
            f"{source}: head_class holds {sorted(set(heads['head_class']) - set(CLASSES))}; make it again"
        )
    arrays["head_class"][place] = codes.to_numpy()
    return arrays


def _number(value: Any) -> float | None:
    """A number for JSON; None for what is not finite."""
    return float(value) if value is not None and np.isfinite(value) else None


def _fact(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, int | float) else str(value)


def _predictions(record: dict[str, Any], about: dict[str, Any], inv_freq: np.ndarray) -> list[dict[str, Any]]:
    """Predicted places of the band: the candidate stages of a record, else the model's own number of positions."""
    rows = [
        {"label": row["label"], "index": row["covariance"], "oka": row["oka"], "period": row["period"]}
        for row in record.get("candidate_bands", [])
    ]
    length = about.get("training_length")
    if rows or not length or (inv_freq > 0).sum() < 2:
        return rows
    index, oka = (predicted_index_on_grid(inv_freq, float(length), name) for name in ("covariance", "oka"))
    label = f"training with {float(length):g} tokens (the positions that the model states)"
    return [{"label": label, "index": index, "oka": oka, "period": predicted_period(float(length))}]


def _bands(record: dict[str, Any], inv_freq: np.ndarray) -> list[dict[str, Any]]:
    return [
        {
            "centre": row["centre"],
            "ci": row["centre_ci"],
            "period": _number(period_at(inv_freq, row["centre"])),
            "layers": row["num_layers"],
        }
        for row in record.get("clusters", [])
    ]


def _frequencies(maps: Maps, bands: dict[str, Any], about: dict[str, Any]) -> tuple[list[dict[str, Any]], list[int]]:
    """Tables of frequencies with the bands found and predicted on them, and the table of each layer.

    Layers with frequencies of their own (Gemma 3) have records of their own in bands.json.
    """
    record_of = {
        layer: record
        for record in (bands, *bands.get("other_frequencies", []))
        for layer in record.get("bands_of_layers", maps.layer_index.tolist())
    }
    found, table_of_layer = np.unique(maps.frequencies, axis=0, return_inverse=True)
    tables = []
    for number, row in enumerate(found):
        first = int(maps.layer_index[table_of_layer == number][0])
        record = record_of.get(first, {})
        tables.append(
            {
                "periods": [_number(period) for period in periods(row)],
                "layers": int((table_of_layer == number).sum()),
                "bands": _bands(record, row),
                "predicted": _predictions(record, about, row),
                "peaks": {
                    str(peak["layer"]): peak["peak"]
                    for peak in record.get("band", {}).get("layers", [])
                    if peak["verdict"] == "peak"
                },
            }
        )
    return tables, [int(number) for number in table_of_layer]


def page_data(folder: ResultFolder, causal: bool = False) -> dict[str, Any]:
    """All that the page shows: probe.npz and, where they lie there, probe.json, heads.csv, bands.json and norms.npz.

    With ``causal`` also causal_summary.csv, and the name of the figure of it.

    Raises :class:`ReportError` where files are missing, damaged, or of different models.
    """
    maps = folder.maps("probe.npz")
    about, bands = (
        folder.json(name) if (folder.root / name).is_file() else {} for name in ("probe.json", "bands.json")
    )
    columns: dict[str, np.ndarray] = {}
    if (folder.root / "heads.csv").is_file():
        columns = _head_arrays(folder.table("heads.csv", HEADS_COLUMNS), maps, folder.root / "heads.csv")
    means = {name: maps.mean(name) for name in ("rfis", "rpd")}
    present = np.isfinite(means["rpd"]).all(axis=2)
    totals = {f"{name}_total": values.sum(axis=2) for name, values in means.items()}
    peak = np.where(present, np.nan_to_num(means["rpd"], nan=-1.0).argmax(axis=2), np.nan)
    classes = columns.pop("head_class", None)
    if (folder.root / "norms.npz").is_file():
        means["norm"] = norm_product(folder.arrays("norms.npz"), maps, folder.root.name)
        columns |= {f"norm_{name}": spearman(means["norm"], means[name]) for name in ("rfis", "rpd")}
    tables, table_of_layer = _frequencies(maps, bands, about)
    rows = causal_rows(folder) if causal else []
    return {
        "title": str(about.get("title") or about.get("model") or folder.root.resolve().name),
        "facts": [[label, _fact(about[key])] for key, label in FACTS.items() if about.get(key) is not None],
        "layers": [int(layer) for layer in maps.layer_index],
        "heads": maps.rpd.shape[2],
        "tables": tables,
        "table_of_layer": table_of_layer,
        "maps": {name: encode(values) for name, values in means.items()},
        "columns": {name: encode(values) for name, values in {**columns, **totals, "rpd_peak": peak}.items()},
        "present": "".join("1" if there else "0" for there in present.reshape(-1)),
        "classes": list(CLASSES),
        "head_class": None if classes is None else "".join(str(code) for code in classes.reshape(-1)),
        "has_bands": bool(bands),
        "causal": rows,
        "causal_figure": figure_link(folder) if rows else None,
    }


def _policy_hash(text: str) -> str:
    """Source expression that admits one inline script or style in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def render(data: dict[str, Any]) -> str:
    """The page. Its policy admits its own script and style only, so nothing in ``data`` can run or be fetched."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=True,
    )
    values, view, style = ((TEMPLATES / name).read_text(encoding="utf-8") for name in PARTS)
    script = f'"use strict";\n(() => {{\n{values}{view}}})();\n'
    return environment.get_template("atlas.html.jinja").render(
        data=data, script=script, style=style, script_hash=_policy_hash(script), style_hash=_policy_hash(style)
    )


def write_atlas(folder: str | Path, output: str | Path | None = None, *, causal: bool = False) -> Path:
    """Write the atlas of a probe's folder (by default as atlas.html in it) with its manifest; return its path.

    With ``causal`` causal checks that lie there are shown too; the workflow, which makes them on demand, does not.
    """
    started = time.time()
    source = ResultFolder(folder)
    page = source.root / PAGE if output is None else Path(output)
    data = page_data(source, causal)
    with atomic_write(page) as temporary:
        temporary.write_text(render(data), encoding="utf-8")
    write_manifest(page, inputs=source.used, settings={"title": data["title"]}, started=started)
    return page
