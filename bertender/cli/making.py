"""Commands that make models: the stages, `import`, `compress`, and `run` and `sweep` for recipes.

PyTorch is imported only when a command does its work; settings are read without it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.table import Table
from rich.text import Text

from bertender import api
from bertender.cli.flags import ForceFlag, JsonFlag, command_with_flags, settings_of
from bertender.cli.output import (
    announce,
    artifact_summary,
    messages,
    print_artifact,
    print_entry,
    print_json,
    print_rows,
    print_table,
    print_words,
)
from bertender.comparison.records import read_comparison
from bertender.comparison.table import DASH
from bertender.core.artifact import Artifact
from bertender.core.config import parts_of
from bertender.core.errors import AccuracyError, ConfigError, TrainingError, UnknownNameError
from bertender.core.machine import is_main_process
from bertender.metrics.metric import Score
from bertender.models.sentence_files import POOLINGS, PoolingName
from bertender.recipes.recipe import (
    Recipe,
    Setting,
    Step,
    StepOutcome,
    load_recipe,
    read_setting,
    recipes_of,
    run_recipe,
    save_averages,
)
from bertender.recipes.stages import STAGES
from bertender.recipes.sweep import Sweep, run_sweep
from bertender.tasks.task import TaskConfig

OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIRECTORY", help="where to write the artifact")
]
TeacherOption = Annotated[
    str, typer.Option("--teacher", metavar="ARTIFACT", help="artifact of the teacher")
]
TeacherOrFileOption = Annotated[
    str,
    typer.Option(
        "--teacher",
        metavar="ARTIFACT",
        help="artifact of the teacher; or a data file, or folder of `bertender score`, with its "
        "probabilities or labels",
    ),
]
ArtifactArgument = Annotated[str, typer.Argument(metavar="ARTIFACT", help="artifact to start from")]
SOURCES = {"teacher": TeacherOrFileOption, "artifact": ArtifactArgument}
"""Name of a stage's source -> its parameter in the command."""


def build(name: str) -> Callable[..., None]:
    """Build a command of this module."""
    if name in ("run", "sweep"):
        return run_command if name == "run" else sweep_command
    if name == "import":
        return command_with_flags(import_command, (TaskConfig,), optional=(TaskConfig,))
    return compress_command() if name == "compress" else stage_command(name)


def stage_command(name: str) -> Callable[..., None]:
    """Build the command of a stage."""
    stage = STAGES[name]

    def command(
        source: str | None,
        out: OutOption,
        values: dict[str, Any],
        force: ForceFlag = False,
        as_json: JsonFlag = False,
    ) -> None:
        task, settings = settings_of(TaskConfig, values), settings_of(stage.config, values)
        sources = [] if source is None else [source]
        written = api.make(name, sources, task, None, settings, out, force)
        if is_main_process():
            _show_written(written, as_json)

    configs = (TaskConfig, stage.config) if stage.needs_task else (stage.config,)
    if stage.source is None:
        return command_with_flags(partial(command, None), configs)
    # an option or an argument, by the stage
    command.__annotations__["source"] = SOURCES[stage.source]
    return command_with_flags(command, configs, optional=(TaskConfig,))


def import_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="folder of transformers, folder or file of ONNX, or hub name"
        ),
    ],
    out: OutOption,
    values: dict[str, Any],
    revision: Annotated[
        str | None, typer.Option("--revision", help="commit, branch or tag of a hub name")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option("--labels", help="names of the labels by commas, in the order of the logits"),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling",
            metavar="mean|cls|lasttoken",
            help="let an encoder without a head give vectors of texts: the mean of its tokens, the "
            "first, or a decoder's last",
        ),
    ] = None,
    force: ForceFlag = False,
    as_json: JsonFlag = False,
) -> None:
    if revision and Path(source).exists():
        raise typer.BadParameter(f"--revision is that of a hub name, and {source} is a path.")
    named = f"{source}@{revision}" if revision else source
    chosen = None if labels is None else parts_of(labels)
    task = settings_of(TaskConfig, values)
    if pooling is not None and pooling not in POOLINGS:
        raise UnknownNameError("pooling", pooling, POOLINGS, setting="pooling")
    written = api.import_model(
        named, task, out=out, labels=chosen, pooling=cast(PoolingName, pooling), force=force
    )
    _show_written(written, as_json)


def _show_written(artifact: Artifact, as_json: bool) -> None:
    if as_json:
        print_json(artifact_summary(artifact))
    else:
        print_artifact(artifact)


def compress_command() -> Callable[..., None]:
    """Build `bertender compress`."""
    from bertender.compression.config import CompressConfig
    from bertender.compression.report import MODEL, sentence, serve_command, terminal_report

    def command(
        teacher: TeacherOption,
        out: Annotated[
            Path,
            typer.Option(
                "--out", metavar="DIRECTORY", help="where to put the model and the report"
            ),
        ],
        values: dict[str, Any],
        dry_run: Annotated[
            bool,
            typer.Option(
                "--dry-run",
                help="show the plan with predicted figures; only a few models are made, to measure",
            ),
        ] = False,
        force: ForceFlag = False,
        as_json: JsonFlag = False,
    ) -> None:
        config = CompressConfig.parse(settings_of(CompressConfig, values))
        source = api.opened(teacher)
        task = api.task_of([source], settings_of(TaskConfig, values))
        from bertender.compression.compress import Compression

        compression = Compression(source, task, config, out, announce, force)
        report = compression.plan() if dry_run else compression.run()
        if as_json:
            print_json(report)
        else:
            print_table(terminal_report(report))
            print_words(sentence(report))
            if report.chosen is not None:
                print_words(f"{out / MODEL}: {serve_command(report, out / MODEL)}", "dim")
        if report.verdict == "score not met":
            raise AccuracyError(
                f"{sentence(report)} It lies at {out / MODEL}. Give a lower min_score, more room "
                "(max_mb, max_ms), unlabelled texts, or more epochs."
            )

    return command_with_flags(command, (TaskConfig, CompressConfig), optional=(TaskConfig,))


RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="a name from `bertender recipes`, or a .yaml file")
]
ChangesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="STEP.KEY=VALUE",
        help="change a setting of a step, or of the task (task.KEY=VALUE); may be repeated",
    ),
]


def run_command(
    recipe: RecipeArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIRECTORY",
            help="where to put the results",
            show_default="runs/RECIPE",
        ),
    ] = None,
    changes: ChangesOption = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            metavar="NAME,NAME",
            help="run it once for each of these named tasks, and average the scores",
        ),
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(
            "--teacher",
            metavar="FOLDER|NAME",
            help="start the teacher from this folder or hub name",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            help="seed of every step; added to the seed of a step that sets its own",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="build every step again")] = False,
    force: ForceFlag = False,
    as_json: JsonFlag = False,
) -> None:
    chosen = load_recipe(recipe)
    if teacher is not None:
        chosen = chosen.with_settings(_start_from(chosen, teacher))
    if seed is not None:
        chosen = chosen.with_settings(_seeded(chosen, seed))
    chosen = chosen.with_settings(map(read_setting, changes or []))

    directory = out or Path("runs") / chosen.name
    names = parts_of(tasks or ())
    if tasks is not None and not names:
        raise ConfigError("--tasks names no task. Give names of `bertender tasks`, by commas.")
    several = bool(names or chosen.tasks)
    found: dict[str, list[StepOutcome]] = {}
    for folder, own in recipes_of(chosen, directory, names, force).items():
        task = folder.name if several else ""
        found[task] = _run(own, folder, fresh, force, task=task, shown=not as_json)
    mean = save_averages(found, directory)
    if as_json:
        steps = {name: [*map(_as_json, outcomes)] for name, outcomes in found.items()}
        of_tasks = {"tasks": steps, "averages": mean and mean.model_dump(mode="json")}
        own_steps = of_tasks if several else {"steps": steps[""]}
        print_json({"recipe": chosen.name, "out": str(directory), **own_steps})
        return
    if mean is not None:
        from bertender.comparison.averages import averages_table

        print_table(averages_table(mean))
    _show_next(chosen)


def sweep_command(
    recipe: RecipeArgument,
    grid: Annotated[
        list[str],
        typer.Option(
            "--grid",
            metavar="STEP.KEY=VALUE,VALUE",
            help="values of a setting of a step; may be repeated, and each combination is tried",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIRECTORY",
            help="where to put the results",
            show_default="runs/RECIPE-sweep",
        ),
    ] = None,
    changes: ChangesOption = None,
    step: Annotated[
        str | None,
        typer.Option(
            "--step", help="whose model is scored; by default the last step that makes one"
        ),
    ] = None,
    drawn: Annotated[
        int | None,
        typer.Option("--random", metavar="N", min=1, help="try so many of the combinations, drawn"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    chosen = load_recipe(recipe).with_settings(map(read_setting, changes or []))
    directory = out or Path("runs") / f"{chosen.name}-sweep"
    sweep = run_sweep(chosen, directory, grid, step=step, drawn=drawn, announce=announce)
    if as_json:
        print_json(sweep)
    else:
        _show_sweep(sweep)
    if failures := sweep.failures:
        first = failures[0]
        raise TrainingError(
            f"{len(failures)} of {len(sweep.variants)} variants failed, first {first.name}: "
            f"{str(first.failed).rstrip('.')}. The others are as shown; the same command tries it "
            "again."
        )


def _show_sweep(sweep: Sweep) -> None:
    """Print the variants as one table, and the best variant's score on the held-out texts."""

    def score(own: Score | None) -> str:
        return DASH if own is None else f"{own.value:.4f} [{own.low:.4f}, {own.high:.4f}]"

    rows = []
    for each in sweep.variants:
        change = DASH
        if each.change is not None:
            change = f"{each.change.value:+.1f} [{each.change.low:+.1f}, {each.change.high:+.1f}]"
        state = f"{each.seconds:.0f} s" if each.failed is None else "FAILED"
        settings = (str(value) for value in each.settings.values())
        rows.append((*settings, score(each.score), change, state))
    print_words(f"{sweep.task}: {sweep.metric} of {sweep.step} on {sweep.texts} validation texts")
    table = Table(*sweep.variants[0].settings, "score", "change, points", "built in", box=None)
    for row in rows:
        table.add_row(*map(Text, row))
    print_table(table)
    if sweep.held_out is not None:
        print_words(f"held-out, of the best alone: {score(sweep.held_out)}, n = {sweep.held_out.n}")
        print_words(f"{sweep.path}", "dim")


def _run(
    recipe: Recipe, out: Path, fresh: bool, force: bool, *, task: str, shown: bool
) -> list[StepOutcome]:
    """Run the recipe of one task, named if there are several, and show its outputs."""

    def at_step(step: Step, number: int, steps: int) -> None:
        messages.print(
            f"[bold]{f'{task} ' if task else ''}\\[{number}/{steps}] "
            f"{step.name}[/bold] ({step.stage})",
            highlight=False,
        )

    outcomes = []
    for outcome in run_recipe(recipe, out, fresh=fresh, force=force, at_step=at_step):
        outcomes.append(outcome)
        if shown:
            _show_output(outcome.step.stage, outcome.output)
            how = "unchanged, reused" if outcome.reused else f"done in {outcome.seconds:.0f} s"
            print_words(f"{outcome.output}: {how}", "dim")
    if shown:
        show_gain(outcomes)
    return outcomes


def _start_from(recipe: Recipe, teacher: str) -> Iterator[Setting]:
    """Yield --teacher as a setting of each step that starts from an encoder of the user."""
    steps = [step for step in recipe.steps if step.stage == "finetune" and not step.sources]
    if not steps:
        raise ConfigError(
            f"--teacher {teacher}: no step of recipe {recipe.name!r} starts from an encoder of "
            "yours. Recipes that do have a `finetune` step without `from`."
        )
    for step in steps:
        yield Setting(step.name, "teacher", teacher)


def _seeded(recipe: Recipe, seed: int) -> Iterator[Setting]:
    """Yield --seed for each step with a seed; different seeds in a recipe stay different."""
    for step in recipe.steps:
        own = step.settings.get("seed", 0)
        if "seed" in STAGES[step.stage].config.model_fields and isinstance(own, int):
            yield Setting(step.name, "seed", own + seed)


def _show_output(stage: str, output: Path) -> None:
    """Print the output of a step."""
    if stage == "endpoint":
        show_endpoint(output)
    elif stage in ("verify", "compare"):
        from bertender.cli.measuring import print_comparison, show_parity

        if stage == "verify":
            show_parity(output)
        else:
            print_comparison(read_comparison(output))
    else:
        print_artifact(Artifact.load(output, verify=False))


def show_endpoint(output: Path) -> None:
    """Print a saved check of an endpoint."""
    from bertender.comparison.accuracy import shown
    from serve.check import EndpointCheck

    rows = []
    check = EndpointCheck.model_validate_json(output.read_text(encoding="utf-8"))
    for served in check.served:
        label, score = served.answer.label, served.answer.score
        # the texts of an example, or its sentence if words have labels
        text = (" " if isinstance(label, tuple | dict) else " | ").join(served.text)
        of_heads = score.values() if isinstance(score, dict) else [score]
        scores = [
            each
            for own in of_heads
            for each in (own if isinstance(own, tuple) else () if own is None else (own,))
        ]
        lowest = f"{min(scores):.3f}" if scores else "-"
        rows.append((text, shown(label), lowest, shown(served.true_label)))
    right = sum(served.answer.label == served.true_label for served in check.served)
    print_rows(("held-out text", "label", "score", "true label"), rows)
    if not any(isinstance(served.answer.label, float) for served in check.served):
        print_words(f"{right} of {len(rows)} labelled as in the data")
    print_words(
        f"served by Triton and stopped; logits within {check.max_abs_difference:.1g} of the local "
        "model's"
    )


def show_gain(outcomes: Sequence[StepOutcome]) -> None:
    """Print the gain of the served model over the first one of the comparison, in the runtime of
    the endpoint."""
    from bertender.comparison.table import in_one_sentence
    from bertender.models.runtimes import DEFAULT_RUNTIME

    served = [
        name for each in outcomes if each.step.stage == "endpoint" for name in each.step.sources
    ]
    for table in outcomes:
        if table.step.stage == "compare" and served and served[-1] in table.step.sources[1:]:
            comparison = read_comparison(table.output)
            for row in comparison.rows[1:]:
                # of several runtimes, a row's name ends in its own
                is_served = row.name.partition(" in ")[0] == served[-1]
                if is_served and row.runtime == DEFAULT_RUNTIME:
                    print_entry(f"\n{in_one_sentence(comparison, row.name)}", ())


def _show_next(recipe: Recipe) -> None:
    if recipe.next:
        print_entry("\nNext, for your own data:", ())
        activate = Path(sys.prefix) / "bin" / "activate"
        if shutil.which("bertender") is None and activate.is_file():
            print_words(f"  . {activate}")
        for line in recipe.next:
            print_words(f"  {line}")


def _as_json(outcome: StepOutcome) -> dict[str, Any]:
    return {
        "step": outcome.step.name,
        "stage": outcome.step.stage,
        "output": str(outcome.output),
        "reused": outcome.reused,
        "seconds": round(outcome.seconds, 1),
        "result": outcome.result,
    }
