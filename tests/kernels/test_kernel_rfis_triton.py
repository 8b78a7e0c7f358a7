"""The Triton kernel against the float64 reference: on a GPU where there is one, otherwise in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from hwh_kernels import rfis_rpd_kernels
from hwh_kernels import rfis_rpd_triton as kernel
from hwh_kernels.rfis_rpd import choose_backend, rfis_rpd
from hwh_kernels.rfis_rpd_reference import rfis_rpd_per_query

DEVICE = "cpu" if kernel.interpreted() else "cuda"
# Few programs with large tiles: the interpreter takes its time for every operation, not for every number.
TILES = kernel.LaunchConfig(block_f=8, block_q=8, block_k=64, num_warps=4)
# Agreement that is asked for: 1e-5 relative, and 1e-9 where values vanish.
RELATIVE, ABSOLUTE = 1e-5, 1e-9


def heads(heads=4, key_heads=2, queries=9, keys=100, head_dim=32, frequencies=None, theta=1e4, query_size=1.0, seed=0):
    """Random q [H, Q, d], k [G, T, d], frequencies and positions; ``query_size`` makes the attention peaked."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(heads, queries, head_dim, generator=generator) * query_size
    k = torch.randn(key_heads, keys, head_dim, generator=generator)
    frequencies = frequencies or head_dim // 2
    inv_freq = theta ** (-torch.arange(frequencies, dtype=torch.float32) / frequencies)
    places = torch.arange(keys)
    return q, k, inv_freq, places[-queries:], places


def measured(arguments, scaling, config=TILES, **options):
    """Maps per query of the kernel, on the CPU."""
    moved = [value.to(DEVICE) for value in arguments]
    options = {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    rfis, rpd, rest = kernel.rfis_rpd_triton(*moved, scaling=scaling, config=config, **options)
    return rfis.cpu(), rpd.cpu(), None if rest is None else rest.cpu()


def exact(arguments, scaling, **options):
    """Float64 reference per query with the same float32 angles, as [H, F, Q]."""
    q, k, *rest = arguments
    values = rfis_rpd_per_query(q.double(), k.double(), *rest, scaling=scaling, angle_dtype=torch.float32, **options)
    return [value.transpose(1, 2) for value in values]


def assert_agrees(arguments, scaling, relative=RELATIVE, config=TILES, **options):
    """The kernel's maps against the reference: means over queries, and every query on its own within five times that.

    Returns the reference's maps per query.
    """
    frequencies = arguments[2].numel()
    truth = exact(arguments, scaling, **options)
    rfis, rpd, rest = measured(arguments, scaling, config, **options)
    for value, wanted in ((rfis, truth[0][:, :frequencies]), (rpd, truth[1][:, :frequencies])):
        torch.testing.assert_close(value.double().mean(-1), wanted.mean(-1), rtol=relative, atol=ABSOLUTE)
        torch.testing.assert_close(value.double(), wanted, rtol=5 * relative, atol=5 * ABSOLUTE)
    if rest is not None:
        torch.testing.assert_close(rest.double(), truth[0][:, frequencies], rtol=relative, atol=1e-7)
    return truth


@pytest.mark.parametrize(
    ("num_heads", "key_heads", "head_dim", "keys"),
    [(2, 2, 16, 64), (4, 2, 32, 100), (3, 1, 48, 33), (2, 1, 64, 256), (1, 1, 256, 40)],
)
def test_random_heads(num_heads, key_heads, head_dim, keys):
    """Grouped queries, several head sizes, keys that fill no whole tile."""
    assert_agrees(heads(num_heads, key_heads, head_dim=head_dim, keys=keys), head_dim**-0.5)


@pytest.mark.parametrize("query_size", [3.0, 8.0])
def test_peaked_heads(query_size):
    """All three forms of a term occur: the kernel chooses by bound, so the largest |u| spans the forms' limits."""
    arguments = heads(query_size=query_size, head_dim=16, seed=1)
    rfis, rpd = assert_agrees(arguments, 0.25)
    assert float(rfis.max()) > 0.5
    assert float(rpd.max()) > 0.5


def test_contributions_beyond_the_range_of_exponentials():
    """|c| of some hundred nats: the third pass keeps exponentials finite. Float32 logits of 500 limit the agreement."""
    arguments = heads(query_size=120.0, head_dim=8, queries=4, keys=60)
    rfis, _ = assert_agrees(arguments, 8**-0.5, relative=2e-4)
    assert float(rfis.max()) > 0.99


def test_divergences_that_vanish():
    """Frequencies whose contributions fall to 1e-6: the kernel's values keep their digits or stay below 1e-9."""
    q, k, inv_freq, *positions = heads(head_dim=32)
    size = torch.logspace(0.3, -3.0, 16).repeat(2)
    truth = assert_agrees((q * size, k * size, inv_freq, *positions), 0.2)
    assert float(truth[1].min()) < 1e-12
    rfis, rpd, _ = measured((torch.zeros_like(q), k, inv_freq, *positions), 0.2)
    assert float(rfis.max()) < 1e-12
    assert float(rpd.max()) < 1e-12


@pytest.mark.parametrize(
    "options",
    [
        {"window": 9},
        {"window": 70},
        {"key_mask": torch.arange(100) >= 50},
        {"attention_scaling": 1.3},
        {"pairing": "interleaved"},
        {"softcap": 2.0},
        {"softcap": 30.0, "window": 40, "pairing": "interleaved"},
    ],
    ids=["window", "wide window", "padding", "attention_scaling", "interleaved", "softcap", "all"],
)
def test_options(options):
    assert_agrees(heads(query_size=2.0), 0.3, **options)


def test_unrotated_dimensions():
    """Partial rotary: the dimensions that are not rotated form one more group of RFIS."""
    assert_agrees(heads(frequencies=8, query_size=2.0), 0.3)
    assert_agrees(heads(frequencies=8, query_size=2.0), 0.3, softcap=5.0)


@pytest.mark.parametrize(
    "config",
    [
        kernel.LaunchConfig(block_f=1, block_q=2, block_k=16, num_warps=1),
        kernel.LaunchConfig(block_f=4, block_q=16, block_k=128, num_warps=4),
    ],
)
def test_tiles_change_nothing(config):
    """Neither frequencies nor queries nor keys need fill whole tiles."""
    assert_agrees(heads(head_dim=12, queries=5, keys=43), 0.3, config=config)


@pytest.mark.parametrize("chunk_bytes", [1, 9 * 128 * 4, 3 * 9 * 128 * 4])
def test_heads_in_chunks(monkeypatch, chunk_bytes):
    """Part of a group of heads that share keys, one head, one and a half groups: the same maps."""
    arguments = heads(4, 2, head_dim=16)
    whole = measured(arguments, 0.2)
    monkeypatch.setattr(kernel, "CHUNK_BYTES", chunk_bytes)
    for value, wanted in zip(measured(arguments, 0.2)[:2], whole[:2], strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-6, atol=1e-10)


def test_chunks_never_mix_parts_of_groups():
    for most in range(1, 14):
        chunks = kernel._head_chunks(12, 4, most)
        assert [head for start, stop in chunks for head in range(start, stop)] == list(range(12))
        for start, stop in chunks:
            assert stop - start <= most
            assert (start % 4 == 0 and stop % 4 == 0) or start // 4 == (stop - 1) // 4


def test_polynomials_agree_with_the_exact_function():
    """S(u)/(2 ln 2) of both ranges against float64 on a grid: relative error below 5e-7."""
    for coefficients, limit in ((rfis_rpd_kernels._SMALL, 2.0), (rfis_rpd_kernels._MEDIUM, 4.0)):
        u = torch.linspace(1e-3, limit, 2001, dtype=torch.float64)
        t = torch.tanh(u / 2)
        # cosh(u/2) G(t) with G(t) = (1+t) log(1+t) + (1-t) log(1-t) = sum t^(2n) / (n (2n - 1)), which does not cancel.
        series = sum(t ** (2 * n) / (n * (2 * n - 1)) for n in range(1, 2000))
        truth = torch.cosh(u / 2) * series / (2 * rfis_rpd_kernels.LN2)
        w = (u / rfis_rpd_kernels.LN2) ** 2
        tail = sum(value * w**power for power, value in enumerate(coefficients[1:]))
        value = w * (coefficients[0] + w * w * tail)
        assert float((value / truth - 1).abs().max()) < 5e-7


def test_backend_is_chosen_on_cuda_alone():
    if DEVICE == "cuda":
        assert choose_backend("auto", "cuda", 1.0) == "triton"
        arguments = [value.to("cuda") for value in heads()]
        for value, wanted in zip(
            rfis_rpd(*arguments, scaling=0.2, backend="triton"),
            rfis_rpd(*arguments, scaling=0.2, backend="reference"),
            strict=True,
        ):
            torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-8)
        return
    assert choose_backend("auto", "cpu", 1.0) != "triton"
    with pytest.raises(ValueError, match="triton needs float32 on a CUDA device"):
        choose_backend("triton", "cpu", 1.0)


def test_maps_of_the_dispatcher(monkeypatch):
    """Means over queries, the group of unrotated dimensions, and exactly no RPD at frequency 0, as of every backend."""
    from hwh_kernels import rfis_rpd as dispatcher

    monkeypatch.setattr(dispatcher, "choose_backend", lambda *_: "triton")
    q, k, inv_freq, *positions = heads(frequencies=8, queries=5, keys=40)
    inv_freq[-1] = 0.0
    moved = [value.to(DEVICE) for value in (q, k, inv_freq, *positions)]
    rfis, rpd = (value.cpu() for value in dispatcher.rfis_rpd(*moved, scaling=0.2))
    truth = [value.mean(dim=-1) for value in exact((q, k, inv_freq, *positions), 0.2)]
    assert rfis.shape == rpd.shape == (q.shape[0], 9)
    torch.testing.assert_close(rfis.double(), truth[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(rpd.double(), truth[1], rtol=1e-5, atol=ABSOLUTE)
    assert bool((rpd[:, 7:] == 0).all())
