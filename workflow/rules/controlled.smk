# Controlled RoPE Transformers over base, length and QK-norm: training -> probe -> band.

CURVE_MODELS = [model.name for model in PRESET.controlled.curve_models]


rule train_controlled:
    input:
        train=compared(f"<results>/data/{PRESET.controlled.tokenizer}/train/index.json"),
        held_out=compared(
            f"<results>/data/{PRESET.controlled.tokenizer}/held_out/index.json"
        ),
        tokenizer=compared(
            f"<results>/data/{PRESET.controlled.tokenizer}/tokenizer/tokenizer.json"
        ),
    output:
        "<results>/controlled/{controlled}/model/config.json",
        weights("<results>/controlled/{controlled}/model/model.safetensors"),
        "<results>/controlled/{controlled}/initial/config.json",
        weights("<results>/controlled/{controlled}/initial/model.safetensors"),
        "<results>/controlled/{controlled}/train_log.jsonl",
        "<results>/controlled/{controlled}/metrics.json",
    log:
        "<logs>/train_controlled/{controlled}.log",
    benchmark:
        "<benchmarks>/train_controlled/{controlled}.tsv"
    wildcard_constraints:
        controlled=one_of(set(CONTROLLED) - set(CURVE_MODELS)),
    group:
        CHAIN
    conda:
        "../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=240,
        gpu=GPU,
        nodes=1,
    params:
        launch=program("launch"),
        program=program("train"),
        code=code("train", only=TRAINING_CODE),
        store=lambda wildcards, input: os.path.dirname(os.path.dirname(input.train)),
        folder=lambda wildcards, output: os.path.dirname(output[-1]),
        settings=controlled_training_settings,
    # SLURM sends SIGTERM to every process of a job: shell and tee stay until the training has saved a checkpoint.
    shell:
        "trap : TERM; python {params.launch:q} --gpus {resources.gpu} --nodes {resources.nodes}"
        " {params.program:q} --settings {params.settings:q} --store {params.store:q}/train"
        " --held-out {params.store:q}/held_out --tokenizer {params.store:q}/tokenizer --output {params.folder:q}"
        " --checkpoints {params.folder:q}/checkpoints 2>&1 | (trap '' TERM; tee {log:q})"


rule probe_controlled:
    input:
        metrics="<results>/controlled/{controlled}/metrics.json",
        model="<results>/controlled/{controlled}/model/model.safetensors",
        initial="<results>/controlled/{controlled}/initial/model.safetensors",
        store=compared(
            f"<results>/data/{PRESET.controlled.tokenizer}/held_out/index.json"
        ),
    output:
        expand(
            "<results>/controlled/{{controlled}}/probe_x{factor}.npz", factor=FACTORS
        ),
        expand(
            "<results>/controlled/{{controlled}}/probe_x{factor}.json", factor=FACTORS
        ),
    log:
        "<logs>/probe_controlled/{controlled}.log",
    benchmark:
        "<benchmarks>/probe_controlled/{controlled}.tsv"
    priority: MEASURED_FIRST
    group:
        CHAIN
    conda:
        "../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
        gpu=GPU,
    params:
        program=program("probe_controlled"),
        code=code("probe_controlled"),
        store=lambda wildcards, input: os.path.dirname(input.store),
        folder=lambda wildcards, input: os.path.dirname(input.metrics),
        settings=lambda wildcards: settings(
            {
                "model": CONTROLLED[wildcards.controlled],
                "probe": PRESET.controlled.probe,
                "seed": PRESET.seed,
            }
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --model {params.folder:q}/model"
        " --initial {params.folder:q}/initial --store {params.store:q} --output {params.folder:q} 2>&1 | tee {log:q}"


rule extract_band:
    input:
        maps=expand(
            "<results>/controlled/{{controlled}}/probe_x{factor}.npz", factor=FACTORS
        ),
        records=expand(
            "<results>/controlled/{{controlled}}/probe_x{factor}.json", factor=FACTORS
        ),
    output:
        "<results>/controlled/{controlled}/band.json",
    log:
        "<logs>/extract_band/{controlled}.log",
    benchmark:
        "<benchmarks>/extract_band/{controlled}.tsv"
    priority: MEASURED_FIRST
    group:
        CHAIN
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
        gpu=0,
    params:
        program=program("extract_band"),
        code=code("extract_band"),
        settings=lambda wildcards: settings(
            {
                "model": CONTROLLED[wildcards.controlled],
                "band": PRESET.band,
                "seed": PRESET.seed,
            }
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --probes {input.maps:q}"
        " --output {output:q} 2>&1 | tee {log:q}"


# The band against tokens seen, for models that have a curve: the same training, with snapshots that go once probed.
# In a preset without a curve no model matches these rules.
STEPS = PRESET.controlled.curve.steps if CURVE_MODELS else [0]


use rule train_controlled as train_controlled_with_snapshots with:
    output:
        temp(directory("<results>/controlled/{controlled}/snapshots")),
        [
            weights(str(path)) if path.endswith(".safetensors") else str(path)
            for path in rules.train_controlled.output
        ],
    wildcard_constraints:
        controlled=one_of(CURVE_MODELS),
    params:
        settings=snapshot_training_settings,


rule probe_curve:
    input:
        metrics="<results>/controlled/{controlled}/metrics.json",
        model="<results>/controlled/{controlled}/model/model.safetensors",
        initial="<results>/controlled/{controlled}/initial/model.safetensors",
        snapshots="<results>/controlled/{controlled}/snapshots",
        store=compared(
            f"<results>/data/{PRESET.controlled.tokenizer}/held_out/index.json"
        ),
    output:
        maps=expand(
            "<results>/controlled/{{controlled}}/curve/probe_step{step}.npz",
            step=STEPS,
        ),
        records=expand(
            "<results>/controlled/{{controlled}}/curve/probe_step{step}.json",
            step=STEPS,
        ),
    log:
        "<logs>/probe_curve/{controlled}.log",
    benchmark:
        "<benchmarks>/probe_curve/{controlled}.tsv"
    wildcard_constraints:
        controlled=one_of(CURVE_MODELS),
    priority: MEASURED_FIRST
    group:
        CHAIN
    conda:
        "../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
        gpu=GPU,
    params:
        program=program("probe_curve"),
        code=code("probe_curve"),
        store=lambda wildcards, input: os.path.dirname(input.store),
        folder=lambda wildcards, input: os.path.dirname(input.metrics),
        settings=lambda wildcards: settings(
            {
                "model": CONTROLLED[wildcards.controlled],
                "probe": PRESET.controlled.probe,
                "steps": STEPS,
                "tokens_per_step": PRESET.controlled.training.tokens_per_step,
                "seed": PRESET.seed,
            }
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --model {params.folder:q}/model"
        " --initial {params.folder:q}/initial --snapshots {input.snapshots:q} --store {params.store:q}"
        " --output {params.folder:q}/curve 2>&1 | tee {log:q}"


rule extract_curve:
    input:
        maps=rules.probe_curve.output.maps,
        records=rules.probe_curve.output.records,
    output:
        table="<results>/controlled/{controlled}/curve.csv",
        parquet="<results>/controlled/{controlled}/curve.parquet",
        maps="<results>/controlled/{controlled}/curve_maps.csv",
        maps_parquet="<results>/controlled/{controlled}/curve_maps.parquet",
    log:
        "<logs>/extract_curve/{controlled}.log",
    benchmark:
        "<benchmarks>/extract_curve/{controlled}.tsv"
    priority: MEASURED_FIRST
    group:
        CHAIN
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
        gpu=0,
    params:
        program=program("extract_curve"),
        code=code("extract_curve"),
        settings=lambda wildcards: settings(
            {
                "model": CONTROLLED[wildcards.controlled],
                "band": PRESET.band,
                "seed": PRESET.seed,
            }
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --probes {input.maps:q}"
        " --output {output.table:q} 2>&1 | tee {log:q}"


rule synthetic_check:
    output:
        "<results>/synthetic.json",
    log:
        "<logs>/synthetic_check.log",
    benchmark:
        "<benchmarks>/synthetic_check.tsv"
    conda:
        "../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
        gpu=0,
    params:
        program=program("synthetic_check"),
        code=code("synthetic_check"),
        settings=lambda wildcards: settings(
            {
                "band": PRESET.band,
                "seed": PRESET.seed,
                **PRESET.synthetic.model_dump(mode="json"),
            }
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --output {output:q} 2>&1 | tee {log:q}"
