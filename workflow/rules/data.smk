# Text: sources -> documents, split by document -> tokenizer -> token stores.


localrules:
    fetch_source,


rule fetch_source:
    input:
        local_files,
    output:
        "<resources>/sources/{source}.jsonl.zst",
    log:
        "<logs>/fetch_source/{source}.log",
    benchmark:
        "<benchmarks>/fetch_source/{source}.tsv"
    conda:
        "../envs/data.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
        gpu=0,
    params:
        program=program("fetch_source"),
        code=code("fetch_source"),
        settings=lambda wildcards: settings(SOURCES[wildcards.source]),
    shell:
        "python {params.program:q} --settings {params.settings:q} --downloads resources/downloads"
        " --output {output:q} 2>&1 | tee {log:q}"


rule build_documents:
    input:
        sources=expand("<resources>/sources/{source}.jsonl.zst", source=list(SOURCES)),
    output:
        train="<results>/data/documents/train.jsonl.zst",
        held_out="<results>/data/documents/held_out.jsonl.zst",
        summary="<results>/data/documents/documents.json",
    log:
        "<logs>/build_documents.log",
    benchmark:
        "<benchmarks>/build_documents.tsv"
    conda:
        "../envs/data.yaml"
    threads: 1
    resources:
        # Of every document 48 bytes of hashes are kept and sorted; text is read twice and compressed once.
        mem_mb=scaled(4000, 60),
        runtime=scaled(120, 3),
        gpu=0,
    params:
        program=program("build_documents"),
        code=code("build_documents"),
        folder=lambda wildcards, output: os.path.dirname(output.summary),
        settings=lambda wildcards: settings(
            {
                "minimum_bytes": PRESET.data.minimum_bytes,
                "held_out_fraction": PRESET.data.held_out_fraction,
                "seed": PRESET.seed,
            }
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --sources {input.sources:q}"
        " --output {params.folder:q} 2>&1 | tee {log:q}"


rule build_tokenizer:
    input:
        branch(
            lambda wildcards: TOKENIZERS[wildcards.tokenizer].kind == "bpe",
            then="<results>/data/documents/train.jsonl.zst",
            otherwise=[],
        ),
    output:
        "<results>/data/{tokenizer}/tokenizer/tokenizer.json",
        "<results>/data/{tokenizer}/tokenizer/tokenizer_config.json",
    log:
        "<logs>/build_tokenizer/{tokenizer}.log",
    benchmark:
        "<benchmarks>/build_tokenizer/{tokenizer}.tsv"
    # From a hub it is fetched, which nodes of a cluster cannot.
    localrule: any(tokenizer.kind == "hub" for tokenizer in PRESET.tokenizers)
    conda:
        "../envs/data.yaml"
    threads: 2
    resources:
        mem_mb=4000,
        runtime=60,
        gpu=0,
    params:
        program=program("build_tokenizer"),
        code=code("build_tokenizer"),
        folder=lambda wildcards, output: os.path.dirname(output[0]),
        documents=lambda wildcards, input: (
            f"--documents {shlex.quote(input[0])}" if len(input) else ""
        ),
        settings=lambda wildcards: settings(TOKENIZERS[wildcards.tokenizer]),
    shell:
        "python {params.program:q} --settings {params.settings:q} {params.documents}"
        " --output {params.folder:q} 2>&1 | tee {log:q}"


rule tokenize_documents:
    input:
        documents="<results>/data/documents/{split}.jsonl.zst",
        tokenizer="<results>/data/{tokenizer}/tokenizer/tokenizer.json",
    output:
        "<results>/data/{tokenizer}/{split}/tokens.bin",
        "<results>/data/{tokenizer}/{split}/documents.npy",
        "<results>/data/{tokenizer}/{split}/index.json",
    log:
        "<logs>/tokenize_documents/{tokenizer}_{split}.log",
    benchmark:
        "<benchmarks>/tokenize_documents/{tokenizer}_{split}.tsv"
    conda:
        "../envs/data.yaml"
    threads: 2
    resources:
        # A batch a process, whatever the size of the text.
        mem_mb=lambda wildcards, threads: max(4000, 1000 * threads),
        runtime=scaled(240, 4),
        gpu=0,
    params:
        program=program("tokenize_documents"),
        code=code("tokenize_documents"),
        tokenizer=lambda wildcards, input: os.path.dirname(input.tokenizer),
        folder=lambda wildcards, output: os.path.dirname(output[0]),
        settings=lambda wildcards: settings({}),
    shell:
        "python {params.program:q} --settings {params.settings:q} --documents {input.documents:q}"
        " --tokenizer {params.tokenizer:q} --output {params.folder:q} --workers {threads} 2>&1 | tee {log:q}"
