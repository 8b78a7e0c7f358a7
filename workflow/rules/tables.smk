# One rule a table, named as the paper names it, and the claims ledger.


for number in PRESET.targets.tables:

    rule:
        name:
            f"table{number}"
        input:
            under_results(requirements.table_inputs(PRESET, number)),
        output:
            report(
                f"<results>/tables/table{number}.csv",
                caption=f"../report/table{number}.rst",
                category="Tables",
                labels={"table": f"{number}"},
            ),
            f"<results>/tables/table{number}.md",
            f"<results>/tables/table{number}.tex",
        log:
            f"<logs>/tables/table{number}.log",
        benchmark:
            f"<benchmarks>/tables/table{number}.tsv"
        conda:
            "../envs/analysis.yaml"
        threads: 1
        resources:
            mem_mb=2000,
            runtime=30,
            gpu=0,
        params:
            program=program("make_table"),
            code=code("make_table", f"hwh_core/reporting/table{number}.py"),
            number=number,
            folder=lambda wildcards: RESULTS,
            stem=lambda wildcards, output: os.path.splitext(output[0])[0],
            settings=lambda wildcards: settings(PRESET),
        shell:
            "python {params.program:q} {params.number} --root {params.folder:q} --settings {params.settings:q}"
            " --output {params.stem:q} 2>&1 | tee {log:q}"


rule claims:
    input:
        under_results(requirements.claims_inputs(PRESET)),
    output:
        ledger=report(
            "<results>/claims.md",
            caption="../report/claims.rst",
            category="Claims",
        ),
        data="<results>/claims.json",
    log:
        "<logs>/claims.log",
    benchmark:
        "<benchmarks>/claims.tsv"
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
        gpu=0,
    params:
        program=program("make_claims"),
        code=code("make_claims"),
        folder=lambda wildcards: RESULTS,
        settings=lambda wildcards: settings(PRESET),
    shell:
        "python {params.program:q} --root {params.folder:q} --settings {params.settings:q}"
        " --output {output.data:q} 2>&1 | tee {log:q}"
