"""Presets of imagined models for the tests of figures, tables and claims."""

from __future__ import annotations

from hwh_core.config import PresetConfig, validate_preset


def training(steps: int = 10) -> dict:
    return {
        "steps": steps,
        "tokens_per_step": 4096,
        "warmup_steps": 1,
        "optimizer": {"kind": "adamw", "learning_rate": 1e-3},
        "precision": "float32",
        "checkpoint_every_steps": 5,
    }


def controlled_model(theta: float, length: int, seed: int = 0, qk_norm: bool = True) -> dict:
    name = f"theta{theta:.0e}-L{length}{'' if qk_norm else '-noqk'}-s{seed}".replace("e+0", "e")
    return {"name": name, "rope_theta": theta, "length": length, "qk_norm": qk_norm, "seed": seed}


def pretrained(name: str, title: str | None = None) -> dict:
    return {
        "name": name,
        "title": title or name,
        "source": {"kind": "folder", "path": name},
        "candidate_bands": [{"label": "2K stage", "rope_theta": 100000.0, "length": 2048}],
    }


def scale(
    architectures: list[str], claim_scale: str = "scaled", name: str = "tiny", seeds: int = 1, length: int = 256
) -> dict:
    models = [
        {"name": f"{a}-s{s}" if seeds > 1 else a, "architecture": a, "seed": s}
        for a in architectures
        for s in range(seeds)
    ]
    shape = {
        "num_layers": 8,
        "hidden_size": 128,
        "intermediate_size": 320,
        "attention_head_dim": 16,
        "gdn_head_dim": 16,
        "gate": True,
    }
    return {
        "name": name,
        "claim_scale": claim_scale,
        "tokenizer": "bpe",
        "length": length,
        "qk_norm": True,
        "shape": shape,
        "training": training(),
        "models": models,
    }


MAIN = ["transformer", "gdn", "inter", "hwh_std"]
ALL = [*MAIN, "hwh_std_r", "hwh_swa", "hwh_uniform13", "hwh_outer13"]


def preset(
    controlled: list[dict] | None = None,
    models: list[dict] | None = None,
    scales: list[dict] | None = None,
    name: str = "laptop",
    probe: dict | None = None,
    curve: dict | None = None,
) -> PresetConfig:
    data = {
        "preset": name,
        "description": "imagined results",
        "seed": 0,
        "data": {
            "sources": [{"kind": "files", "name": "prose", "paths": ["x.txt"], "license": "CC0"}],
            "minimum_bytes": 1,
            "held_out_fraction": 0.1,
            "held_out_prose_source": "prose",
        },
        "tokenizers": [{"kind": "bpe", "name": "bpe", "vocab_size": 512, "training_bytes": 1000}],
        "controlled": {
            "tokenizer": "bpe",
            "shape": {
                "num_layers": 4,
                "hidden_size": 64,
                "intermediate_size": 160,
                "attention_head_dim": 64,
                "num_attention_heads": 2,
                "gate": False,
            },
            "training": training(),
            "models": controlled if controlled is not None else laptop_controlled(),
            "probe": {"num_samples": 3, "num_queries": 16, "eval_length_factors": [0.5, 1.0, 2.0]},
            "curve": curve,
        },
        "band": {},
        "synthetic": {"num_seeds": 1, "rope_thetas": [10000.0]},
        "pretrained": {
            "models": models if models is not None else [pretrained("smollm2-135m", "SmolLM2-135M-Instruct")],
            "probe": {"length": 2048, "num_samples": 3, "num_queries": 128},
            "causal": {},
            "behavior": {
                "length": 2048,
                "num_samples": 3,
                "num_queries": 128,
                "windows": [128],
                "sinks": [4],
                "default_window": 128,
                "default_sinks": 4,
                "samples": "synthetic",
            },
        },
        "hwh": {"probe": probe, "scales": scales if scales is not None else [scale(MAIN)]},
        "evaluation": {
            "rows": {"kind": "files", "path": "rows"},
            "tasks": [{"name": "piqa"}],
            "held_out_perplexity": {"max_documents": 4, "max_bytes": 1000, "window": 256},
            "niah": {
                "variant": "single_2",
                "haystack": "held_out_prose",
                "lengths": [128, 256, 512, 768],
                "depths": [0, 50, 100],
                "samples_per_cell": 4,
                "max_new_tokens": 8,
                "metric": "teacher_forced_exact",
            },
            "batch_tokens": 1024,
        },
        "targets": {"figures": [], "tables": []},
    }
    return validate_preset(data, "imagined preset")


HEAD_PROBE = {"num_samples": 4, "num_queries": 64, "num_contexts": 4}


def curve_of(*models: str) -> dict:
    """A curve over the ten steps of these presets."""
    return {"models": list(models), "steps": [0, 1, 2, 3, 5, 7, 10]}


def laptop_controlled() -> list[dict]:
    return [
        *(controlled_model(theta, 256, seed) for theta in (1e4, 1e6) for seed in (0, 1)),
        controlled_model(1e4, 512),
        controlled_model(1e4, 256, qk_norm=False),
    ]
