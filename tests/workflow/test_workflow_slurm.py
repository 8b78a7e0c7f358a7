"""What every job of the paper preset asks for through the SLURM profile, in a dry run that needs no SLURM."""

from __future__ import annotations

import re

import pytest
import yaml

pytestmark = pytest.mark.workflow

GPU_RULES = {
    "train_controlled",
    "train_hwh",
    "probe_controlled",
    "probe_pretrained",
    "qk_norms",
    "behavior_scores",
    "evaluate",
    "evaluate_niah",
}


@pytest.fixture(scope="module")
def planned(shared_checkout, tmp_path_factory) -> str:
    """A dry run of the paper preset with the profile; the line LOCAL names rules that run where Snakemake runs."""
    checkout, base = shared_checkout, tmp_path_factory.mktemp("slurm")
    with (checkout.code / "workflow" / "Snakefile").open("a") as stream:
        stream.write("\nprint('LOCAL', *workflow._localrules, file=sys.stderr)\n")
    profile = yaml.safe_load((checkout.code / "workflow/profiles/slurm/profile.yaml").read_text())
    assert profile.pop("executor") == "slurm"
    jobs = profile.pop("jobs")
    (base / "profile").mkdir()
    # What only the executor's plugin knows of is left out; cores are no limit on a cluster.
    kept = {key: value for key, value in profile.items() if not key.startswith("slurm")}
    (base / "profile" / "profile.yaml").write_text(yaml.safe_dump(kept | {"cores": 1000}))
    options = ["-n", "--workflow-profile", str(base / "profile"), "--resources", f"gpu={8 * jobs}"]
    result = checkout.run(*options, preset="paper", cores=1000)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def asked(planned) -> dict[tuple[str, str], dict[str, str]]:
    """(rule, wildcards) -> resources, with threads among them, of all jobs of the paper preset."""
    found = {}
    for block in re.split(r"\n(?=(?:local)?rule )", planned):
        name = re.match(r"(?:local)?rule (\w+):", block)
        resources = re.search(r"^    resources: (.*)$", block, re.MULTILINE)
        if name and resources:
            values = dict(part.split("=", 1) for part in resources[1].split(", "))
            threads = re.search(r"^    threads: (\d+)$", block, re.MULTILINE)
            wildcards = re.search(r"^    wildcards: (.*)$", block, re.MULTILINE)
            values["threads"] = threads[1] if threads else "1"
            found[name[1], wildcards[1] if wildcards else ""] = values
    return found


def of(asked, rule):
    return {wildcards: values for (name, wildcards), values in asked.items() if name == rule}


def test_every_job_names_its_time_memory_and_gpus(asked):
    assert {name for name, _ in asked} > GPU_RULES | {"build_documents", "tokenize_documents", "fig3", "table1"}
    for job, values in asked.items():
        if job[0] in {"all", "fetch"}:
            continue
        assert int(values["runtime"]) > 0, job
        assert int(values["mem_mb"]) >= 1000, job
        assert (int(values["gpu"]) > 0) == (job[0] in GPU_RULES), job
        assert values["slurm_extra"] == "--signal=TERM@300", job
        # The executor would start a program once a task.
        assert not {"tasks", "gres"} & set(values), job


def test_large_trainings_ask_for_several_gpus_of_one_node(asked):
    trainings = of(asked, "train_hwh")
    assert {values["gpu"] for wildcards, values in trainings.items() if "scale=1.4B" in wildcards} == {"8"}
    assert {values["gpu"] for wildcards, values in trainings.items() if "scale=380M" in wildcards} == {"4"}
    assert {values["nodes"] for values in trainings.values()} == {"1"}
    assert {values["cpus_per_gpu"] for values in trainings.values()} == {"8"}
    assert {(v["gpu"], v["nodes"], v["threads"]) for v in of(asked, "train_controlled").values()} == {("1", "1", "8")}


def test_steps_of_a_training_can_be_split_among_its_gpus(asked, shared_checkout):
    preset = yaml.safe_load((shared_checkout.code / "config" / "paper.yaml").read_text())
    scales = {scale["name"]: scale for scale in preset["hwh"]["scales"]}
    for wildcards, values in of(asked, "train_hwh").items():
        scale = scales[re.search(r"scale=([^,]+)", wildcards)[1]]
        sequences = scale["training"]["tokens_per_step"] // scale["length"]
        assert sequences % int(values["gpu"]) == 0, wildcards


def test_the_profile_names_rules_that_there_are(shared_checkout):
    checkout = shared_checkout
    profile = yaml.safe_load((checkout.code / "workflow/profiles/slurm/profile.yaml").read_text())
    rules = {
        name
        for path in (checkout.code / "workflow" / "rules").glob("*.smk")
        for name in re.findall(r"^(?:use )?rule (?:\w+ as )?(\w+)", path.read_text(), re.MULTILINE)
    }
    assert set(profile["set-threads"]) | set(profile["set-resources"]) <= rules


def test_what_a_hub_gives_is_fetched_where_snakemake_runs(planned):
    """Nodes of a cluster have no network."""
    local = set(re.search(r"^LOCAL (.*)$", planned, re.MULTILINE)[1].split())
    assert {"fetch_source", "fetch_pretrained", "fetch_samples", "extract_rows", "build_tokenizer"} <= local
    assert not local & (GPU_RULES | {"build_documents", "tokenize_documents"})
