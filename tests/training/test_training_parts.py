"""Schedule, optimizers, FLOP counts, settings, compile decision."""

import pytest
import torch

from hwh_core.architectures import architecture
from hwh_core.config import OptimizerConfig
from hwh_core.heads import FULL_ATTENTION, GATED_DELTANET, SLIDING_WINDOW, HeadGroup
from hwh_core.memory_plan import KNOWN_CARDS
from hwh_core.modeling import build_model
from hwh_core.training import compilation
from hwh_core.training.flops import (
    mixing_flops_per_token,
    model_flops_per_token,
    model_flops_utilization,
    peak_flops,
)
from hwh_core.training.muon import Muon, orthogonalize
from hwh_core.training.optimizer import Optimizer, split_parameters
from hwh_core.training.schedule import learning_rate_factor
from hwh_core.training.settings import TrainingError, parse_settings, run_fingerprint


def test_schedule_warms_up_then_follows_a_cosine():
    factors = [learning_rate_factor(step, steps=100, warmup_steps=10, final_fraction=0.1) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[54] == pytest.approx(0.55)
    assert factors[-1] == pytest.approx(0.1)
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_schedule_without_warmup_and_out_of_range():
    assert learning_rate_factor(0, steps=1, warmup_steps=0, final_fraction=0.5) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="step 5"):
        learning_rate_factor(5, steps=5, warmup_steps=0, final_fraction=0.1)


@pytest.fixture
def model(settings):
    values = settings()["model"]
    return build_model(values["shape"], "hwh_std", 1e4, True, 32, 64, 0)


def test_weight_decay_is_for_matrices_only(model):
    groups = split_parameters(model, muon=True)
    names = [name for group in groups.values() for name in group]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert set(groups["decayed"]) == {"model.embed_tokens.weight", "lm_head.weight"}
    assert all(name.endswith(("_proj.weight",)) for name in groups["muon"])
    plain = {name.rsplit(".layers.", 1)[-1].split(".", 1)[-1] for name in groups["plain"]}
    for part in ("A_log", "dt_bias", "q_conv1d.weight", "o_norm.weight", "input_layernorm.weight", "q_norm.weight"):
        assert any(name.endswith(part) for name in plain), part
    without = split_parameters(model, muon=False)
    assert without["muon"] == {}
    assert set(without["decayed"]) == set(groups["decayed"]) | set(groups["muon"])


def test_what_has_no_gradient_signal_decays_only_where_it_should(model):
    optimizer = Optimizer(model, OptimizerConfig(kind="adamw", learning_rate=0.1, weight_decay=0.5))
    optimizer.set_factor(0.5)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.05 * 0.5 if parameter.ndim == 2 else 1.0
        assert torch.allclose(parameter, before[name] * factor), name


def test_muon_makes_updates_nearly_orthogonal():
    drawn = torch.randn(3, 24, 40, generator=torch.Generator().manual_seed(0))
    for matrices in (drawn, drawn.mT):
        values = torch.linalg.svdvals(orthogonalize(matrices))
        assert values.min() > 0.3
        assert values.max() < 1.3


def test_muon_follows_the_rule_of_torch():
    shapes = [(24, 40), (40, 24), (24, 40)]

    def run(optimizer_class):
        generator = torch.Generator().manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        optimizer = optimizer_class(parameters, lr=0.05, weight_decay=0.1)
        for _ in range(4):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
        return parameters

    for ours, theirs in zip(run(Muon), run(torch.optim.Muon), strict=True):
        # torch iterates in bfloat16, so its updates carry rounding of about 1e-2 of their size (4 steps of 0.05).
        assert (ours - theirs).abs().max() < 5e-3


def test_muon_refuses_what_is_no_matrix():
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        Muon([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
    with pytest.raises(ValueError, match="closure"):
        Muon([torch.nn.Parameter(torch.zeros(3, 3))], lr=0.1).step(lambda: 0)


def test_flops_of_a_transformer():
    layers = architecture(
        "transformer", num_layers=24, hidden_size=1024, attention_head_dim=64, gdn_head_dim=None, qk_norm=True,
        gate=True, conv_size=4, rope_theta=1e4, attention_output_norm=False,
    )  # fmt: skip
    flops = model_flops_per_token(layers, hidden_size=1024, intermediate_size=2560, vocab_size=32000, length=2048)
    assert flops == 6 * (380_162_048 - 32000 * 1024) + 6 * 24 * 1024 * 2048


def test_flops_of_windows_and_gated_deltanet():
    full = HeadGroup(FULL_ATTENTION, 4, 64)
    window = HeadGroup(SLIDING_WINDOW, 4, 64, window=128)
    assert mixing_flops_per_token(full, 2048) == 6 * 256 * 2048
    assert mixing_flops_per_token(window, 128) == mixing_flops_per_token(full, 128)
    # Mean number of visible keys, counted query by query; the closed form treats positions as continuous.
    counted = sum(min(i + 1, 128) for i in range(2048)) / 2048
    assert mixing_flops_per_token(window, 2048) == pytest.approx(12 * 256 * counted, rel=5e-3)
    delta = HeadGroup(GATED_DELTANET, 2, 128, conv_size=4)
    assert mixing_flops_per_token(delta, 2048) == mixing_flops_per_token(delta, 8192)
    assert mixing_flops_per_token(delta, 2048) == 3 * 2 * (10 * 64 * 128 + 64**2 / 3 + 6 * 128**2)


@pytest.mark.parametrize("name", KNOWN_CARDS)
def test_a_card_of_known_memory_has_a_known_peak(name):
    assert 50e12 < peak_flops(name) < 5000e12


def test_utilization_is_unknown_on_a_cpu():
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    # Words count, not parts of them, and the more exact name counts first.
    assert peak_flops("NVIDIA H200 NVL") == peak_flops("NVIDIA H100 NVL") == 835e12
    assert peak_flops("NVIDIA H20") == 148e12
    assert peak_flops("NVIDIA GB200") > peak_flops("NVIDIA B200")
    assert peak_flops("NVIDIA A10G") < peak_flops("NVIDIA A10") < peak_flops("NVIDIA A100-SXM4-40GB")
    assert peak_flops("nvidia l4") < peak_flops("NVIDIA L40S")
    assert peak_flops("NVIDIA H2000") is None
    assert model_flops_utilization(1e9, 1e6, None, 1) is None
    assert model_flops_utilization(1e9, 1e6, "Some Card", 1) is None
    assert model_flops_utilization(1e9, 989e3, "NVIDIA H200", 2) == pytest.approx(0.5)


def test_compilation_is_decided_by_the_whole_run(monkeypatch):
    attention = [(HeadGroup(FULL_ATTENTION, 2, 8),)]
    hybrid = [(HeadGroup(FULL_ATTENTION, 2, 8), HeadGroup(GATED_DELTANET, 2, 8, conv_size=4))]
    monkeypatch.setattr(compilation, "cpp_compiler_is_usable", lambda: True)
    assert compilation.should_compile("auto", attention, 8_000_000, "cpu")
    assert not compilation.should_compile("auto", attention, 800_000, "cpu")
    assert not compilation.should_compile("auto", hybrid, 800_000, "cpu")
    assert compilation.should_compile("auto", hybrid, 2_000_000, "cpu")
    assert not compilation.should_compile("never", attention, 10**9, "cpu")
    assert compilation.should_compile("auto", attention, 10**9, "cuda")
    assert not compilation.should_compile("auto", attention, 10**7, "cuda")
    assert compilation.should_compile("auto", hybrid, 10**9, "cuda", "fla")
    assert not compilation.should_compile("auto", hybrid, 10**9, "cuda", "torch")
    monkeypatch.setattr(compilation, "cpp_compiler_is_usable", lambda: False)
    assert not compilation.should_compile("auto", attention, 8_000_000, "cpu")


def test_a_missing_compiler_is_noticed(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not compilation.cpp_compiler_is_usable()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens_per_step": 100}, ["tokens_per_step = 100", "32"]),
        ({"micro_batch_tokens": 96}, ["micro_batch_tokens = 96", "128"]),
        ({"warmup_steps": 6}, ["warmup_steps = 6", "steps = 6"]),
        ({"stepz": 3}, ["stepz"]),
        ({"optimizer": {"kind": "adamw", "learning_rate": -1.0}}, ["learning_rate", "-1"]),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings, change, words):
    with pytest.raises(TrainingError) as error:
        parse_settings(settings(**change))
    for word in words:
        assert word in str(error.value)


def test_fingerprint_covers_what_decides_the_result(settings):
    def fingerprint(values, data="d", vocab_size=64):
        return run_fingerprint(parse_settings(values), data, vocab_size)

    base = fingerprint(settings())
    assert fingerprint(settings(checkpoint_every_steps=5, keep_checkpoints=1)) == base
    assert fingerprint(settings(parallel="fsdp", micro_batch_tokens=32, compile="auto")) == base
    assert fingerprint(settings(steps=7))["config"] != base["config"]
    assert fingerprint(settings(), vocab_size=65)["config"] != base["config"]
    assert fingerprint(settings(tokens_per_step=256))["config"] != base["config"]
    assert fingerprint(settings(precision="bfloat16"))["config"] != base["config"]
    assert fingerprint(settings(), data="e") == base | {"data": "e"}
    other = settings()
    other["model"]["seed"] = 1
    assert fingerprint(other)["config"] != base["config"]
