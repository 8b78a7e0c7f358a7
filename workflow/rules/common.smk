# The preset, the paths and the functions that the rules share.
import glob
import hashlib
import json
import os
import re
import shlex
import sys

from snakemake.exceptions import WorkflowError

from hwh_core import chains, files, memory_plan, provenance, resources
from hwh_core.config import ConfigError, read_preset, validate_preset
from hwh_core.devices import jobs_per_gpu, visible_devices
from hwh_core.estimate import needle_prompts, text_bytes
from hwh_core.evaluation.prompts import named_grids
from hwh_core.reporting import captions, comparisons, requirements, selection
from hwh_core.scripting import UserError

try:
    # Snakemake has read and merged the files, and would not say that a key stands twice in one.
    for file in workflow.configfiles:
        read_preset(file)
    PRESET = validate_preset(
        config, " + ".join(map(str, workflow.configfiles)) or "--config"
    )
except ConfigError as error:
    raise WorkflowError(str(error)) from None

# Jobs watch this process: when it is killed they end with it, so that a rerun never meets a second writer.
os.environ.update(HWH_WORKFLOW_PID=str(os.getpid()))
# Everything but the rules of `snakemake fetch` runs with the hub switched off.
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
if workflow.remote_exec:
    # On a node of a cluster; what needs the hub runs where Snakemake was started.
    os.environ.update(HF_HUB_OFFLINE="1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


report: "../report/workflow.rst"


pathvars:
    results=f"results/{PRESET.preset}",
    resources="resources",
    logs=f"results/{PRESET.preset}/logs",
    benchmarks=f"results/{PRESET.preset}/benchmarks",


# The same folder for params, in which Snakemake replaces no path variables.
RESULTS = f"results/{PRESET.preset}"
# `python` in the rules is the one that runs Snakemake, unless an environment is activated (--sdm conda).
os.environ.update(
    PATH=os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()])
)
SCRIPTS = os.path.join(os.path.dirname(workflow.basedir), "scripts")


# Settings of a job: what the program is told, and what a rerun is decided by.
settings = resources.canonical
SOURCES = resources.text_sources(PRESET)
TOKENIZERS = {tokenizer.name: tokenizer for tokenizer in PRESET.tokenizers}
CONTROLLED = {model.name: model for model in PRESET.controlled.models}
PRETRAINED = {model.name: model for model in PRESET.pretrained.models}
WEIGHTS = resources.pretrained_weights(PRESET)
# Samples of the behaviour scores: None where they are made of held-out prose, else their kind and the files named.
SAMPLE_SOURCE = PRESET.pretrained.behavior.sample_source()
SAMPLES = resources.hub_samples(PRESET)
SCALES = {scale.name: scale for scale in PRESET.hwh.scales}
HWH = {
    (scale.name, model.name): model
    for scale in PRESET.hwh.scales
    for model in scale.models
}
GRIDS = {grid.name: grid for grid in PRESET.evaluation.niah.additional}
NIAH_PROMPTS = list(named_grids(PRESET.evaluation.niah))
# lm-eval's own samples are cut into sentences by a model that is fetched with the rows, as the essays are.
LM_EVAL_SAMPLES = any(grid.fill == "lm_eval" for grid in GRIDS.values())
NIAH_ROWS = PRESET.evaluation.niah.haystack == "essays" or LM_EVAL_SAMPLES
try:
    CHAINS = chains.find_chains(PRESET)
except UserError as error:
    # A figure or table among the targets, whose models the preset lacks.
    raise WorkflowError(str(error)) from None
# With a retrieval mix in the preset, needles are asked for keys and numbers that no model saw in training.
UNSEEN_ONLY = any(scale.retrieval_mix is not None for scale in PRESET.hwh.scales)
FACTORS = [f"{factor:g}" for factor in PRESET.controlled.probe.eval_length_factors]
# Jobs run on this machine, not on a cluster: its GPUs are those that there are.
LOCAL = workflow.is_main_process and workflow.resource_settings.nodes is None
GPUS = visible_devices() if LOCAL else ()
if LOCAL and "gpu" not in workflow.global_resources:
    workflow.register_resource("gpu", max(1, len(GPUS) * jobs_per_gpu()))
# Presets that train in bfloat16 are made for a GPU; where there is one, the others use it too.
GPU = int(
    bool(GPUS)
    or any(
        training.precision == "bfloat16"
        for training in [
            PRESET.controlled.training,
            *(scale.training for scale in PRESET.hwh.scales),
        ]
    )
)


def one_of(names):
    """A regular expression that admits just these names."""
    return "|".join(map(re.escape, sorted(set(names)))) or "(?!)"


wildcard_constraints:
    tokenizer=one_of(tokenizer.name for tokenizer in PRESET.tokenizers),
    split="train|held_out",
    source=one_of(SOURCES),
    controlled=one_of(CONTROLLED),
    pretrained=one_of(PRETRAINED),
    weights=one_of(WEIGHTS),
    samples=one_of(SAMPLES),
    scale=one_of(SCALES),
    hwh=one_of(name for _, name in HWH),
    chain=one_of(CHAINS),


def scaled(least, a_gigabyte):
    """A resource that grows with the preset's text: `a_gigabyte` for every GB, but never under `least`."""
    return max(least, round(a_gigabyte * text_bytes(PRESET) / 1e9))


def program(name):
    """Path of a program in scripts/, relative to where jobs run: a checkout that is moved as a whole reruns nothing."""
    return os.path.relpath(os.path.join(SCRIPTS, f"{name}.py"))


def code(name, *modules, only=None):
    """Hash of all that a program of scripts/ runs, so that an edit there reruns its dependants and nothing else.

    `modules` are files that the program loads by name at run time.
    """
    return provenance.code_hash(f"scripts/{name}.py", *modules, only=only)


def parts(pattern):
    """Hash of what a program is made of beside Python: files below the repository, by a glob pattern."""
    found = glob.glob(os.path.join(os.path.dirname(SCRIPTS), pattern))
    return hashlib.sha256(
        "".join(files.sha256_of(part) for part in sorted(found)).encode()
    ).hexdigest()[:16]


def given(option, paths):
    """An option with its paths for a shell; nothing where there are none."""
    paths = [paths] if isinstance(paths, str) else list(paths)
    return f"{option} {shlex.join(paths)}" if paths else ""


# How a step that reads weights of a trained model becomes a link of its chain: it has the group CHAIN and, unless it
# trains, the priority MEASURED_FIRST, weights that it writes are outputs through `weights`, and inputs that are no files
# of the chain come through `compared`. That is all: what it writes below the folder of the model belongs to the chain as
# soon as a figure, a table or the ledger reads it. Jobs of a group that hang together are one submission on a cluster,
# so a chain is one.
CHAIN = None if PRESET.keep_weights else "chain"
# Above the 0 of trainings: what is trained is measured before another training begins, so that a machine that is lost
# takes few models with it that are trained and not measured.
MEASURED_FIRST = 1


def weights(path):
    """Weights of a trained model: deleted when nothing in this run reads them any more, unless the preset keeps them."""
    return path if PRESET.keep_weights else temp(path)


def compared(path):
    """What a chain reads beside its own files.

    Where weights are kept a newer file is news. Where they are not, the rule that writes the record of a chain
    compares contents instead: to train again since another machine wrote the same text later would be waste.
    """
    return path if PRESET.keep_weights else ancient(path)


def under_results(paths):
    """Files that a figure, a table or the ledger reads, relative to the results of the preset, for Snakemake.

    Where weights are not kept, the records of their chains come along: a chain is run as a whole or not at all.
    """
    whole = [] if PRESET.keep_weights else chains.chains_of(CHAINS, paths)
    return [f"<results>/{path}" for path in paths] + [
        f"<results>/chains/{name}.json" for name in whole
    ]


# A training is repeated only when what decides its weights has changed.
TRAINING_CODE = (
    "scripts/train.py",
    "hwh_core/modeling/",
    "hwh_core/training/",
    "hwh_core/data/loader.py",
    "hwh_core/data/store.py",
    "hwh_core/architectures.py",
    "hwh_core/heads.py",
    "kernels/gated_delta_rule",
    "kernels/short_convolution",
    "kernels/cross_entropy",
    "kernels/swiglu",
    "kernels/columns",
    "kernels/normalised_rotation",
    "kernels/launching",
)
# Trainings without a retrieval mix run nothing of it.
MIX_CODE = provenance.OPTIONAL_CODE["scripts/train.py"]["retrieval_mix"]

figure_files = [
    f"<results>/figures/{selection.figure_name(figure)}.{kind}"
    for figure in PRESET.targets.figures
    for kind in ("pdf", "png", "csv")
]
table_files = [
    f"<results>/tables/{selection.table_name(table)}.{kind}"
    for table in [*PRESET.targets.tables, *PRESET.targets.comparisons]
    for kind in ("csv", "md", "tex")
]

atlas_files = [f"<results>/pretrained/{name}/atlas.html" for name in PRETRAINED]


def rows_folder():
    """Where the evaluation rows of this preset lie."""
    return f"resources/evaluation/{resources.rows_folder(PRESET)}"


downloads = [
    *(f"<resources>/sources/{source}.jsonl.zst" for source in SOURCES),
    *(
        f"<resources>/pretrained/{name}/source.json"
        for name, model in WEIGHTS.items()
        if model.source.kind != "random"
    ),
    *(
        f"<results>/data/{tokenizer.name}/tokenizer/tokenizer.json"
        for tokenizer in PRESET.tokenizers
        if tokenizer.kind == "hub"
    ),
    *(f"<resources>/samples/{name}" for name in SAMPLES),
    f"{rows_folder()}/rows.json",
]


# Files that the behaviour scores read beside held-out prose.
sample_files = [
    *(SAMPLE_SOURCE[1] if SAMPLE_SOURCE else ()),
    *(f"<resources>/samples/{name}" for name in SAMPLES),
]


def weights_record(wildcards):
    """Where the weights of a pretrained model lie, once they are fetched."""
    name = next(
        name for name, model in WEIGHTS.items() if model.name == wildcards.pretrained
    )
    return f"<resources>/pretrained/{name}/source.json"


def local_files(wildcards):
    """Files of a source of kind `files`, and its manifest: an edit there is seen."""
    source = SOURCES[wildcards.source]
    if source.kind != "files":
        return []
    root = os.path.dirname(workflow.basedir)
    found = sorted(
        {
            path
            for pattern in source.patterns()
            for path in glob.glob(os.path.join(root, pattern), recursive=True)
            if os.path.isfile(path)
        }
    )
    for path in found:
        if re.search(r"[{}]", path):
            raise WorkflowError(
                f"source {source.name!r}: {path}: Snakemake takes braces in the name of a file for wildcards; rename it"
            )
    return [*found, *([os.path.join(root, source.manifest)] if source.manifest else [])]


def controlled_training_settings(wildcards):
    model = CONTROLLED[wildcards.controlled]
    return settings(
        {
            "model": {
                "architecture": "transformer",
                "rope_theta": model.rope_theta,
                "qk_norm": model.qk_norm,
                "length": model.length,
                "seed": model.seed,
                "shape": PRESET.controlled.shape,
            },
            "training": PRESET.controlled.training,
        }
    )


def snapshot_training_settings(wildcards):
    told = json.loads(controlled_training_settings(wildcards))
    return settings({**told, "snapshot_steps": PRESET.controlled.curve.snapshot_steps})


def hwh_store(wildcards):
    return f"<results>/data/{SCALES[wildcards.scale].tokenizer}"


def hwh_training_settings(wildcards):
    scale = SCALES[wildcards.scale]
    model = HWH[wildcards.scale, wildcards.hwh]
    return settings(
        {
            "model": {
                "architecture": model.architecture,
                "rope_theta": model.rope_theta,
                "qk_norm": scale.qk_norm,
                "length": scale.length,
                "seed": model.seed,
                "shape": PRESET.hwh.shape_of(scale, model.architecture),
            },
            "training": scale.training,
            # Absent without a mix: models of such scales are told what they always were.
            **({"retrieval_mix": mix} if (mix := scale.mix_of(model)) else {}),
        }
    )


def mix_code(wildcards):
    mix = SCALES[wildcards.scale].mix_of(HWH[wildcards.scale, wildcards.hwh])
    return MIX_CODE if mix else ()


def evaluation_settings(wildcards, **more):
    scale = SCALES[wildcards.scale]
    model = HWH[wildcards.scale, wildcards.hwh]
    return settings(
        {
            "scale": scale.name,
            "training_length": scale.length,
            "model": {
                "name": model.name,
                "architecture": model.architecture,
                "seed": model.seed,
            },
            "held_out_prose_source": PRESET.data.held_out_prose_source,
            "seed": PRESET.seed,
            **more,
        }
    )


def rows_settings():
    evaluation = PRESET.evaluation
    names = [task.name for task in evaluation.tasks]
    if evaluation.niah.haystack == "essays":
        names.append("niah_essays")
    splitter = {"sentence_splitter": True} if LM_EVAL_SAMPLES else {}
    return settings({"rows": evaluation.rows, "tasks": names, **splitter})


def niah_prompt_settings():
    unseen = {"unseen_only": True} if UNSEEN_ONLY else {}
    evaluation = PRESET.evaluation
    return settings(
        {
            "niah": evaluation.niah,
            "seed": PRESET.seed,
            "held_out_prose_source": PRESET.data.held_out_prose_source,
            "add_bos": evaluation.add_bos,
            **unseen,
        }
    )


def niah_prompts(tokenizer):
    return [
        f"<results>/data/{tokenizer}/niah_prompts/{grid}.parquet"
        for grid in NIAH_PROMPTS
    ]


def niah_settings(wildcards):
    evaluation = PRESET.evaluation
    return evaluation_settings(
        wildcards, niah=evaluation.niah, batch_tokens=evaluation.batch_tokens
    )


def chain_records(wildcards):
    return [f"<results>/{path}" for path in CHAINS[wildcards.chain].records]


def chain_data(wildcards):
    """What the contents of a chain's records are compared with: newer files here run the comparison, not the chain."""
    family, *names = wildcards.chain.split("/")
    if family == "controlled":
        tokenizer = PRESET.controlled.tokenizer
        more = []
    else:
        tokenizer = SCALES[names[0]].tokenizer
        more = [
            "<results>/data/documents/held_out.jsonl.zst",
            f"{rows_folder()}/rows.json",
            *niah_prompts(tokenizer),
        ]
    store = f"<results>/data/{tokenizer}"
    return [
        f"{store}/train/index.json",
        f"{store}/held_out/index.json",
        f"{store}/tokenizer/tokenizer.json",
        *more,
    ]


def refuse_what_does_not_fit():
    """Stop before the first job if a training that is to run needs more memory than any GPU here has."""
    folders = {
        "train_controlled": "controlled/{controlled}",
        "train_hwh": "hwh/{scale}/{hwh}",
    }
    waiting = {
        folders[job.rule.name].format(**job.wildcards_dict): max(1, job.resources.gpu)
        for job in workflow.dag.needrun_jobs()
        if job.rule.name in folders
    }
    sentences = memory_plan.refused(
        PRESET, waiting, memory_plan.planned_cards(GPUS), waiting
    )
    if sentences:
        more = f" ({len(sentences) - 1} more do not fit)" if len(sentences) > 1 else ""
        raise WorkflowError(sentences[0] + more)
