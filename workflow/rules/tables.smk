# One rule a table, named as the paper names it, and the claims ledger.


for table in [*PRESET.targets.tables, *PRESET.targets.comparisons]:

    table_name = selection.table_name(table)

    rule:
        name:
            table_name
        input:
            under_results(comparisons.table_inputs(PRESET, table)),
        output:
            report(
                f"<results>/tables/{table_name}.csv",
                caption=f"../report/{table_name}.rst",
                category="Tables",
                labels={"table": f"{table}"},
            ),
            f"<results>/tables/{table_name}.md",
            f"<results>/tables/{table_name}.tex",
        log:
            f"<logs>/tables/{table_name}.log",
        benchmark:
            f"<benchmarks>/tables/{table_name}.tsv"
        conda:
            "../envs/analysis.yaml"
        threads: 1
        resources:
            mem_mb=2000,
            runtime=30,
            gpu=0,
        params:
            program=program("make_table"),
            code=code("make_table", f"hwh_core/reporting/{table_name}.py"),
            table=table,
            folder=lambda wildcards: RESULTS,
            stem=lambda wildcards, output: os.path.splitext(output[0])[0],
            settings=lambda wildcards: settings(PRESET),
        shell:
            "python {params.program:q} {params.table} --root {params.folder:q} --settings {params.settings:q}"
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
