# Language modelling, commonsense and needle-in-a-haystack scores of the HwH family.


localrules:
    extract_rows,


rule extract_rows:
    output:
        f"{rows_folder()}/rows.json",
    log:
        "<logs>/extract_rows.log",
    benchmark:
        "<benchmarks>/extract_rows.tsv"
    conda:
        "../envs/evaluation.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
        gpu=0,
    params:
        program=program("extract_rows"),
        code=code("extract_rows"),
        folder=lambda wildcards, output: os.path.dirname(output[0]),
        settings=lambda wildcards: rows_settings(),
    shell:
        "python {params.program:q} --settings {params.settings:q} --downloads resources/downloads"
        " --output {params.folder:q} 2>&1 | tee {log:q}"


rule evaluate:
    input:
        metrics="<results>/hwh/{scale}/{hwh}/metrics.json",
        model="<results>/hwh/{scale}/{hwh}/model/model.safetensors",
        rows=compared(f"{rows_folder()}/rows.json"),
        documents=compared("<results>/data/documents/held_out.jsonl.zst"),
    output:
        table="<results>/hwh/{scale}/{hwh}/scores.csv",
        parquet="<results>/hwh/{scale}/{hwh}/scores.parquet",
    log:
        "<logs>/evaluate/{scale}_{hwh}.log",
    benchmark:
        "<benchmarks>/evaluate/{scale}_{hwh}.tsv"
    priority: MEASURED_FIRST
    group:
        CHAIN
    conda:
        "../envs/evaluation.yaml"
    threads: 1
    resources:
        mem_mb=6000,
        runtime=600,
        gpu=GPU,
    params:
        program=program("evaluate"),
        code=code("evaluate"),
        task_files=parts("hwh_core/evaluation/task_files/*.yaml"),
        rows=lambda wildcards: rows_folder(),
        model=lambda wildcards, input: os.path.dirname(input.model),
        settings=lambda wildcards: evaluation_settings(
            wildcards, evaluation=PRESET.evaluation
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --model {params.model:q} --rows {params.rows:q}"
        " --documents {input.documents:q} --output {output.table:q} 2>&1 | tee {log:q}"


rule build_niah_prompts:
    input:
        tokenizer="<results>/data/{tokenizer}/tokenizer/tokenizer.json",
        documents="<results>/data/documents/held_out.jsonl.zst",
        rows=f"{rows_folder()}/rows.json" if NIAH_ROWS else [],
    output:
        expand(
            "<results>/data/{{tokenizer}}/niah_prompts/{grid}.parquet",
            grid=NIAH_PROMPTS,
        ),
    log:
        "<logs>/build_niah_prompts/{tokenizer}.log",
    benchmark:
        "<benchmarks>/build_niah_prompts/{tokenizer}.tsv"
    conda:
        "../envs/evaluation.yaml"
    # To start a process takes as long as to make some hundred short prompts.
    threads: 4 if needle_prompts(PRESET.evaluation.niah)[0] > 200 else 1
    resources:
        mem_mb=4000,
        runtime=120,
        gpu=0,
    params:
        program=program("build_niah_prompts"),
        code=code("build_niah_prompts"),
        tokenizer=lambda wildcards, input: os.path.dirname(input.tokenizer),
        folder=lambda wildcards, output: os.path.dirname(output[0]),
        rows=["--rows", rows_folder()] if NIAH_ROWS else [],
        settings=niah_prompt_settings(),
    shell:
        "python {params.program:q} --settings {params.settings:q} --tokenizer {params.tokenizer:q}"
        " --documents {input.documents:q} {params.rows:q} --workers {threads} --output {params.folder:q}"
        " 2>&1 | tee {log:q}"


rule evaluate_niah:
    input:
        metrics="<results>/hwh/{scale}/{hwh}/metrics.json",
        model="<results>/hwh/{scale}/{hwh}/model/model.safetensors",
        prompts=lambda wildcards: compared(
            niah_prompts(SCALES[wildcards.scale].tokenizer)
        ),
    output:
        # The grid of the paper, then others over the same lengths and depths; the program derives their names from this one.
        table="<results>/hwh/{scale}/{hwh}/niah.csv",
        others=expand(
            "<results>/hwh/{{scale}}/{{hwh}}/niah{name}.{kind}",
            name=[
                "_cells",
                *(f"_{grid}{part}" for grid in GRIDS for part in ["", "_cells"]),
            ],
            kind=["csv", "parquet"],
        )
        + ["<results>/hwh/{scale}/{hwh}/niah.parquet"],
    log:
        "<logs>/evaluate_niah/{scale}_{hwh}.log",
    benchmark:
        "<benchmarks>/evaluate_niah/{scale}_{hwh}.tsv"
    priority: MEASURED_FIRST
    group:
        CHAIN
    conda:
        "../envs/evaluation.yaml"
    threads: 1
    resources:
        mem_mb=6000,
        runtime=600,
        gpu=GPU,
    params:
        program=program("evaluate_niah"),
        code=code("evaluate_niah"),
        model=lambda wildcards, input: os.path.dirname(input.model),
        prompts=lambda wildcards, input: os.path.dirname(input.prompts[0]),
        settings=lambda wildcards: niah_settings(wildcards),
    shell:
        "python {params.program:q} --settings {params.settings:q} --model {params.model:q}"
        " --prompts {params.prompts:q} --output {output.table:q} 2>&1 | tee {log:q}"
