"""Effective weights of Gated DeltaNet heads: against the product written out, autograd, and the recurrence's output."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hwh_core.probes.delta_influence import delta_rule_weights
from hwh_kernels.gated_delta_rule import chunk_gated_delta_rule, recurrent_gated_delta_rule

SCALE = 0.25


def draw(length, seed=0, dtype=torch.float64, decay=2.0, batch=2, heads=3, dim=8):
    generator = torch.Generator().manual_seed(seed)
    q, k = (F.normalize(torch.randn(batch, length, heads, dim, generator=generator), dim=-1) for _ in range(2))
    v = torch.randn(batch, length, heads, dim, generator=generator)
    g = -decay * torch.rand(batch, length, heads, generator=generator)
    beta = torch.rand(batch, length, heads, generator=generator)
    return [x.to(dtype) for x in (q, k, v, g, beta)]


def written_out(q, k, g, beta, positions):
    """The product of the docstring, matrix by matrix, without any chunk."""
    batch, length, heads, dim = k.shape
    weights = torch.zeros(batch, heads, len(positions), length, dtype=k.dtype)
    one = torch.eye(dim, dtype=k.dtype)
    for b in range(batch):
        for h in range(heads):
            for row, t in enumerate(positions.tolist()):
                for s in range(t + 1):
                    product = one
                    for r in range(s + 1, t + 1):
                        key = k[b, r, h][:, None]
                        product = product @ (g[b, r, h].exp() * (one - beta[b, r, h] * key @ key.T))
                    weights[b, h, row, s] = SCALE * beta[b, s, h] * k[b, s, h] @ product @ q[b, t, h]
    return weights


@pytest.mark.parametrize("chunk_size", [1, 4, 64])
def test_weights_are_the_product_written_out(chunk_size):
    q, k, _, g, beta = draw(13, batch=1, heads=2)
    positions = torch.tensor([0, 3, 4, 9, 12])
    found = delta_rule_weights(q[:, positions], k, g, beta, positions, SCALE, chunk_size)
    expected = written_out(q, k, g, beta, positions)
    assert (found - expected).abs().max() < 1e-14
    assert (found < 0).any(), "a delta rule also takes away"
    assert found[:, :, 1, 4:].abs().max() == 0, "nothing comes from tokens behind the query"


def test_weights_are_the_gradient_of_the_output_in_the_values():
    q, k, v, g, beta = draw(21, batch=1, heads=2)
    positions = torch.arange(14, 21)
    found = delta_rule_weights(q[:, positions], k, g, beta, positions, SCALE, 8)

    def output(values):
        return recurrent_gated_delta_rule(q, k, values, g, beta, SCALE)[0][:, positions]

    jacobian = torch.autograd.functional.jacobian(output, v)[0, :, :, :, 0]  # [Q, H, d, T, H, d]
    for head in range(2):
        for d in range(8):
            torch.testing.assert_close(jacobian[:, head, d, :, head, d], found[0, head], rtol=0, atol=1e-14)
    assert jacobian[:, 0, :, :, 1].abs().max() == 0, "heads do not read one another"
    assert jacobian[:, 0, 0, :, 0, 1].abs().max() == 0, "one weight for all dimensions of a value"


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("decay", [0.0, 0.02, 4.0])
def test_weighted_values_are_the_output_of_the_torch_form(length, decay):
    q, k, v, g, beta = draw(length, seed=length, dtype=torch.float32, decay=decay)
    positions = torch.arange(length)[-100:]
    weights = delta_rule_weights(q[:, positions], k, g, beta, positions, SCALE)
    assert weights.dtype == torch.float32
    rebuilt = torch.einsum("bhqs,bshd->bqhd", weights, v)
    expected = chunk_gated_delta_rule(q, k, v, g, beta, SCALE)[0][:, positions]
    assert (rebuilt - expected).abs().max() < 1e-5 * expected.abs().max()


def test_a_decay_of_0_leaves_the_token_itself():
    q, k, _, _, beta = draw(70)
    positions = torch.arange(60, 70)
    g = torch.full((2, 70, 3), float("-inf"), dtype=torch.float64)
    found = delta_rule_weights(q[:, positions], k, g, beta, positions, SCALE)
    own = SCALE * torch.einsum("bthd,bthd->bht", q, k) * beta.transpose(1, 2)
    expected = torch.zeros_like(found)
    expected[:, :, torch.arange(10), positions] = own[:, :, 60:]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-80)


def test_one_token_that_forgets_hides_all_before_it():
    q, k, _, g, beta = draw(70, dtype=torch.float32)
    g[:, 30] = float("-inf")
    positions = torch.tensor([20, 50, 69])
    found = delta_rule_weights(q[:, positions], k, g, beta, positions, SCALE)
    assert found.isfinite().all()
    assert found[:, :, 1:, :30].abs().max() == 0
    assert found[:, :, 1, 30].abs().min() > 0
    assert found[:, :, 0, :21].abs().max(dim=-1).values.min() > 0


def test_without_decay_a_full_write_replaces_what_its_key_held():
    """beta = 1 with one key for all tokens: each write erases the one before, so only the last token is read."""
    key = torch.eye(8, dtype=torch.float64)[0].expand(1, 40, 1, 8)
    zeros, ones = torch.zeros(1, 40, 1, dtype=torch.float64), torch.ones(1, 40, 1, dtype=torch.float64)
    positions = torch.tensor([10, 39])
    found = delta_rule_weights(key[:, positions], key, zeros, ones, positions, 1.0, 16)
    expected = torch.zeros(1, 1, 2, 40, dtype=torch.float64)
    expected[0, 0, 0, 10] = expected[0, 0, 1, 39] = 1.0
    torch.testing.assert_close(found, expected)
    half = delta_rule_weights(key[:, positions], key, zeros, 0.5 * ones, positions, 1.0, 16)
    torch.testing.assert_close(half[0, 0, 1], 0.5 ** (40.0 - torch.arange(40)).double())


def test_a_token_that_writes_nothing_weighs_nothing():
    q, k, _, g, beta = draw(80)
    beta[:, 40] = 0.0
    positions = torch.tensor([79])
    found = delta_rule_weights(q[:, positions], k, g, beta, positions, SCALE)
    assert found[..., 40].abs().max() == 0
    assert found[..., 39].abs().min() > 0
    nothing = delta_rule_weights(q[:, positions], k, g, torch.zeros_like(beta), positions, SCALE)
    assert nothing.abs().max() == 0


@pytest.mark.parametrize("positions", [[3, 2], [2, 2], [-1, 4], [80], []])
def test_positions_that_do_not_rise_or_lie_outside_are_refused(positions):
    q, k, _, g, beta = draw(80)
    with pytest.raises(ValueError, match=r"query_positions: expected rising positions in 0\.\.79"):
        delta_rule_weights(q[:, : len(positions)], k, g, beta, torch.tensor(positions, dtype=torch.long), SCALE)
