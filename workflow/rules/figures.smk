# One rule a figure, named as the paper names it: `snakemake fig3 --forcerun fig3` draws Figure 3 anew. Ours have names.


for figure in [
    *PRESET.targets.figures,
    *selection.on_demand_figures(PRESET),
]:

    figure_name = selection.figure_name(figure)

    rule:
        name:
            figure_name
        input:
            under_results(requirements.figure_inputs(PRESET, figure)),
        output:
            report(
                f"<results>/figures/{figure_name}.png",
                caption=f"../report/{figure_name}.rst",
                category="Figures",
                labels={"figure": figure_name.removeprefix("fig").zfill(2)},
            ),
            f"<results>/figures/{figure_name}.pdf",
            f"<results>/figures/{figure_name}.csv",
        log:
            f"<logs>/figures/{figure_name}.log",
        benchmark:
            f"<benchmarks>/figures/{figure_name}.tsv"
        conda:
            "../envs/analysis.yaml"
        threads: 1
        resources:
            mem_mb=2000,
            runtime=30,
            gpu=0,
        params:
            program=program("draw_figure"),
            code=code("draw_figure", f"hwh_core/reporting/{figure_name}.py"),
            figure=figure,
            note=captions.caption_note(PRESET, figure),
            folder=lambda wildcards: RESULTS,
            stem=lambda wildcards, output: os.path.splitext(output[0])[0],
            settings=lambda wildcards: settings(PRESET),
        shell:
            "python {params.program:q} {params.figure} --root {params.folder:q} --settings {params.settings:q}"
            " --output {params.stem:q} 2>&1 | tee {log:q}"
