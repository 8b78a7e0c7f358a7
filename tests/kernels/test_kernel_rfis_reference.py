"""RFIS and RPD, reference form: the seventeen properties of the method notes, and the special mechanisms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hwh_kernels.rfis_rpd_reference import (
    LN2,
    contributions,
    js_of_removed,
    rfis_rpd_per_query,
    rotate_pairs,
    split_pairs,
    visible_keys,
)

SCALING = 0.25
seeds = st.integers(0, 2**31 - 1)
few = settings(max_examples=15, deadline=None, derandomize=True)


def inverse_frequencies(count: int, theta: float = 1e4) -> torch.Tensor:
    return theta ** (-torch.arange(count, dtype=torch.float64) / count)


def heads(seed: int, h: int = 2, g: int = 1, q: int = 5, t: int = 24, d: int = 16, size: float = 2.0):
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(h, q, d, generator=generator, dtype=torch.float64) * size
    keys = torch.randn(g, t, d, generator=generator, dtype=torch.float64) * size
    return queries, keys, inverse_frequencies(d // 2), torch.arange(t - q, t), torch.arange(t)


def direct(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """JS/ln 2 by its definition with the mixture, in float64."""
    m = (p + q) / 2
    terms = torch.special.xlogy(p, p / m).nan_to_num() + torch.special.xlogy(q, q / m).nan_to_num()
    return terms.sum(-1) / 2 / LN2


def measured(*args, **options):
    return rfis_rpd_per_query(*args, scaling=SCALING, **options)


@few
@given(seeds)
def test_values_are_those_of_the_definition(seed):
    """Equations 8 to 13 written out for every head, query and frequency."""
    arguments = heads(seed)
    rotated = contributions(*arguments, scaling=SCALING)
    plain = contributions(*arguments, scaling=SCALING, rotate=False)
    hidden = ~visible_keys(arguments[3], arguments[4])
    logits = rotated.sum(1)
    p = torch.softmax(logits.masked_fill(hidden, -math.inf), -1)
    rfis, rpd = measured(*arguments)
    for r in range(rotated.shape[1]):
        removed = torch.softmax((logits - rotated[:, r]).masked_fill(hidden, -math.inf), -1)
        swapped = torch.softmax((logits - rotated[:, r] + plain[:, r]).masked_fill(hidden, -math.inf), -1)
        torch.testing.assert_close(rfis[:, :, r], direct(p, removed), rtol=1e-8, atol=1e-13)
        torch.testing.assert_close(rpd[:, :, r], direct(p, swapped), rtol=1e-8, atol=1e-13)


@few
@given(seeds, st.sampled_from(["half", "interleaved"]))
def test_1_contributions_add_up_to_the_logits(seed, pairing):
    queries, keys, inv_freq, query_positions, key_positions = heads(seed)
    parts = contributions(queries, keys, inv_freq, query_positions, key_positions, scaling=SCALING, pairing=pairing)
    for i, m in enumerate(query_positions.tolist()):
        for n in key_positions.tolist():
            total = 0.0
            for r, w in enumerate(inv_freq.tolist()):
                first, second = (r, r + 8) if pairing == "half" else (2 * r, 2 * r + 1)
                angle = (n - m) * w  # equation 5: q^T R((j - i) w) k
                a, b = queries[0, i, first], queries[0, i, second]
                c, e = keys[0, n, first], keys[0, n, second]
                x, y = math.cos(angle) * c - math.sin(angle) * e, math.sin(angle) * c + math.cos(angle) * e
                total += float(a * x + b * y) * SCALING
            assert float(parts[0, :, i, n].sum()) == pytest.approx(total, abs=1e-10)
        break


def test_2_removing_nothing_gives_exactly_zero():
    arguments = list(heads(0))
    arguments[0][..., [3, 11]] = 0.0
    for dtype in (torch.float64, torch.float32):
        rfis, rpd = measured(arguments[0].to(dtype), arguments[1].to(dtype), *arguments[2:])
        assert torch.equal(rfis[..., 3], torch.zeros_like(rfis[..., 3]))
        assert torch.equal(rpd[..., 3], torch.zeros_like(rpd[..., 3]))
        assert float(rfis[..., 4].min()) > 1e-4


@few
@given(seeds, st.floats(-20, 20))
def test_3_and_17_a_constant_of_a_row_changes_nothing(seed, constant):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 20, generator=generator, dtype=torch.float64) * 3
    removed = torch.randn(3, 20, generator=generator, dtype=torch.float64)
    visible = torch.ones(3, 20, dtype=torch.bool)
    log_p = torch.log_softmax(logits, -1)
    same = js_of_removed(log_p, removed + constant, visible)
    torch.testing.assert_close(same, js_of_removed(log_p, removed, visible), rtol=1e-9, atol=1e-13)
    assert float(js_of_removed(log_p, torch.full_like(removed, constant), visible).max()) < 1e-25


@few
@given(seeds, st.floats(0.05, 30))
def test_4_bounds(seed, size):
    arguments = heads(seed, size=size)
    removed = contributions(*arguments, scaling=SCALING)
    visible = visible_keys(arguments[3], arguments[4])
    low = removed.masked_fill(~visible, math.inf).amin(-1)
    spread = removed.masked_fill(~visible, -math.inf).amax(-1) - low
    rfis, rpd = measured(*arguments)
    for values in (rfis, rpd):
        assert float(values.min()) >= 0.0
        assert float(values.max()) < 1.0 or size > 5
        assert float(values.max()) <= 1.0 + 1e-12
    assert bool((rfis <= torch.tanh(spread / 4).transpose(1, 2) + 1e-12).all())


@few
@given(seeds)
def test_5_symmetric(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 30, generator=generator, dtype=torch.float64) * 2
    removed = torch.randn(4, 30, generator=generator, dtype=torch.float64)
    visible = torch.ones(4, 30, dtype=torch.bool)
    there = js_of_removed(torch.log_softmax(logits, -1), removed, visible)
    back = js_of_removed(torch.log_softmax(logits - removed, -1), -removed, visible)
    torch.testing.assert_close(there, back, rtol=1e-10, atol=0)


@few
@given(seeds, st.integers(1, 100_000))
def test_6_shifting_all_positions(seed, shift):
    q, k, inv_freq, i, j = heads(seed)
    for a, b in zip(measured(q, k, inv_freq, i, j), measured(q, k, inv_freq, i + shift, j + shift), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@few
@given(seeds)
def test_7_equal_positions(seed):
    q, k, inv_freq, i, j = heads(seed)
    rfis, rpd = measured(q, k, inv_freq, torch.full_like(i, 7), torch.full_like(j, 7))
    assert float(rpd.max()) < 1e-28
    plain, _ = measured(q, k, torch.zeros_like(inv_freq), torch.full_like(i, 7), torch.full_like(j, 7))
    torch.testing.assert_close(rfis, plain, rtol=1e-10, atol=1e-15)


@few
@given(seeds)
def test_8_slow_frequencies_have_no_positional_dependence(seed):
    q, k, inv_freq, i, j = heads(seed)
    inv_freq = inv_freq.clone()
    inv_freq[-1] = 0.0
    _, rpd = measured(q, k, inv_freq, i, j)
    assert torch.equal(rpd[..., -1], torch.zeros_like(rpd[..., -1]))
    inv_freq[-1] = 1e-6
    difference = contributions(q, k, inv_freq, i, j, scaling=SCALING) - contributions(
        q, k, inv_freq, i, j, scaling=SCALING, rotate=False
    )
    for r in range(8):
        lengths = q[..., [r, r + 8]].norm(dim=-1)[:, :, None] * k[..., [r, r + 8]].norm(dim=-1)[:, None, :]
        half = torch.sin(inv_freq[r] * (i[:, None] - j[None, :]) / 2).abs()
        assert bool((difference[:, r].abs() <= 2 * SCALING * lengths * half + 1e-12).all())


def test_8_lowest_frequency_of_random_heads():
    q, k, inv_freq, i, j = heads(3, h=4, g=4, q=64, t=512, d=64, size=1.0)
    rpd = rfis_rpd_per_query(q, k, inv_freq, i, j, scaling=0.125)[1].mean((0, 1))
    assert float(rpd[0]) > 1e-3
    assert float(rpd[-1]) < 2e-3 * float(rpd[0])


@few
@given(seeds)
def test_9_permuted_keys(seed):
    q, k, inv_freq, i, j = heads(seed)
    order = torch.randperm(j.numel(), generator=torch.Generator().manual_seed(seed))
    for a, b in zip(measured(q, k, inv_freq, i, j), measured(q, k[:, order], inv_freq, i, j[order]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-15)


def test_10_one_visible_key():
    q, k, inv_freq, i, j = heads(0)
    only = torch.zeros(j.numel(), dtype=torch.bool)
    only[4] = True
    for values in (*measured(q, k, inv_freq, i, j, key_mask=only), *measured(q, k, inv_freq, i, j, window=1)):
        assert float(values.abs().max()) < 1e-28


@few
@given(seeds)
def test_11_grouped_keys(seed):
    q, k, inv_freq, i, j = heads(seed, h=6, g=2)
    assert not torch.equal(k[0], k[1])
    repeated = torch.stack([k[0], k[0], k[0], k[1], k[1], k[1]])
    for a, b in zip(measured(q, k, inv_freq, i, j), measured(q, repeated, inv_freq, i, j), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    tiled = repeated[[0, 3, 0, 3, 0, 3]]
    assert float((measured(q, tiled, inv_freq, i, j)[0] - measured(q, k, inv_freq, i, j)[0]).abs().max()) > 1e-4


@few
@given(seeds)
def test_12_pairing(seed):
    q, k, inv_freq, i, j = heads(seed)
    order = torch.arange(16).reshape(2, 8).T.flatten()  # 0 8 1 9 ...: half-split pairs become neighbours
    other = measured(q[..., order], k[..., order], inv_freq, i, j, pairing="interleaved")
    for a, b in zip(measured(q, k, inv_freq, i, j), other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


@few
@given(seeds, st.floats(0.01, 100))
def test_13_scale_moves_between_q_and_k(seed, factor):
    q, k, inv_freq, i, j = heads(seed)
    for a, b in zip(measured(q, k, inv_freq, i, j), measured(q * factor, k / factor, inv_freq, i, j), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-15)


@few
@given(seeds, st.floats(-math.pi, math.pi))
def test_14_common_rotation(seed, angle):
    q, k, inv_freq, i, j = heads(seed)

    def turned(x: torch.Tensor) -> torch.Tensor:
        angles = torch.full((x.shape[-2], 8), angle, dtype=torch.float64)
        return torch.cat(rotate_pairs(*split_pairs(x, 8, "half"), angles), dim=-1)

    for a, b in zip(measured(q, k, inv_freq, i, j), measured(turned(q), turned(k), inv_freq, i, j), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-14)


def test_15_base_of_the_logarithm_cancels():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    removed = torch.tensor([0.4, -1.0, 0.3], dtype=torch.float64)
    q = torch.softmax(p.log() - removed, -1)
    m = (p + q) / 2
    base2 = 0.5 * (p * torch.log2(p / m) + q * torch.log2(q / m)).sum()
    assert float(js_of_removed(p.log(), removed, torch.ones(3, dtype=torch.bool))) == pytest.approx(float(base2), 1e-12)


def test_16_removals_do_not_add_up():
    q, k, inv_freq, i, j = heads(5)
    parts = contributions(q, k, inv_freq, i, j, scaling=SCALING)
    visible = visible_keys(i, j)
    log_p = torch.log_softmax(parts.sum(1).masked_fill(~visible, -math.inf), -1)
    both = js_of_removed(log_p, parts[:, 0] + parts[:, 1], visible)
    rfis, _ = measured(q, k, inv_freq, i, j)
    assert float((both - rfis[..., 0] - rfis[..., 1]).abs().max()) > 1e-3


@few
@given(seeds, st.sampled_from([1e-2, 1e-4, 1e-6]))
def test_small_changes_follow_the_variance(seed, size):
    """JS -> Var_p(c)/8 as c -> 0, also in float32, where the definition itself is lost in rounding."""
    generator = torch.Generator().manual_seed(seed)
    log_p = torch.log_softmax(torch.randn(200, generator=generator, dtype=torch.float64), -1)
    removed = torch.randn(200, generator=generator, dtype=torch.float64) * size
    p = log_p.exp()
    variance = float((p * removed**2).sum() - (p * removed).sum() ** 2)
    visible = torch.ones(200, dtype=torch.bool)
    exact = float(js_of_removed(log_p, removed, visible))
    assert exact * LN2 == pytest.approx(variance / 8, rel=3 * size + 1e-6)
    assert float(js_of_removed(log_p.float(), removed.float(), visible)) == pytest.approx(exact, rel=2e-4)


def test_hidden_keys_never_count():
    """Keys of any size behind the mask leave no trace, not even NaN."""
    q, k, inv_freq, i, j = heads(1)
    mask = torch.ones(j.numel(), dtype=torch.bool)
    mask[:6] = False
    wild = k.clone()
    wild[:, :6] = 1e30
    for a, b in zip(
        measured(q, wild, inv_freq, i, j, key_mask=mask), measured(q, k, inv_freq, i, j, key_mask=mask), strict=True
    ):
        assert bool(torch.isfinite(a).all())
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    shorter = measured(q, k[:, 6:], inv_freq, i, j[6:])
    for a, b in zip(measured(q, k, inv_freq, i, j, key_mask=mask), shorter, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-15)


def test_window_holds_the_newest_keys():
    assert visible_keys(torch.tensor([5]), torch.arange(7), window=3)[0].tolist() == [False] * 3 + [True] * 3 + [False]


def test_attention_scaling_enters_squared():
    q, k, inv_freq, i, j = heads(2)
    for a, b in zip(
        measured(q, k, inv_freq, i, j, attention_scaling=1.2),
        rfis_rpd_per_query(q, k, inv_freq, i, j, scaling=SCALING * 1.44),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=0)


def test_partial_rotary_adds_one_group_without_positions():
    q, k, _, i, j = heads(4)
    inv_freq = inverse_frequencies(4)
    rfis, rpd = measured(q, k, inv_freq, i, j)
    assert rfis.shape[-1] == rpd.shape[-1] == 5
    assert torch.equal(rpd[..., 4], torch.zeros_like(rpd[..., 4]))
    assert float(rfis[..., 4].min()) > 1e-3
    parts = contributions(q, k, inv_freq, i, j, scaling=SCALING)
    rest = SCALING * torch.einsum("hqd,hkd->hqk", q[..., 8:], k[[0, 0]][..., 8:])
    torch.testing.assert_close(parts[:, 4], rest)


def test_softcap_acts_after_the_intervention():
    q, k, inv_freq, i, j = heads(6)
    cap = 3.0
    parts = contributions(q, k, inv_freq, i, j, scaling=SCALING)
    hidden = ~visible_keys(i, j)
    logits = parts.sum(1)

    def softmax(z: torch.Tensor) -> torch.Tensor:
        return torch.softmax((cap * torch.tanh(z / cap)).masked_fill(hidden, -math.inf), -1)

    rfis, _ = measured(q, k, inv_freq, i, j, softcap=cap)
    for r in range(8):
        torch.testing.assert_close(
            rfis[..., r], direct(softmax(logits), softmax(logits - parts[:, r])), rtol=1e-8, atol=1e-12
        )
    wide, _ = measured(q, k, inv_freq, i, j, softcap=1e6)
    torch.testing.assert_close(wide, measured(q, k, inv_freq, i, j)[0], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"k": torch.zeros(1, 24, 8, dtype=torch.float64)}, "expected .H, Q, d."),
        (
            {"q": torch.zeros(3, 5, 16, dtype=torch.float64), "k": torch.zeros(2, 24, 16, dtype=torch.float64)},
            "3 heads",
        ),
        ({"q": torch.zeros(2, 5, 16, dtype=torch.bfloat16)}, "float32"),
        ({"inv_freq": torch.ones(9)}, "9 frequencies"),
        ({"query_positions": torch.arange(4)}, "positions of shape"),
        ({"key_positions": torch.arange(24.0)}, "integers"),
        ({"pairing": "quarter"}, "pairing: 'quarter'"),
        ({"key_mask": torch.zeros(24, dtype=torch.bool)}, "no key at all"),
    ],
)
def test_impossible_arguments_are_named(change, named):
    q, k, inv_freq, i, j = heads(0)
    arguments = {"q": q, "k": k, "inv_freq": inv_freq, "query_positions": i, "key_positions": j} | change
    with pytest.raises(ValueError, match=named):
        rfis_rpd_per_query(**arguments, scaling=SCALING)
