"""The head atlas: what the page holds, that nothing in it runs or loads but its own script, and a person's clicks."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pandas as pd
import pytest

from hwh_core import cli
from hwh_core.reporting.atlas import encode, page_data, render, write_atlas
from hwh_core.reporting.results import ResultFolder
from hwh_core.reporting.selection import ReportError
from hwh_core.rope import inverse_frequencies, predicted_index

LAYERS, HEADS, GROUPS = 5, 4, 16
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'&{{ 7*7 }}"


def write_probe(folder, layers=LAYERS, heads=HEADS, groups=GROUPS, samples=2, title="A model", classes=True):
    """Files as `hwh probe` and classify_heads write them; layer numbers start at 2, the last layer lacks a head."""
    rng = np.random.default_rng(0)
    shape = (samples, layers, heads, groups)
    bump = np.exp(-((np.arange(groups) - 0.6 * groups) ** 2))
    rpd = 0.01 * rng.random(shape) + 0.3 * bump * rng.random((1, layers, heads, 1))
    maps = {"rfis": rpd + 0.02 * rng.random(shape), "rpd": rpd}
    for values in maps.values():
        values[:, -1, -1] = np.nan
    index = np.arange(2, layers + 2)
    np.savez(
        folder / "probe.npz", inv_freq=inverse_frequencies(2 * groups, 1e4), null=np.ones(groups),
        sample_weight=np.ones(samples), layer_index=index, **{k: v.astype(np.float32) for k, v in maps.items()},
    )  # fmt: skip
    about = {"model": "m", "title": title, "training_length": 2048, "rope_theta": 1e4, "text_source": title}
    (folder / "probe.json").write_text(json.dumps(about))
    if not classes:
        return maps
    rows = [
        {
            "layer": int(layer), "head": head, "s_ret": rng.random(), "s_ret_lo": 0.1, "s_ret_hi": 0.9, "d_ratio": 1.0,
            "boundary": 0.7 * groups, "qr": rng.random(), "ld": rng.random(), "rfis_total": 1.0, "rpd_total": 1.0,
            "head_class": ("retrieval", "positional", "mixed")[head % 3],
        }
        for layer in index for head in range(heads) if not (layer == index[-1] and head == heads - 1)
    ]  # fmt: skip
    # Rows in any order: they name their layer and head.
    pd.DataFrame(rows[::-1]).to_csv(folder / "heads.csv", index=False)
    bands = {
        "clusters": [{"centre": 9.6, "centre_ci": [9.5, 9.8], "num_layers": layers}],
        "candidate_bands": [{"label": title, "covariance": 5.5, "oka": 6.1, "period": 300.0}],
        "band": {"layers": [{"layer": int(layer), "peak": 9.6, "verdict": "peak"} for layer in index]},
    }
    (folder / "bands.json").write_text(json.dumps(bands))
    return maps


def write_norms(folder, maps):
    """norms.npz whose product is that of a model that puts all of its norms where RPD is least."""
    with np.load(folder / "probe.npz") as probe:
        index, inv_freq = probe["layer_index"], probe["inv_freq"]
    product = 4.0 - maps["rpd"]
    norms = {"q_norm": np.sqrt(product), "k_norm": np.sqrt(product), "scaling": np.full(len(index), 0.5)}
    np.savez(folder / "norms.npz", inv_freq=inv_freq, layer_index=index, **norms)


def write_layers_of_two_kinds(folder):
    """The same probe with frequencies of their own in layers 3 and 5, as `hwh probe` writes Gemma 3; their tables."""
    write_probe(folder)
    with np.load(folder / "probe.npz") as probe:
        arrays = dict(probe)
    local = inverse_frequencies(2 * GROUPS, 100.0)
    own = np.stack([local if layer in (3, 5) else arrays["inv_freq"] for layer in arrays["layer_index"]])
    np.savez(folder / "probe.npz", **arrays, layer_inv_freq=own)
    bands = json.loads((folder / "bands.json").read_text())
    peaks = bands["band"]["layers"]
    bands["band"]["layers"] = [row for row in peaks if row["layer"] not in (3, 5)]
    other = {
        "bands_of_layers": [3, 5], "clusters": [{"centre": 4.0, "centre_ci": None, "num_layers": 2}],
        "band": {"layers": [row | {"peak": 4.0} for row in peaks if row["layer"] in (3, 5)]},
    }  # fmt: skip
    bands |= {"bands_of_layers": [2, 4, 6], "other_frequencies": [other]}
    (folder / "bands.json").write_text(json.dumps(bands))
    return arrays["inv_freq"], local


def decoded(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f2").astype(float)


def test_numbers_survive_in_half_the_bytes():
    values = np.array([0.0, 1.0, 0.4290483, 3e-6, np.nan])
    np.testing.assert_allclose(decoded(encode(values)), values, rtol=5e-4, atol=6e-8)
    assert len(base64.b64decode(encode(values))) == 2 * len(values)


def test_the_page_holds_means_scores_and_places(tmp_path):
    maps = write_probe(tmp_path)
    data = page_data(ResultFolder(tmp_path))
    expected = maps["rpd"].mean(axis=0)
    np.testing.assert_allclose(decoded(data["maps"]["rpd"]).reshape(expected.shape), expected, rtol=1e-3, atol=1e-7)
    peaks = decoded(data["columns"]["rpd_peak"]).reshape(LAYERS, HEADS)
    np.testing.assert_array_equal(peaks[:-1], expected[:-1].argmax(axis=-1))
    assert np.isnan(peaks[-1, -1])
    assert data["present"] == "1" * (LAYERS * HEADS - 1) + "0"
    assert data["layers"] == [2, 3, 4, 5, 6]
    # Head 1 of every layer is positional, whatever the order of the rows.
    assert [data["classes"][int(code)] for code in data["head_class"][1::HEADS]] == ["positional"] * LAYERS
    heads = pd.read_csv(tmp_path / "heads.csv").set_index(["layer", "head"])
    assert decoded(data["columns"]["qr"])[HEADS + 2] == pytest.approx(heads.loc[(3, 2), "qr"], rel=1e-3)
    assert [row["index"] for row in data["tables"][0]["predicted"]] == [5.5]


def test_a_probe_alone_is_enough_and_the_models_own_length_predicts(tmp_path):
    write_probe(tmp_path, classes=False)
    data = page_data(ResultFolder(tmp_path))
    assert data["head_class"] is None
    assert not data["has_bands"]
    (row,) = data["tables"][0]["predicted"]
    assert row["index"] == pytest.approx(predicted_index(2 * GROUPS, 1e4, 2048))
    (tmp_path / "probe.json").unlink()
    assert page_data(ResultFolder(tmp_path))["title"] == tmp_path.name


def test_norms_of_q_and_k_stand_beside_the_maps(tmp_path):
    maps = write_probe(tmp_path)
    write_norms(tmp_path, maps)
    folder = ResultFolder(tmp_path)
    data = page_data(folder)
    assert tmp_path / "norms.npz" in folder.used
    shape = maps["rpd"].shape[1:]
    expected = 0.5 * (4.0 - maps["rpd"].mean(axis=0))
    np.testing.assert_allclose(decoded(data["maps"]["norm"]).reshape(shape), expected, rtol=1e-3)
    agreement = decoded(data["columns"]["norm_rpd"])
    np.testing.assert_allclose(agreement[:-1], -1.0, atol=1e-3)
    assert np.isnan(agreement[-1])
    with np.load(tmp_path / "norms.npz") as norms:
        arrays = dict(norms)
    for name, value in (("layer_index", arrays["layer_index"] + 1), ("q_norm", arrays["q_norm"][..., :-1])):
        other = arrays | {name: value} | ({"k_norm": value} if name == "q_norm" else {})
        np.savez(tmp_path / "norms.npz", **other)
        with pytest.raises(ReportError, match=r"norms\.npz of .* make both again"):
            page_data(ResultFolder(tmp_path))


def test_layers_have_periods_bands_and_predictions_of_their_own_frequencies(tmp_path):
    full, local = write_layers_of_two_kinds(tmp_path)
    data = page_data(ResultFolder(tmp_path))
    table_of = dict(zip(data["layers"], (data["tables"][number] for number in data["table_of_layer"]), strict=True))
    assert len(data["tables"]) == 2
    for layer, inv_freq, centre, peak in ((2, full, 9.6, 9.6), (3, local, 4.0, 4.0), (5, local, 4.0, 4.0)):
        table = table_of[layer]
        np.testing.assert_allclose(table["periods"], 2 * np.pi / inv_freq)
        assert [band["centre"] for band in table["bands"]] == [centre]
        assert table["bands"][0]["period"] == pytest.approx(2 * np.pi * inv_freq[0] ** -1 * (1 / inv_freq[1]) ** centre)
        assert table["peaks"][str(layer)] == peak
    assert (table_of[2]["layers"], table_of[3]["layers"]) == (3, 2)
    # Stages that a preset names for the model; without, the length that the model states, on the layer's own grid.
    assert [row["index"] for row in table_of[2]["predicted"]] == [5.5]
    assert table_of[3]["predicted"][0]["index"] == pytest.approx(predicted_index(2 * GROUPS, 100.0, 2048))


def test_heads_of_another_model_are_refused(tmp_path):
    write_probe(tmp_path)
    heads = pd.read_csv(tmp_path / "heads.csv")
    for broken in (
        heads.assign(layer=heads["layer"] + 1),
        heads.assign(head=heads["head"] + 1),
        pd.concat([heads] * 2),
    ):
        broken.to_csv(tmp_path / "heads.csv", index=False)
        with pytest.raises(ReportError, match=r"heads\.csv: its layers and heads are not those of probe\.npz"):
            page_data(ResultFolder(tmp_path))
    heads.assign(head_class="other").to_csv(tmp_path / "heads.csv", index=False)
    with pytest.raises(ReportError, match="head_class holds \\['other'\\]"):
        page_data(ResultFolder(tmp_path))


def test_names_are_text_and_nothing_outside_is_named(tmp_path):
    write_probe(tmp_path, title=HOSTILE)
    page = write_atlas(tmp_path).read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert page.count("</script>") == page.count("<script") == 2
    assert "<img" not in page
    assert "&lt;/script&gt;" in page
    # The only addresses are the empty icon and the namespace of SVG.
    assert re.findall(r"""(?:https?:)?//[^\s"']+""", re.sub(r"(?m)^\s*// .*$", "", page)) == [
        "http://www.w3.org/2000/svg"
    ]
    assert "default-src 'none'" in page


def test_the_largest_models_fit_into_a_few_megabytes(tmp_path):
    write_norms(tmp_path, write_probe(tmp_path, layers=48, heads=64, groups=128, samples=1))
    assert len(render(page_data(ResultFolder(tmp_path)))) < 4_000_000


def test_report_of_a_probe_writes_the_page(tmp_path, capsys):
    write_probe(tmp_path)
    with pytest.raises(SystemExit) as done:
        cli.main(["report", str(tmp_path)])
    assert done.value.code == 0
    assert str(tmp_path / "atlas.html") in capsys.readouterr().out
    manifest = json.loads((tmp_path / "atlas.html.manifest.json").read_text())
    assert {path.rsplit("/", 1)[-1] for path in manifest["inputs"]} == {
        "probe.npz", "probe.json", "heads.csv", "bands.json"
    }  # fmt: skip
    for arguments, words in ((["--verdict", "reproduced"], "holds no claims"), ([], "name the folder of a probe")):
        with pytest.raises(SystemExit) as done:
            cli.main(["report", str(tmp_path if arguments else tmp_path / "nothing"), *arguments])
        assert done.value.code == 1
        assert words in capsys.readouterr().err


# ------------------------------------------------------------------ in a browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with a hostile name, and the maps that it shows."""
    folder = tmp_path_factory.mktemp("atlas")
    maps = write_probe(folder, title=HOSTILE)
    return write_atlas(folder), maps


def title(browser) -> str:
    return browser.evaluate("document.getElementById('head-title').textContent")


def texts(browser, selector: str) -> list[str]:
    return browser.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(found => found.textContent)")


@pytest.mark.browser
def test_the_page_draws_without_errors_and_without_requests(browser, page):
    browser.open(page[0])
    assert browser.evaluate("document.documentElement.dataset.ready") == "yes"
    assert browser.problems() == []
    assert browser.evaluate("document.title") == f"Head atlas: {HOSTILE}"
    assert browser.evaluate("document.querySelector('h1').textContent") == f"Head atlas: {HOSTILE}"
    assert browser.evaluate("document.images.length") == 0
    assert HOSTILE in browser.evaluate("document.getElementById('key').textContent")


@pytest.mark.browser
def test_the_policy_of_the_page_stops_foreign_scripts(browser, page):
    browser.open(page[0])
    browser.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))")
    assert browser.evaluate("window.ran") is None
    assert any("Content Security Policy" in words for words in browser.problems())


@pytest.mark.browser
def test_a_head_is_chosen_by_click_key_and_address(browser, page):
    path, maps = page
    browser.open(path, "#L3H2")
    assert title(browser) == "Layer 3, head 2: mixed"
    rows = texts(browser, "#values td:last-child")
    np.testing.assert_allclose([float(cell) for cell in rows], maps["rpd"].mean(axis=0)[1, 2], rtol=6e-3)

    browser.evaluate("document.getElementById('map').focus()")
    for key, expected in (
        ("ArrowDown", "Layer 4, head 2"), ("ArrowLeft", "Layer 4, head 1"), ("Home", "Layer 4, head 0"),
        ("ArrowLeft", "Layer 4, head 0"), ("End", "Layer 4, head 3"), ("ArrowUp", "Layer 3, head 3"),
        # The last layer has no head 3.
        ("PageDown", "Layer 3, head 3"), ("ArrowLeft", "Layer 3, head 2"), ("PageDown", "Layer 6, head 2"),
    ):  # fmt: skip
        browser.press(key)
        assert title(browser).startswith(expected), key
    assert browser.evaluate("location.hash") == "#L6H2"

    # A cell's place: 34 pixels for numbers, 24 (or 34 across) a cell.
    browser.click("#map", 34 + 1.5 * 34, 34 + 2.5 * 24)
    assert title(browser) == "Layer 4, head 1: positional"
    browser.click("#mean-rpd", 60, 36 + 0.5 * 12)
    assert title(browser) == "Layer 2, head 1: positional"
    browser.evaluate("document.querySelector('#ranking button').click()")
    heads = pd.read_csv(path.with_name("heads.csv"))
    top = heads.loc[heads["s_ret"].idxmax()]
    assert title(browser).startswith(f"Layer {top['layer']}, head {top['head']}:")
    assert browser.problems() == []


@pytest.mark.browser
def test_all_controls_are_reached_with_the_tabulator(browser, page):
    browser.open(page[0])
    reached = []
    for _ in range(7):
        browser.press("Tab")
        reached.append(browser.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached[:5] == ["colour", "map", "log", "mean", "pin"]
    assert "SUMMARY" in reached


@pytest.mark.browser
def test_colours_comparison_and_scale_follow_the_controls(browser, page):
    browser.open(page[0], "#L3H0")
    picture = "document.getElementById('map').toDataURL()"
    seen = set()
    options = browser.evaluate("[...document.getElementById('colour').options].map(option => option.value)")
    assert options[:2] == ["head_class", "s_ret"]
    assert "qr_calibrated" not in options
    for option in options:
        choose = f"choice => {{ choice.value = {option!r}; choice.dispatchEvent(new Event('change')) }}"
        browser.evaluate(f"({choose})(document.getElementById('colour'))")
        assert browser.evaluate("document.getElementById('legend').textContent")
        seen.add(browser.evaluate(picture))
    # RFIS and RPD, summed over frequencies, may look alike; every other colouring differs.
    assert len(seen) >= len(options) - 1

    curves = "document.querySelectorAll('#plot polyline').length"
    assert browser.evaluate(curves) == 4
    browser.evaluate("document.getElementById('pin').click()")
    browser.evaluate("location.hash = '#L4H1'")
    browser.settle()
    assert browser.evaluate(curves) == 6
    assert "L3H0" in browser.evaluate("document.getElementById('key').textContent")
    linear = browser.evaluate("document.querySelector('#plot polyline').getAttribute('points')")
    browser.evaluate("document.getElementById('log').click()")
    assert browser.evaluate("document.querySelector('#plot polyline').getAttribute('points')") != linear
    browser.evaluate("document.getElementById('mean').click()")
    assert browser.evaluate(curves) == 4
    # The axis of periods: decades within the frequencies of base 1e4, 6.3 tokens to 35 thousand.
    ticks = texts(browser, "#plot text")
    assert {"10", "100", "1k", "10k"} <= set(ticks)
    assert "100k" not in ticks
    assert browser.problems() == []


@pytest.mark.browser
@pytest.mark.parametrize(("layers", "heads", "groups"), [(30, 9, 32), (48, 64, 128)])
def test_models_of_all_sizes_fit_into_the_window(browser, tmp_path, layers, heads, groups):
    write_probe(tmp_path, layers, heads, groups, samples=1)
    browser.open(write_atlas(tmp_path), f"#L{layers}H{heads - 1}")
    assert title(browser).startswith(f"Layer {layers}, head {heads - 1}")
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.problems() == []


@pytest.mark.browser
def test_scores_that_were_not_measured_are_no_choice(browser, tmp_path):
    maps = write_probe(tmp_path)
    heads = pd.read_csv(tmp_path / "heads.csv").assign(qr=np.nan)
    heads.to_csv(tmp_path / "heads.csv", index=False)
    browser.open(write_atlas(tmp_path))
    options = browser.evaluate("[...document.getElementById('colour').options].map(option => option.value)")
    assert "ld" in options
    assert "qr" not in options
    # Without QRscore the head with the most RPD is shown first.
    totals = np.nan_to_num(maps["rpd"].mean(axis=0).sum(axis=-1))
    layer, head = np.unravel_index(totals.argmax(), totals.shape)
    assert title(browser).startswith(f"Layer {layer + 2}, head {head}")
    assert browser.problems() == []


@pytest.mark.browser
def test_a_probe_without_classes_is_shown_too(browser, tmp_path):
    write_probe(tmp_path, classes=False)
    browser.open(write_atlas(tmp_path))
    assert "no bands.json" in browser.evaluate("document.getElementById('summary').textContent")
    assert browser.evaluate("document.getElementById('colour').value") == "rpd_peak"
    assert browser.problems() == []


@pytest.mark.browser
def test_norms_are_drawn_on_request(browser, tmp_path):
    maps = write_probe(tmp_path)
    write_norms(tmp_path, maps)
    browser.open(write_atlas(tmp_path), "#L3H2")
    curves = "document.querySelectorAll('#plot polyline').length"
    assert browser.evaluate(curves) == 4
    browser.evaluate("document.getElementById('norm').click()")
    assert browser.evaluate(curves) == 5
    assert any(words.startswith("norm of q and k, L3H2: highest") for words in texts(browser, "#key li"))
    rows = texts(browser, "#values td:last-child")
    expected = 0.5 * (4.0 - maps["rpd"].mean(axis=0)[1, 2])
    np.testing.assert_allclose([float(cell) for cell in rows], expected, rtol=6e-3)
    assert "norm of q and k against RPD (ρ)" in texts(browser, "#colour option")
    assert browser.problems() == []


@pytest.mark.browser
def test_the_axis_is_that_of_the_heads_layer(browser, tmp_path):
    """Periods end at 35 thousand tokens for base 1e4, below 500 for base 100."""
    write_layers_of_two_kinds(tmp_path)
    path = write_atlas(tmp_path)
    browser.open(path, "#L2H1")
    assert {"100", "1k", "10k"} <= set(texts(browser, "#plot text"))
    assert any("r=9.6" in words for words in texts(browser, "#key li"))
    mean = "document.getElementById('mean-rpd').toDataURL()"
    full = browser.evaluate(mean)
    browser.evaluate("location.hash = '#L3H1'")
    browser.settle()
    ticks = set(texts(browser, "#plot text"))
    assert "100" in ticks
    assert not {"1k", "10k"} & ticks
    assert any("r=4" in words for words in texts(browser, "#key li"))
    assert texts(browser, "#values td:nth-child(2)")[-1] == "471"
    assert browser.evaluate(mean) != full
    assert "in 2 of 2 layers" in browser.evaluate("document.getElementById('summary').textContent")
    assert browser.problems() == []


@pytest.mark.browser
def test_a_model_without_a_classified_head_is_shown_too(browser, tmp_path):
    """As `hwh probe` writes heads.csv where no layer has a band: no share below it, no class."""
    write_probe(tmp_path)
    heads = pd.read_csv(tmp_path / "heads.csv")
    nothing = dict.fromkeys(("s_ret", "s_ret_lo", "s_ret_hi", "boundary", "d_ratio"), np.nan)
    heads.assign(**nothing, head_class="unclassified").to_csv(tmp_path / "heads.csv", index=False)
    browser.open(write_atlas(tmp_path), "#L3H2")
    assert title(browser) == "Layer 3, head 2: unclassified"
    assert browser.evaluate("document.querySelectorAll('#plot polyline').length") == 4
    assert browser.evaluate("document.getElementById('ranking-title').textContent").endswith("QRscore")
    assert browser.problems() == []
