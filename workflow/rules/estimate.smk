# What the preset costs, printed before anything runs: `snakemake estimate`. No benchmark: it would be a file that is there.


localrules:
    estimate,


rule estimate:
    log:
        "<logs>/estimate.log",
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
        gpu=0,
    params:
        settings=lambda wildcards: settings(PRESET),
    shell:
        "python -m hwh_core.cli estimate --settings {params.settings:q} 2>&1 | tee {log:q}"
