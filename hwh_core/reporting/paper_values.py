"""Numbers of the paper (arXiv 2609.02986v2) that are known to us; all from published summaries of its text."""

from __future__ import annotations

SUMMARY = "arXiv 2609.02986v2, published summary"
TABLE_3 = f"{SUMMARY} of Table 3, appendix B.4"

# (claim scale, architecture, column title of Table 1) -> value. Which tasks the average covers is not stated.
TABLE_1_VALUES = {
    ("380M", "hwh_std", "Wiki ppl"): 27.41,
    ("380M", "hwh_std", "LMB ppl"): 34.84,
    ("380M", "hwh_std", "Avg (8)"): 42.78,
    ("380M", "hwh_std", "Avg (7)"): 42.78,
}

# (rope_theta, length, qk_norm) -> column of Table 3 -> value.
TABLE_3_VALUES: dict[tuple[float, int, bool], dict[str, float | str]] = {
    (1e4, 2048, True): {"r*": 21.27, "T*": 2864.0, "observed r": "21–22"},
    (1e6, 2048, True): {"r*": 14.18, "T*": 2864.0, "observed r": "14–15"},
    (1e4, 4096, True): {"r*": 23.68, "T*": 5727.0, "observed r": "24", "T(r)": 6283.0},
    (1e4, 2048, False): {"observed r": "23"},
    (1e6, 2048, False): {"observed r": "15–16"},
}

# Full-attention share by zone that the paper states for HwH-std (section 4.1).
TABLE_4_VALUES = {
    ("hwh_std", "first and last"): "GDN only",
    ("hwh_std", "outer"): "1:7",
    ("hwh_std", "middle"): "1:3",
    ("inter", "3 of 4 layers"): "GDN only",
    ("inter", "every 4th layer"): "FA only",
}
