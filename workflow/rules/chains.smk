# One target a chain (a trained model and all that is measured of it), and one for all chains of a seed.


rule record_chain:
    input:
        records=chain_records,
        data=chain_data,
    output:
        "<results>/chains/{chain}.json",
    log:
        "<logs>/record_chain/{chain}.log",
    benchmark:
        "<benchmarks>/record_chain/{chain}.tsv"
    priority: MEASURED_FIRST
    group:
        CHAIN
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        gpu=0,
    params:
        program=program("record_chain"),
        code=code("record_chain"),
        folder=lambda wildcards: f"{RESULTS}/{wildcards.chain}",
        settings=lambda wildcards: settings(
            {"chain": wildcards.chain, "seed": CHAINS[wildcards.chain].seed}
        ),
    shell:
        "python {params.program:q} --settings {params.settings:q} --folder {params.folder:q}"
        " --output {output:q} 2>&1 | tee {log:q}"


for seed in sorted({chain.seed for chain in CHAINS.values()}):

    rule:
        name:
            f"chains_seed{seed}"
        input:
            [
                f"<results>/chains/{name}.json"
                for name, chain in CHAINS.items()
                if chain.seed == seed
            ],
