# One rule a figure, named as the paper names it: `snakemake fig3 --forcerun fig3` draws Figure 3 anew.


for number in PRESET.targets.figures:

    rule:
        name:
            f"fig{number}"
        input:
            under_results(requirements.figure_inputs(PRESET, number)),
        output:
            report(
                f"<results>/figures/fig{number}.png",
                caption=f"../report/fig{number}.rst",
                category="Figures",
                labels={"figure": f"{number:02d}"},
            ),
            f"<results>/figures/fig{number}.pdf",
            f"<results>/figures/fig{number}.csv",
        log:
            f"<logs>/figures/fig{number}.log",
        benchmark:
            f"<benchmarks>/figures/fig{number}.tsv"
        conda:
            "../envs/analysis.yaml"
        threads: 1
        resources:
            mem_mb=2000,
            runtime=30,
            gpu=0,
        params:
            program=program("draw_figure"),
            code=code("draw_figure", f"hwh_core/reporting/fig{number}.py"),
            number=number,
            folder=lambda wildcards: RESULTS,
            stem=lambda wildcards, output: os.path.splitext(output[0])[0],
            settings=lambda wildcards: settings(PRESET),
        shell:
            "python {params.program:q} {params.number} --root {params.folder:q} --settings {params.settings:q}"
            " --output {params.stem:q} 2>&1 | tee {log:q}"
