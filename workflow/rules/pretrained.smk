# Pretrained RoPE models: RFIS and RPD maps, QRscore and LDscore, head classes and bands.


localrules:
    fetch_pretrained,
    fetch_samples,


rule fetch_pretrained:
    input:
        branch(
            lambda wildcards: WEIGHTS[wildcards.weights].source.kind == "random",
            then=lambda wildcards: (
                f"<results>/data/{WEIGHTS[wildcards.weights].source.tokenizer}/tokenizer/tokenizer.json"
            ),
            otherwise=[],
        ),
    output:
        "<resources>/pretrained/{weights}/source.json",
    log:
        "<logs>/fetch_pretrained/{weights}.log",
    benchmark:
        "<benchmarks>/fetch_pretrained/{weights}.tsv"
    conda:
        "../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=8000,
        runtime=120,
        gpu=0,
    params:
        program=program("fetch_pretrained"),
        code=code("fetch_pretrained"),
        folder=lambda wildcards, output: os.path.dirname(output[0]),
        tokenizers=lambda wildcards: f"{RESULTS}/data",
        settings=lambda wildcards: settings(WEIGHTS[wildcards.weights].source),
    shell:
        "python {params.program:q} --settings {params.settings:q} --downloads resources/downloads"
        " --tokenizers {params.tokenizers:q} --output {params.folder:q} 2>&1 | tee {log:q}"


rule probe_pretrained:
    input:
        source=weights_record,
        documents="<results>/data/documents/held_out.jsonl.zst",
    output:
        "<results>/pretrained/{pretrained}/probe.npz",
        "<results>/pretrained/{pretrained}/probe.json",
    log:
        "<logs>/probe_pretrained/{pretrained}.log",
    benchmark:
        "<benchmarks>/probe_pretrained/{pretrained}.tsv"
    conda:
        "../envs/train.yaml"
    threads: 2
    resources:
        mem_mb=6000,
        runtime=240,
        gpu=GPU,
    params:
        program=program("probe_pretrained"),
        code=code("probe_pretrained"),
        model=lambda wildcards, input: os.path.dirname(input.source),
        folder=lambda wildcards, output: os.path.dirname(output[0]),
        settings=lambda wildcards: settings(
            {
                "model": PRETRAINED[wildcards.pretrained].model_dump(
                    include={"name", "title"}
                ),
                "probe": PRESET.pretrained.probe,
                "held_out_prose_source": PRESET.data.held_out_prose_source,
                "seed": PRESET.seed,
            }
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --model {params.model:q}"
        " --documents {input.documents:q} --output {params.folder:q} 2>&1 | tee {log:q}"


rule qk_norms:
    input:
        source=weights_record,
        documents="<results>/data/documents/held_out.jsonl.zst",
    output:
        "<results>/pretrained/{pretrained}/norms.npz",
        "<results>/pretrained/{pretrained}/norms.json",
    log:
        "<logs>/qk_norms/{pretrained}.log",
    benchmark:
        "<benchmarks>/qk_norms/{pretrained}.tsv"
    conda:
        "../envs/train.yaml"
    threads: 2
    resources:
        mem_mb=6000,
        runtime=240,
        gpu=GPU,
    params:
        program=program("qk_norms"),
        code=code("qk_norms"),
        model=lambda wildcards, input: os.path.dirname(input.source),
        folder=lambda wildcards, output: os.path.dirname(output[0]),
        settings=lambda wildcards: settings(
            {
                "model": PRETRAINED[wildcards.pretrained].model_dump(
                    include={"name", "title"}
                ),
                "probe": PRESET.pretrained.probe,
                "held_out_prose_source": PRESET.data.held_out_prose_source,
                "seed": PRESET.seed,
            }
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --model {params.model:q}"
        " --documents {input.documents:q} --output {params.folder:q} 2>&1 | tee {log:q}"


rule fetch_samples:
    output:
        "<resources>/samples/{samples}",
    log:
        "<logs>/fetch_samples/{samples}.log",
    benchmark:
        "<benchmarks>/fetch_samples/{samples}.tsv"
    conda:
        "../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
        gpu=0,
    params:
        program=program("fetch_samples"),
        code=code("fetch_samples"),
        settings=lambda wildcards: settings(SAMPLES[wildcards.samples]),
    shell:
        "python {params.program:q} --settings {params.settings:q} --output {output:q} 2>&1 | tee {log:q}"


rule behavior_scores:
    input:
        source=weights_record,
        documents=(
            "<results>/data/documents/held_out.jsonl.zst"
            if SAMPLE_SOURCE is None
            else []
        ),
        samples=sample_files,
    output:
        "<results>/pretrained/{pretrained}/behavior.npz",
        "<results>/pretrained/{pretrained}/behavior.json",
    log:
        "<logs>/behavior_scores/{pretrained}.log",
    benchmark:
        "<benchmarks>/behavior_scores/{pretrained}.tsv"
    conda:
        "../envs/evaluation.yaml"
    threads: 2
    resources:
        mem_mb=6000,
        runtime=240,
        gpu=GPU,
    params:
        program=program("behavior_scores"),
        code=code("behavior_scores"),
        model=lambda wildcards, input: os.path.dirname(input.source),
        folder=lambda wildcards, output: os.path.dirname(output[0]),
        settings=lambda wildcards: settings(
            {
                "model": PRETRAINED[wildcards.pretrained].model_dump(
                    include={"name", "title"}
                ),
                "behavior": PRESET.pretrained.behavior,
                "seed": PRESET.seed,
                **(
                    {"held_out_prose_source": PRESET.data.held_out_prose_source}
                    if SAMPLE_SOURCE is None
                    else {}
                ),
            }
        ),
        documents=lambda wildcards, input: given("--documents", input.documents),
        files=lambda wildcards, input: given("--files", input.samples),
    shell:
        "python {params.program:q} --settings {params.settings:q} --model {params.model:q} {params.documents}"
        " {params.files} --output {params.folder:q} 2>&1 | tee {log:q}"


rule classify_heads:
    input:
        probe="<results>/pretrained/{pretrained}/probe.npz",
        record="<results>/pretrained/{pretrained}/probe.json",
        behavior="<results>/pretrained/{pretrained}/behavior.npz",
        scores="<results>/pretrained/{pretrained}/behavior.json",
    output:
        heads="<results>/pretrained/{pretrained}/heads.csv",
        parquet="<results>/pretrained/{pretrained}/heads.parquet",
        bands="<results>/pretrained/{pretrained}/bands.json",
    log:
        "<logs>/classify_heads/{pretrained}.log",
    benchmark:
        "<benchmarks>/classify_heads/{pretrained}.tsv"
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
        gpu=0,
    params:
        program=program("classify_heads"),
        code=code("classify_heads"),
        settings=lambda wildcards: settings(
            {
                "model": PRETRAINED[wildcards.pretrained],
                "band": PRESET.band,
                "seed": PRESET.seed,
            }
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --probe {input.probe:q}"
        " --behavior {input.behavior:q} --output-heads {output.heads:q} --output-bands {output.bands:q} 2>&1 | tee {log:q}"


rule head_atlas:
    input:
        probe="<results>/pretrained/{pretrained}/probe.npz",
        record="<results>/pretrained/{pretrained}/probe.json",
        heads="<results>/pretrained/{pretrained}/heads.csv",
        bands="<results>/pretrained/{pretrained}/bands.json",
        norms="<results>/pretrained/{pretrained}/norms.npz",
    output:
        report(
            "<results>/pretrained/{pretrained}/atlas.html",
            caption="../report/head_atlas.rst",
            category="Head atlas",
            labels={"model": "{pretrained}"},
        ),
    log:
        "<logs>/head_atlas/{pretrained}.log",
    benchmark:
        "<benchmarks>/head_atlas/{pretrained}.tsv"
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
        gpu=0,
    params:
        program=program("make_atlas"),
        code=code("make_atlas"),
        folder=lambda wildcards, input: os.path.dirname(input.probe),
    shell:
        "python {params.program:q} {params.folder:q} --output {output:q} 2>&1 | tee {log:q}"


# On demand, for Figure `causal`: it runs the model some dozens of times over all samples.
rule causal_checks:
    input:
        source=weights_record,
        documents="<results>/data/documents/held_out.jsonl.zst",
        probe="<results>/pretrained/{pretrained}/probe.npz",
        heads="<results>/pretrained/{pretrained}/heads.csv",
        bands="<results>/pretrained/{pretrained}/bands.json",
    output:
        table="<results>/pretrained/{pretrained}/causal.csv",
        parquet="<results>/pretrained/{pretrained}/causal.parquet",
        summary="<results>/pretrained/{pretrained}/causal_summary.csv",
        summary_parquet="<results>/pretrained/{pretrained}/causal_summary.parquet",
    log:
        "<logs>/causal_checks/{pretrained}.log",
    benchmark:
        "<benchmarks>/causal_checks/{pretrained}.tsv"
    conda:
        "../envs/evaluation.yaml"
    threads: 2
    resources:
        mem_mb=6000,
        runtime=240,
        gpu=GPU,
    params:
        program=program("causal_checks"),
        code=code("causal_checks"),
        model=lambda wildcards, input: os.path.dirname(input.source),
        settings=lambda wildcards: settings(
            {
                "model": PRETRAINED[wildcards.pretrained].model_dump(
                    include={"name", "title"}
                ),
                "causal": PRESET.pretrained.causal,
                "held_out_prose_source": PRESET.data.held_out_prose_source,
                "seed": PRESET.seed,
            }
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --model {params.model:q} --probe {input.probe:q}"
        " --documents {input.documents:q} --output {output.table:q} 2>&1 | tee {log:q}"
