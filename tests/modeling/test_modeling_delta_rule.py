"""Gated delta rule: chunked and recurrent forms against a float64 recurrence written out from the equation."""

import pytest
import torch
from torch.nn import functional as F

from hwh_kernels.gated_delta_rule import chunk_gated_delta_rule, recurrent_gated_delta_rule

LENGTHS = (1, 7, 8, 63, 64, 65, 127)
SCALE = 0.25


def draw(length, seed=0, batch=2, heads=3, dim=16, value_dim=16):
    generator = torch.Generator().manual_seed(seed)
    q, k = (F.normalize(torch.randn(batch, length, heads, dim, generator=generator), dim=-1) for _ in range(2))
    v = torch.randn(batch, length, heads, value_dim, generator=generator)
    g = -2 * torch.rand(batch, length, heads, generator=generator)
    beta = torch.rand(batch, length, heads, generator=generator)
    state = torch.randn(batch, heads, dim, value_dim, generator=generator)
    return q, k, v, g, beta, state


def equation(q, k, v, g, beta, state):
    """Equation 3 with matrices: S_t = exp(g) S (I - beta k k^T) + beta v k^T, o = scale S q (S here [d_v, d_k])."""
    q, k, v, g, beta, state = (x.double() for x in (q, k, v, g, beta, state))
    batch, length, heads, dim = q.shape
    outputs = torch.zeros(batch, length, heads, v.shape[-1], dtype=torch.float64)
    final = torch.zeros_like(state)
    for b in range(batch):
        for h in range(heads):
            s = state[b, h].T
            for t in range(length):
                key = k[b, t, h][:, None]
                s = g[b, t, h].exp() * s @ (torch.eye(dim, dtype=torch.float64) - beta[b, t, h] * key @ key.T)
                s = s + beta[b, t, h] * v[b, t, h][:, None] @ key.T
                outputs[b, t, h] = SCALE * s @ q[b, t, h]
            final[b, h] = s.T
    return outputs, final


@pytest.mark.parametrize("rule", [recurrent_gated_delta_rule, chunk_gated_delta_rule])
@pytest.mark.parametrize("length", LENGTHS)
def test_both_forms_follow_the_equation(rule, length):
    inputs = draw(length, batch=1, heads=2)
    expected, expected_state = equation(*inputs)
    output, state = rule(*inputs[:5], SCALE, initial_state=inputs[5], output_final_state=True)
    assert output.dtype == state.dtype == torch.float32
    assert (output - expected).abs().max() < 2e-6
    assert (state - expected_state).abs().max() < 2e-6


@pytest.mark.parametrize("chunk_size", [1, 3, 16, 64])
def test_chunk_size_does_not_matter(chunk_size):
    inputs = [x.double() for x in draw(65)]
    expected = recurrent_gated_delta_rule(*inputs[:5], SCALE, initial_state=inputs[5])[0]
    output = chunk_gated_delta_rule(*inputs[:5], SCALE, initial_state=inputs[5], chunk_size=chunk_size)[0]
    assert (output - expected).abs().max() < 1e-13


@pytest.mark.parametrize("length", LENGTHS)
def test_gradients_of_the_chunked_form(length):
    weights = torch.randn(2, length, 3, 16, generator=torch.Generator().manual_seed(1))

    def gradients(rule, dtype):
        inputs = [x.to(dtype).requires_grad_() for x in draw(length)]
        output, state = rule(*inputs[:5], SCALE, initial_state=inputs[5], output_final_state=True)
        ((output * weights.to(dtype)).sum() + state.square().sum()).backward()
        return [x.grad for x in inputs]

    expected = gradients(recurrent_gated_delta_rule, torch.float64)
    for name, ours, exact in zip(
        ("q", "k", "v", "g", "beta", "state"), gradients(chunk_gated_delta_rule, torch.float32), expected, strict=True
    ):
        assert (ours - exact).abs().max() < 2e-5 * max(1.0, exact.abs().max()), name


def test_gradients_by_finite_differences():
    inputs = [x.double().requires_grad_() for x in draw(5, batch=1, heads=1, dim=3, value_dim=2)]

    def rule(q, k, v, g, beta, state):
        return chunk_gated_delta_rule(
            q, k, v, g, beta, SCALE, initial_state=state, output_final_state=True, chunk_size=2
        )

    assert torch.autograd.gradcheck(rule, inputs)


def test_a_later_token_changes_nothing_before_it():
    inputs = draw(40)
    before = chunk_gated_delta_rule(*inputs[:5], SCALE)[0]
    for tensor in inputs[:5]:
        tensor[:, 33:] = tensor[:, 33:].flip(1) * 0.5
    after = chunk_gated_delta_rule(*inputs[:5], SCALE)[0]
    assert torch.equal(before[:, :33], after[:, :33])
    assert not torch.equal(before[:, 33:], after[:, 33:])


@pytest.mark.parametrize("split", [1, 31, 32, 40])
def test_a_state_carries_a_sequence_on(split):
    inputs = draw(65)
    whole, state = chunk_gated_delta_rule(*inputs[:5], SCALE, initial_state=inputs[5], output_final_state=True)
    first, middle = chunk_gated_delta_rule(
        *(x[:, :split] for x in inputs[:5]), SCALE, initial_state=inputs[5], output_final_state=True
    )
    second, last = chunk_gated_delta_rule(
        *(x[:, split:] for x in inputs[:5]), SCALE, initial_state=middle, output_final_state=True
    )
    assert (torch.cat((first, second), dim=1) - whole).abs().max() < 5e-6
    assert (last - state).abs().max() < 5e-6


def test_strong_decay_stays_finite():
    q, k, v, g, beta, state = draw(64)
    g = (g * 200).requires_grad_()
    output, _ = chunk_gated_delta_rule(q, k, v, g, beta, SCALE, initial_state=state)
    output.sum().backward()
    assert output.isfinite().all()
    assert g.grad.isfinite().all()


def test_tokens_without_decay_and_write_leave_the_state_alone():
    q, k, v, g, beta, state = draw(9)
    after = chunk_gated_delta_rule(q, k, v, g * 0, beta * 0, SCALE, initial_state=state, output_final_state=True)[1]
    assert torch.equal(after, state)


def test_low_precision_inputs_are_computed_in_float32():
    q, k, v, g, beta, _ = draw(40)
    exact = chunk_gated_delta_rule(q.bfloat16().float(), k.bfloat16().float(), v.bfloat16().float(), g, beta, SCALE)[0]
    output, state = chunk_gated_delta_rule(
        q.bfloat16(), k.bfloat16(), v.bfloat16(), g, beta, SCALE, output_final_state=True
    )
    assert output.dtype == torch.bfloat16
    assert state.dtype == torch.float32
    assert (output.float() - exact).abs().max() < 0.02


@pytest.mark.parametrize("rule", [recurrent_gated_delta_rule, chunk_gated_delta_rule])
def test_a_state_of_the_wrong_shape_is_refused(rule):
    inputs = draw(4)
    with pytest.raises(ValueError, match=r"initial_state has shape \(2, 3, 16, 8\), expected \(2, 3, 16, 16\)"):
        rule(*inputs[:5], SCALE, initial_state=inputs[5][..., :8])


def test_a_chunk_size_of_zero_is_refused():
    with pytest.raises(ValueError, match="chunk_size = 0"):
        chunk_gated_delta_rule(*draw(4)[:5], SCALE, chunk_size=0)
