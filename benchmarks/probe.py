"""RFIS and RPD: the Triton kernel against eager and compiled torch, against the card's bound, and through whole models.

python -m benchmarks.probe            # on a CUDA device: benchmarks/results/probe.json
python -m benchmarks.probe --cpu      # the paths of a CPU: benchmarks/results/probe_cpu.json
python -m benchmarks.probe --large    # a model of 8B parameters in 23 GiB: benchmarks/results/probe_large.json
python -m benchmarks.probe --sweep    # also times launch configurations of the kernel
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.recording import OUTPUT_HELP, Figure, median_seconds, output_of, record, record_each
from hwh_kernels import rfis_rpd as dispatcher
from hwh_kernels.rfis_rpd import rfis_rpd
from hwh_kernels.rfis_rpd_reference import rfis_rpd_per_query

SPECIAL_OPERATIONS = 6
"""Exponentials and logarithms a head, query, key and frequency: two for the partition sums, four for the readout."""
# Special-function operations a clock and multiprocessor on Hopper.
SPECIAL_RATE = 16
FULL = {"heads": 32, "key_heads": 8, "head_dim": 128, "queries": 128, "keys": 8192}
QUICK = {"heads": 8, "key_heads": 2, "head_dim": 64, "queries": 64, "keys": 1024}
# What a process can have of a card that is sold with 24 GB.
SMALL_CARD = 23 * 2**30
Sizes = dict[str, int]


def layer(sizes: Sizes, device: str, size: float = 1.0) -> tuple[Tensor, ...]:
    """Random q and k (normal, times ``size`` for q), frequencies of base 1e6, positions of the last queries."""
    generator = torch.Generator(device).manual_seed(0)
    head_dim, keys = sizes["head_dim"], sizes["keys"]
    q = torch.randn(sizes["heads"], sizes["queries"], head_dim, generator=generator, device=device) * size
    k = torch.randn(sizes["key_heads"], keys, head_dim, generator=generator, device=device)
    inv_freq = 1e6 ** (-torch.arange(head_dim // 2, dtype=torch.float32, device=device) / (head_dim // 2))
    places = torch.arange(keys, device=device)
    return q, k, inv_freq, places[-sizes["queries"] :], places


def measured(arguments: tuple[Tensor, ...], backend: str) -> tuple[Tensor, Tensor]:
    """Both maps of one layer."""
    return rfis_rpd(*arguments, scaling=arguments[0].shape[-1] ** -0.5, backend=backend)


def elements(sizes: Sizes) -> float:
    """Heads x queries x keys x frequencies."""
    return float(sizes["heads"] * sizes["queries"] * sizes["keys"] * sizes["head_dim"] // 2)


def kernel_figures(sizes: Sizes, repeats: int) -> list[Figure]:
    """Time, memory and agreement of the kernel at one shape."""
    arguments = layer(sizes, "cuda")
    ours = median_seconds(lambda: measured(arguments, "triton"), repeats=repeats, warmup=3)
    clock = torch.cuda.clock_rate() * 1e6  # of the card as it ran just now
    eager = median_seconds(lambda: measured(arguments, "torch-eager"), repeats=max(2, repeats // 5), warmup=1)
    plain_tile = dispatcher.eager_tile
    try:
        dispatcher.eager_tile = torch.compile(plain_tile, dynamic=False)
        compiled = median_seconds(lambda: measured(arguments, "torch-eager"), repeats=max(2, repeats // 5), warmup=2)
    finally:
        dispatcher.eager_tile = plain_tile
    peaked = layer(sizes, "cuda", size=6.0)
    slow = median_seconds(lambda: measured(peaked, "triton"), repeats=repeats, warmup=1)

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    measured(arguments, "triton")
    extra = (torch.cuda.max_memory_allocated() - before) / 2**20

    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    bound = SPECIAL_OPERATIONS * elements(sizes) / (multiprocessors * SPECIAL_RATE * clock)
    milliseconds = {"ours": ours.median * 1e3, "eager": eager.median * 1e3, "compiled": compiled.median * 1e3}
    return [
        {"id": "probe.layer_ms", "value": ours.median * 1e3, "unit": "ms", "spread": ours.spread * 1e3,
         "against": f"special-function bound {bound * 1e3:.3g} ms at {clock / 1e6:.0f} MHz", "sizes": dict(sizes)},
        {"id": "probe.layer_peaked_ms", "value": slow.median * 1e3, "unit": "ms", "spread": slow.spread * 1e3,
         "against": "the same with six times larger logits, where the polynomials do not reach", "sizes": dict(sizes)},
        {"id": "probe.speedup_eager", "value": eager.median / ours.median, "unit": "times", "against": 25.0,
         "sizes": dict(sizes), "detail": milliseconds},
        {"id": "probe.speedup_compiled", "value": compiled.median / ours.median, "unit": "times", "against": 3.0,
         "sizes": dict(sizes), "detail": milliseconds},
        {"id": "probe.extra_mib", "value": extra, "unit": "MiB", "against": 256.0, "sizes": dict(sizes)},
        {"id": "probe.bound_fraction", "value": bound / ours.median, "unit": "share of the special-function bound",
         "against": 0.5, "sizes": dict(sizes)},
    ]  # fmt: skip


def agreement_figures(sizes: Sizes) -> list[Figure]:
    """Largest excess of the error over 1e-9, relative to the float64 reference with the same float32 angles."""
    small = {**sizes, "heads": 4, "key_heads": 2, "queries": 16, "keys": 4096}
    found: list[Figure] = []
    for name, size in (("random", 1.0), ("peaked", 6.0), ("vanishing", 1e-3)):
        q, k, *rest = layer(small, "cuda", size)
        scaling = q.shape[-1] ** -0.5
        truth = rfis_rpd_per_query(q.double(), k.double(), *rest, scaling=scaling, angle_dtype=torch.float32)
        worst = 0.0
        for value, wanted in zip(measured((q, k, *rest), "triton"), truth, strict=True):
            wanted = wanted.mean(dim=1)
            excess = ((value.double() - wanted).abs() - 1e-9).clamp_min(0)
            worst = max(worst, float((excess / wanted.clamp_min(1e-30)).max()))
        found.append(
            {
                "id": f"probe.error_{name}",
                "value": worst,
                "unit": "relative, beyond 1e-9 absolute",
                "against": 1e-5,
                "sizes": small,
            }
        )
    return found


def length_figures(sizes: Sizes, lengths: tuple[int, ...]) -> list[Figure]:
    """Time of one layer against the number of keys."""
    found: list[Figure] = []
    base = None
    for keys in lengths:
        arguments = layer({**sizes, "keys": keys}, "cuda")
        timing = median_seconds(lambda arguments=arguments: measured(arguments, "triton"), repeats=5, warmup=1)
        base = base or timing.median / keys
        found.append(
            {
                "id": f"probe.layer_{keys}_keys_ms",
                "value": timing.median * 1e3,
                "unit": "ms",
                "spread": timing.spread * 1e3,
                "against": base * keys * 1e3,
                "sizes": {**sizes, "keys": keys},
                "detail": "against: the time at the first length, times the ratio of lengths",
            }
        )
        del arguments
        torch.cuda.empty_cache()
    return found


def random_model(kind: type, config: Any) -> Any:
    """A model with random weights in bfloat16, drawn on the card."""
    torch.manual_seed(0)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return kind(config).eval()
    finally:
        torch.set_default_dtype(previous)


def model_figures(quick: bool) -> list[Figure]:
    """All heads of a Qwen3-4B-shaped model (random weights) on long samples: forward pass, checks and both metrics."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from hwh_core.probes.measure import measure_maps

    shape = {
        "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    }  # fmt: skip
    samples, length = 100, 8192
    if quick:
        shape |= {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 1024}
        samples, length = 4, 1024
    config = Qwen3Config(
        **shape, max_position_embeddings=length, rope_parameters={"rope_type": "default", "rope_theta": 1e6}
    )
    model = random_model(Qwen3ForCausalLM, config)
    ids = torch.randint(0, shape["vocab_size"], (samples, length), generator=torch.Generator().manual_seed(0))
    measure_maps(model, None, ids[:1], 128, progress=False)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    measure_maps(model, None, ids, 128, description="Qwen3-4B-shaped model")
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    with torch.no_grad():
        half = median_seconds(lambda: model.model(ids[:1].cuda()), repeats=2, warmup=1)
    sizes = {**shape, "samples": samples, "length": length, "queries": 128}
    return [
        {"id": "probe.qwen3_4b_100x8192_s", "value": seconds, "unit": "s", "against": 90.0, "sizes": sizes,
         "detail": {"forward_alone_s": half.median * samples}},
        {"id": "probe.qwen3_4b_peak_gib", "value": torch.cuda.max_memory_allocated() / 2**30, "unit": "GiB",
         "against": None, "sizes": sizes},
    ]  # fmt: skip


def large_figures(quick: bool) -> list[Figure]:
    """A model of the shape of Llama 3.1 8B on samples of 8192 tokens, with no more memory than a card of 24 GB has."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from hwh_core.probes.measure import measure_maps
    from hwh_core.probes.memory import probe_memory

    shape = {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    }  # fmt: skip
    samples, length = 4, 8192
    if quick:
        shape |= {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 1024}
        samples, length = 2, 1024
    scaling = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = LlamaConfig(**shape, max_position_embeddings=131072, rope_parameters=scaling)
    # Before anything is allocated: what goes beyond it ends the program with an error of CUDA.
    card = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, SMALL_CARD / card))
    model = random_model(LlamaForCausalLM, config)
    ids = torch.randint(0, shape["vocab_size"], (samples, length), generator=torch.Generator().manual_seed(0))
    measure_maps(model, None, ids[:1], 128, progress=False)
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    measure_maps(model, None, ids, 128, description="model of the shape of Llama 3.1 8B")
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / samples
    sizes = {**shape, "samples": samples, "length": length, "queries": 128}
    estimate = probe_memory(model, length, 128)
    return [
        {"id": "probe.llama3_1_8b_peak_gib", "value": torch.cuda.max_memory_allocated() / 2**30, "unit": "GiB",
         "against": SMALL_CARD / 2**30, "sizes": sizes,
         "detail": {"estimate_gib": None if estimate is None else estimate.total / 2**30,
                    "reserved_gib": torch.cuda.max_memory_reserved() / 2**30}},
        {"id": "probe.llama3_1_8b_sample_s", "value": seconds, "unit": "s", "against": None, "sizes": sizes},
    ]  # fmt: skip


def sweep(sizes: Sizes, repeats: int) -> None:
    """Print the time of one layer for many launch configurations, fastest first."""
    from hwh_kernels.rfis_rpd_triton import LaunchConfig, rfis_rpd_triton

    arguments = layer(sizes, "cuda")
    scaling = sizes["head_dim"] ** -0.5
    found = []
    choices = list(itertools.product((1, 2, 4), (2, 4, 8, 16, 32), (32, 64, 128, 256), (1, 2, 4, 8)))
    for block_f, block_q, block_k, warps in tqdm(choices, desc="launch configurations"):
        numbers = block_f * block_q * block_k / (32 * warps)
        if not 8 <= numbers <= 64:
            continue
        config = LaunchConfig(block_f, block_q, block_k, warps)
        try:
            timing = median_seconds(
                lambda config=config: rfis_rpd_triton(*arguments, scaling=scaling, config=config), repeats, 1
            )
        except Exception as error:  # a configuration that the card cannot take is a result of the sweep
            print(config, "failed:", str(error).splitlines()[0][:100], file=sys.stderr)
            continue
        found.append((timing.median * 1e3, config))
    for milliseconds, config in sorted(found, key=lambda pair: pair[0])[:15]:
        print(f"{milliseconds:8.3f} ms  {config}")


def cpu_figures(quick: bool) -> list[Figure]:
    """One sample through a model of SmolLM2-135M's shape (random weights): forward pass, checks and both metrics."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from hwh_core.probes.measure import measure_maps

    shape = {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
    }  # fmt: skip
    length = 2048
    if quick:
        shape |= {"num_hidden_layers": 2, "vocab_size": 1024}
        length = 256
    torch.manual_seed(0)
    config = LlamaConfig(
        **shape, max_position_embeddings=8192, rope_parameters={"rope_type": "default", "rope_theta": 1e5}
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, shape["vocab_size"], (1, length))
    with torch.no_grad():
        alone = median_seconds(lambda: model.model(ids, use_cache=False), repeats=1 if quick else 3, warmup=1)
    found: list[Figure] = []
    for backend, name, target in (
        ("auto", "probe.cpu_smollm2_sample_s", 6.0),
        ("torch", "probe.cpu_eager_sample_s", 15.0),
    ):
        maps = measure_maps(model, None, ids[:, :256], 64, backend, progress=False)
        timing = median_seconds(
            lambda backend=backend: measure_maps(model, None, ids, 128, backend, progress=False),
            repeats=1 if quick else 3,
            warmup=0,
        )
        found.append(
            {
                "id": name,
                "value": timing.median,
                "spread": timing.spread,
                "unit": "s",
                "against": target,
                "sizes": {**shape, "samples": 1, "length": length, "queries": 128, "threads": torch.get_num_threads()},
                "detail": {"backend": maps.description["backend"], "forward_alone_s": alone.median},
            }
        )
    return found


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small shapes, to try the program")
    parser.add_argument("--cpu", action="store_true", help="measure the paths of a CPU")
    parser.add_argument("--large", action="store_true", help="only a model of 8B parameters within 23 GiB")
    parser.add_argument("--sweep", action="store_true", help="also time launch configurations of the kernel")
    parser.add_argument("--output", type=Path, help=OUTPUT_HELP)
    arguments = parser.parse_args()
    arguments.output = output_of(arguments.output, arguments.quick)
    command = (
        "python -m benchmarks.probe" + (" --cpu" if arguments.cpu else "") + (" --quick" if arguments.quick else "")
    )
    if arguments.cpu:
        record("probe_cpu", cpu_figures(arguments.quick), command, arguments.output)
        return
    if not torch.cuda.is_available():
        sys.exit("error: benchmarks.probe needs a CUDA device, and torch sees none; --cpu measures the paths of a CPU")
    if arguments.large:
        record("probe_large", large_figures(arguments.quick), f"{command} --large", arguments.output)
        return
    sizes, repeats = (QUICK, 3) if arguments.quick else (FULL, 20)
    if arguments.sweep:
        sweep(sizes, 3)
    lengths = (1024, 2048) if arguments.quick else (8192, 32768, 131072)
    parts = (
        partial(kernel_figures, sizes, repeats),
        partial(agreement_figures, sizes),
        partial(length_figures, sizes, lengths),
        partial(model_figures, arguments.quick),
    )
    record_each("probe", (part() for part in parts), command, arguments.output)


if __name__ == "__main__":
    main()
