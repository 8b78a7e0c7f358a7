# The head-wise hybrid, its baselines and its ablations: one program, one data order a scale.


rule train_hwh:
    input:
        train=lambda wildcards: compared(f"{hwh_store(wildcards)}/train/index.json"),
        held_out=lambda wildcards: compared(
            f"{hwh_store(wildcards)}/held_out/index.json"
        ),
        tokenizer=lambda wildcards: compared(
            f"{hwh_store(wildcards)}/tokenizer/tokenizer.json"
        ),
    output:
        "<results>/hwh/{scale}/{hwh}/model/config.json",
        weights("<results>/hwh/{scale}/{hwh}/model/model.safetensors"),
        weights("<results>/hwh/{scale}/{hwh}/initial/model.safetensors"),
        "<results>/hwh/{scale}/{hwh}/train_log.jsonl",
        "<results>/hwh/{scale}/{hwh}/metrics.json",
    log:
        "<logs>/train_hwh/{scale}_{hwh}.log",
    benchmark:
        "<benchmarks>/train_hwh/{scale}_{hwh}.tsv"
    group:
        CHAIN
    conda:
        "../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=6000,
        runtime=2880,
        gpu=GPU,
        nodes=1,
    params:
        launch=program("launch"),
        program=program("train"),
        code=lambda wildcards: code("train", only=TRAINING_CODE + mix_code(wildcards)),
        store=lambda wildcards, input: os.path.dirname(os.path.dirname(input.train)),
        folder=lambda wildcards, output: os.path.dirname(output[-1]),
        settings=hwh_training_settings,
    # SLURM sends SIGTERM to every process of a job: shell and tee stay until the training has saved a checkpoint.
    shell:
        "trap : TERM; python {params.launch:q} --gpus {resources.gpu} --nodes {resources.nodes}"
        " {params.program:q} --settings {params.settings:q} --store {params.store:q}/train"
        " --held-out {params.store:q}/held_out --tokenizer {params.store:q}/tokenizer --output {params.folder:q}"
        " --checkpoints {params.folder:q}/checkpoints 2>&1 | (trap '' TERM; tee {log:q})"


# What every head reads, near or far; RFIS and RPD of those that rotate. Asked for where hwh.probe is set.
rule probe_hybrid:
    input:
        metrics="<results>/hwh/{scale}/{hwh}/metrics.json",
        model="<results>/hwh/{scale}/{hwh}/model/model.safetensors",
        documents=compared("<results>/data/documents/held_out.jsonl.zst"),
    output:
        heads="<results>/hwh/{scale}/{hwh}/head_influence.csv",
        heads_parquet="<results>/hwh/{scale}/{hwh}/head_influence.parquet",
        bins="<results>/hwh/{scale}/{hwh}/head_influence_bins.csv",
        bins_parquet="<results>/hwh/{scale}/{hwh}/head_influence_bins.parquet",
        maps="<results>/hwh/{scale}/{hwh}/rope_heads.npz",
        record="<results>/hwh/{scale}/{hwh}/rope_heads.json",
    log:
        "<logs>/probe_hybrid/{scale}_{hwh}.log",
    benchmark:
        "<benchmarks>/probe_hybrid/{scale}_{hwh}.tsv"
    priority: MEASURED_FIRST
    group:
        CHAIN
    conda:
        "../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=6000,
        runtime=60,
        gpu=GPU,
    params:
        program=program("probe_hybrid"),
        code=code("probe_hybrid"),
        model=lambda wildcards, input: os.path.dirname(input.model),
        folder=lambda wildcards, output: os.path.dirname(output.heads),
        settings=lambda wildcards: settings(
            {
                "scale": wildcards.scale,
                "training_length": SCALES[wildcards.scale].length,
                # Weights at initialisation are drawn anew from what the training was told.
                "model": {
                    **json.loads(hwh_training_settings(wildcards))["model"],
                    "name": wildcards.hwh,
                },
                "probe": PRESET.hwh.probe,
                "band": PRESET.band,
                "held_out_prose_source": PRESET.data.held_out_prose_source,
                "seed": PRESET.seed,
            }
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --model {params.model:q}"
        " --documents {input.documents:q} --output {params.folder:q} 2>&1 | tee {log:q}"
