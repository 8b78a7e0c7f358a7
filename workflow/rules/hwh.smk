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
    params:
        program=program("train"),
        code=code("train", only=TRAINING_CODE),
        store=lambda wildcards, input: os.path.dirname(os.path.dirname(input.train)),
        folder=lambda wildcards, output: os.path.dirname(output[-1]),
        settings=hwh_training_settings,
    shell:
        "python {params.program:q} --settings {params.settings:q} --store {params.store:q}/train"
        " --held-out {params.store:q}/held_out --tokenizer {params.store:q}/tokenizer --output {params.folder:q}"
        " --checkpoints {params.folder:q}/checkpoints 2>&1 | tee {log:q}"
