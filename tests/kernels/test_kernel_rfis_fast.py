"""Fast paths of RFIS and RPD against the float64 reference: error bounds down to divergences of 1e-10."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hwh_kernels import rfis_rpd_native
from hwh_kernels.rfis_rpd import choose_backend, rfis_rpd, work_elements
from hwh_kernels.rfis_rpd_eager import eager_tile
from hwh_kernels.rfis_rpd_reference import rfis_rpd_per_query

BANDS = (1e-11, 1e-9, 1e-7, 1e-5, 1e-3, 1.0)
BOUNDS = {
    # Relative error of a mean over queries whose value lies between two neighbours of BANDS, smallest values first.
    # Measured: eager 3.5e-3 1.4e-4 2.4e-5 1.9e-6 2.8e-7, compiled 1.8e-4 2.8e-5 6.1e-6 4.7e-7 2.4e-7.
    "torch-eager": (2e-2, 1e-3, 1e-4, 1e-5, 2e-6),
    "cpu-native": (1e-3, 1e-4, 3e-5, 5e-6, 2e-6),
    "reference": (1e-3, 5e-5, 1e-4, 1e-4, 1e-5),
}

# Without a compiler the native path cannot exist, and the eager path is what users get.
NATIVE = "cpu-native" if rfis_rpd_native.native_works() else "torch-eager"
fast_backends = ["torch-eager", NATIVE] if NATIVE == "cpu-native" else ["torch-eager"]


def many_decades(dtype: torch.dtype = torch.float32, queries: int = 16, keys: int = 200):
    """Heads whose frequencies matter from 1 down to 1e-11: sizes of the pairs fall by decades."""
    generator = torch.Generator().manual_seed(0)
    size = torch.logspace(0.3, -2.2, 16).repeat(2)
    q = torch.randn(4, queries, 32, generator=generator) * size
    k = torch.randn(2, keys, 32, generator=generator) * size
    inv_freq = 1e4 ** (-torch.arange(16) / 16)
    return q.to(dtype), k.to(dtype), inv_freq, torch.arange(keys - queries, keys), torch.arange(keys)


def exact(q, k, *rest, **options):
    """Float64 reference with the same float32 angles, mean over queries."""
    values = rfis_rpd_per_query(q.double(), k.double(), *rest, scaling=0.2, angle_dtype=torch.float32, **options)
    return [value.mean(dim=1) for value in values]


@pytest.mark.parametrize("backend", [*fast_backends, "reference"])
def test_relative_error_down_to_the_smallest_divergences(backend):
    arguments = many_decades()
    seen = set()
    for truth, value in zip(exact(*arguments), rfis_rpd(*arguments, scaling=0.2, backend=backend), strict=True):
        error = (value.double() - truth).abs() / truth.clamp_min(1e-300)
        for low, high, bound in zip(BANDS, BANDS[1:], BOUNDS[backend], strict=False):
            inside = (truth > low) & (truth <= high)
            if bool(inside.any()):
                seen.add(low)
                assert float(error[inside].max()) < bound, (low, float(error[inside].max()))
    assert seen == set(BANDS[:-1]), "the heads no longer span all decades"


@pytest.mark.parametrize("backend", fast_backends)
@pytest.mark.parametrize(
    "options",
    [
        {"window": 9},
        {"key_mask": torch.arange(200) >= 60},
        {"attention_scaling": 1.3},
        {"pairing": "interleaved"},
        {"softcap": 2.0},
    ],
    ids=["window", "padding", "attention_scaling", "interleaved", "softcap"],
)
def test_options_agree_with_the_reference(backend, options):
    arguments = many_decades()
    for truth, value in zip(
        exact(*arguments, **options), rfis_rpd(*arguments, scaling=0.2, backend=backend, **options), strict=True
    ):
        torch.testing.assert_close(value.double(), truth, rtol=1e-2, atol=1e-10)
        torch.testing.assert_close(value.double(), truth, rtol=1e-4, atol=2e-8)


@pytest.mark.parametrize("backend", fast_backends)
def test_partial_rotary(backend):
    q, k, inv_freq, i, j = many_decades()
    generator = torch.Generator().manual_seed(1)
    rest = [torch.randn(*x.shape[:2], 6, generator=generator) for x in (q, k)]
    arguments = (torch.cat([q, rest[0]], dim=-1), torch.cat([k, rest[1]], dim=-1), inv_freq, i, j)
    for options in ({}, {"softcap": 2.0}):
        for truth, value in zip(
            exact(*arguments, **options), rfis_rpd(*arguments, scaling=0.2, backend=backend, **options), strict=True
        ):
            assert value.shape == (4, 17)
            torch.testing.assert_close(value.double(), truth, rtol=1e-4, atol=2e-8)


@pytest.mark.parametrize("backend", fast_backends)
def test_every_length_of_keys_and_queries(backend):
    for queries, keys in ((1, 1), (1, 7), (2, 2), (3, 64), (33, 33), (65, 130)):
        arguments = many_decades(queries=queries, keys=keys)
        for truth, value in zip(exact(*arguments), rfis_rpd(*arguments, scaling=0.2, backend=backend), strict=True):
            torch.testing.assert_close(value.double(), truth, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("backend", fast_backends)
@pytest.mark.parametrize("size", [15.0, 60.0])
def test_huge_contributions_neither_overflow_nor_lose_keys(backend, size):
    """|c| in the hundreds: e^c overflows float32, and keys without probability take it all once c is removed."""
    q, k, inv_freq, i, j = many_decades()
    arguments = (q * size, k * size, inv_freq, i, j)
    for truth, value in zip(exact(*arguments), rfis_rpd(*arguments, scaling=0.2, backend=backend), strict=True):
        assert bool(torch.isfinite(value).all())
        torch.testing.assert_close(value.double(), truth, rtol=1e-2, atol=2e-3)


def test_unlikely_key_that_wins_after_removal():
    """A key of probability e^-100 whose contribution is -100: after removal both keys are even."""
    a = torch.zeros(1, 4, 2)
    a[0, 0] = 1.0
    b = torch.zeros(1, 4, 2)
    b[0, 0, 0] = -100.0
    logits = torch.tensor([[-100.0, 0.0]] * 2)
    value = eager_tile(a.double(), b.double(), torch.log_softmax(logits.double(), -1))
    assert value.tolist()[0] == pytest.approx([0.3113, 0.3113], abs=1e-4)


def test_samples_may_lie_along_the_head_dimension():
    q, k, inv_freq, i, j = many_decades()
    other_q, other_k = q.flip(0), k.flip(1)
    together = rfis_rpd(torch.cat([q, other_q]), torch.cat([k, other_k]), inv_freq, i, j, scaling=0.2)
    first = rfis_rpd(q, k, inv_freq, i, j, scaling=0.2)
    second = rfis_rpd(other_q, other_k, inv_freq, i, j, scaling=0.2)
    for joint, one, two in zip(together, first, second, strict=True):
        torch.testing.assert_close(joint, torch.cat([one, two]), rtol=1e-5, atol=1e-9)


def test_float64_goes_through_the_eager_path():
    arguments = many_decades(torch.float64)
    exact64 = [value.mean(dim=1) for value in rfis_rpd_per_query(*arguments, scaling=0.2)]
    for truth, value in zip(exact64, rfis_rpd(*arguments, scaling=0.2), strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-7, atol=1e-16)


def test_choice_of_backend(monkeypatch):
    small, large = work_elements(9, 128, 256, 32), work_elements(9, 128, 2048, 32) * 120
    assert choose_backend("auto", "cpu", small) == "torch-eager"
    assert choose_backend("auto", "cuda", large) == ("triton" if torch.cuda.is_available() else "torch-eager")
    assert choose_backend("auto", "cpu", large, torch.float64) == "torch-eager"
    assert choose_backend("torch", "cpu", large) == "torch-eager"
    monkeypatch.setattr("hwh_kernels.rfis_rpd.native_works", lambda: True)
    assert choose_backend("auto", "cpu", large) == "cpu-native"
    monkeypatch.setattr("hwh_kernels.rfis_rpd.native_works", lambda: False)
    assert choose_backend("auto", "cpu", large) == "torch-eager"
    with pytest.raises(ValueError, match="'fortran' is unknown"):
        choose_backend("fortran", "cpu", small)
    with pytest.raises(ValueError, match="needs float32 on a CPU"):
        choose_backend("cpu-native", "cpu", small, torch.float64)


@pytest.fixture
def fresh_compiler():
    """Forget what was compiled, before and after."""
    for function in (rfis_rpd_native._function, rfis_rpd_native.native_works):
        function.cache_clear()
    yield
    for function in (rfis_rpd_native._function, rfis_rpd_native.native_works):
        function.cache_clear()


def fake_compiler(folder, text: str) -> str:
    """A program that stands in for a compiler."""
    path = folder / "fake-cc"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_failing_compiler_falls_back_with_a_warning(monkeypatch, tmp_path, fresh_compiler):
    """A machine whose compiler is there but broken still probes, and says that it is slow."""
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, "echo compiler exploded >&2; exit 3\n"))
    with pytest.warns(UserWarning, match=r"without a compiled function.*compiler exploded"):
        assert rfis_rpd_native.native_works() is False
    arguments = many_decades()
    for truth, value in zip(exact(*arguments), rfis_rpd(*arguments, scaling=0.2), strict=True):
        torch.testing.assert_close(value.double(), truth, rtol=1e-4, atol=1e-8)


def test_wrong_results_of_a_compiler_are_noticed(monkeypatch, fresh_compiler):
    monkeypatch.setattr(rfis_rpd_native, "SOURCE", rfis_rpd_native.SOURCE.replace("0.25 * total", "0.26 * total"))
    if rfis_rpd_native._compiler() is not None:
        with pytest.warns(UserWarning, match="is off by"):
            assert rfis_rpd_native.native_works() is False


def test_missing_compiler_is_named(monkeypatch, fresh_compiler):
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.warns(UserWarning, match="no C or C\\+\\+ compiler"):
        assert rfis_rpd_native.native_works() is False


def test_compiling_keeps_subnormal_numbers_in_the_process():
    """Libraries linked with -ffast-math would flush them to zero for everyone."""
    rfis_rpd_native.native_works()
    assert float(torch.tensor(1e-40) * 1.0) > 0.0


def test_threads_give_the_same_result():
    before = torch.get_num_threads()
    arguments = many_decades()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(rfis_rpd(*arguments, scaling=0.2, backend=NATIVE))
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*results, strict=True):
        torch.testing.assert_close(one, three, rtol=1e-6, atol=0)


MEMORY_PROGRAM = """
import torch
from hwh_kernels.rfis_rpd import rfis_rpd
def peak_gigabytes():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1e6
torch.manual_seed(0)
q, k = torch.randn(2, 128, 64, dtype=torch.{dtype}), torch.randn(1, 2048, 64, dtype=torch.{dtype})
inv_freq = 1e4 ** (-torch.arange(32) / 32)
before = peak_gigabytes()
rfis_rpd(q, k, inv_freq, torch.arange(1920, 2048), torch.arange(2048), scaling=0.125, backend="{backend}")
print(peak_gigabytes() - before)
"""


@pytest.mark.parametrize(
    ("backend", "dtype"), [("torch-eager", "float32"), (NATIVE, "float32"), ("reference", "float64")]
)
def test_memory_stays_under_1_gb_at_2048_tokens_and_128_queries(backend, dtype):
    program = MEMORY_PROGRAM.format(backend=backend, dtype=dtype)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.0 < float(result.stdout) < 1.0
