"""bertender verify, compare, diff, report, analyse and drift.

PyTorch and plotting libraries are imported only when a command needs them: options, paths and
settings are checked without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender import api
from bertender.cli.findings import parity_table
from bertender.cli.flags import JsonFlag, OutFile, command_with_flags, settings_of
from bertender.cli.output import (
    console,
    print_json,
    print_result,
    print_rows,
    print_table,
    print_words,
    with_left_out,
)
from bertender.comparison.differences import (
    RECORDED_SETTINGS,
    SUFFIXES,
    DiffConfig,
    Differences,
    check_comparable,
    difference_cells,
    difference_lines,
    differences,
    save_differences,
    task_of_file,
)
from bertender.comparison.records import CompareConfig, Comparison, read_comparison
from bertender.comparison.table import markdown_table, terminal_table
from bertender.core.artifact import Artifact
from bertender.core.card import CARD_NAME, LeftOutRows
from bertender.core.errors import ConfigError, DataError, HubUnreachableError, RefusedError
from bertender.core.files import check_savable, save_result, save_text
from bertender.core.machine import save_note
from bertender.gate.artifacts import Verification, VerifyConfig, verify
from bertender.gate.judge import require_parity
from bertender.report.analyses import (
    ANALYSIS_NAME,
    AnalyseConfig,
    analysis_lines,
    check_analysable,
    check_folder,
    read_analysis,
    save_analysis,
)
from bertender.report.charts import check_charts
from bertender.report.choice import LimitsConfig, choice_of
from bertender.report.page import page
from bertender.tasks.task import Task, TaskConfig

ReferenceArgument = Annotated[
    str, typer.Argument(metavar="REFERENCE", help="artifact that is taken as right")
]
CandidateArgument = Annotated[
    str, typer.Argument(metavar="CANDIDATE", help="artifact to check against it")
]
ArtifactArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARTIFACT", help="what to compare; changes are from the first"),
]
CascadeOption = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--cascade",
        metavar="SMALL STRONG",
        help="add a row of two models: the second answers where the first is not sure, by a "
        "threshold that validation texts choose",
    ),
]
SavedFile = Annotated[
    Path | None,
    typer.Option("--saved", metavar="FILE", help="show this saved comparison; measure nothing"),
]
HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="write `bertender report` as this HTML file"),
]
ReportFile = Annotated[Path, typer.Option("--html", metavar="FILE", help="the page to write")]
SourceArguments = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        help="a saved table, the folder of a recipe's run, or models to compare, the reference "
        "first",
    ),
]
AnalysisFolders = Annotated[
    list[Path] | None,
    typer.Option("--analysis", metavar="DIR", help="show this output of `analyse` too; repeatable"),
]
AnalysedArgument = Annotated[
    str, typer.Argument(metavar="ARTIFACT", help="PyTorch model to analyse")
]
AnalysisOut = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="folder for analysis.json and pictures")
]
MarkdownFlag = Annotated[bool, typer.Option("--markdown", help="print Markdown")]
WideFlag = Annotated[bool, typer.Option("--wide", help="show every column")]


def build(name: str) -> Callable[..., None]:
    """Build a command of this module."""
    commands = {
        "verify": verify_command,
        "compare": compare_command,
        "diff": diff_command,
        "drift": drift_command,
        "report": report_command,
        "analyse": analyse_command,
    }
    return commands[name]()


def verify_command() -> Callable[..., None]:
    """Build `bertender verify`."""

    def command(
        reference: ReferenceArgument,
        candidate: CandidateArgument,
        values: dict[str, Any],
        out: OutFile = None,
        as_json: JsonFlag = False,
    ) -> None:
        check_savable("--out", out, "JSON")
        artifacts = api.opened(reference), api.opened(candidate)
        config = VerifyConfig.parse(settings_of(VerifyConfig, values))
        task = api.task_of(artifacts, settings_of(TaskConfig, values))
        from quantize.graph_check import failures_if_quantized

        parity = verify(*artifacts, task, config, failures_if_quantized)
        if out:
            save_result(parity, out)
        if as_json:
            print_json(with_left_out(parity, task.left_out))
        else:
            console.print(parity_table(parity))
        require_parity(parity)

    return command_with_flags(command, (TaskConfig, VerifyConfig), optional=(TaskConfig,))


def compare_command() -> Callable[..., None]:
    """Build `bertender compare`."""

    def command(
        context: typer.Context,
        values: dict[str, Any],
        artifacts: ArtifactArguments = None,
        cascade: CascadeOption = None,
        out: OutFile = None,
        saved: SavedFile = None,
        html: HtmlFile = None,
        markdown: MarkdownFlag = False,
        wide: WideFlag = False,
        as_json: JsonFlag = False,
    ) -> None:
        forms = [name for name, on in {"--markdown": markdown, "--wide": wide}.items() if on]
        if as_json and forms:
            raise typer.BadParameter(f"--json and {forms[0]}: give one of them.")
        if saved:
            check_unused(context, ("artifacts", "cascade", *values), "--saved")
        if not saved and not (artifacts or cascade):
            raise typer.BadParameter("give at least one ARTIFACT, or --saved FILE.")
        check_savable("--out", out, "JSON")
        check_savable("--html", html, "HTML")
        if html:
            check_charts()
        comparison, left_out = (
            (read_comparison(saved), None) if saved else _measure(artifacts or [], values, cascade)
        )
        if out:
            save_result(comparison, out)
        if html:
            save_text(page(comparison), html)
        if as_json:
            print_json(with_left_out(comparison, left_out))
        elif markdown:
            print(markdown_table(comparison, wide))
        else:
            print_comparison(comparison, wide)

    return command_with_flags(command, (TaskConfig, CompareConfig), optional=(TaskConfig,))


def report_command() -> Callable[..., None]:
    """Build `bertender report`."""

    def command(
        context: typer.Context,
        sources: SourceArguments,
        html: ReportFile,
        values: dict[str, Any],
        analyses: AnalysisFolders = None,
        as_json: JsonFlag = False,
    ) -> None:
        check_savable("--html", html, "HTML")
        check_charts()
        limits = LimitsConfig.parse(settings_of(LimitsConfig, values))
        saved, shown = saved_in(sources), [*map(read_analysis, analyses or [])]
        left_out = None
        if saved:
            measuring = [name for name in values if name not in LimitsConfig.model_fields]
            check_unused(context, measuring, f"a report of {saved}")
            comparison = read_comparison(saved)
            run = Path(sources[0])
            folders = sorted(run.rglob(ANALYSIS_NAME)) if run.is_dir() else []
            shown += [read_analysis(each.parent) for each in folders]
        else:
            comparison, left_out = _measure(sources, values)
        choice = choice_of(comparison, limits)
        save_text(page(comparison, limits, shown), html)
        if as_json:
            print_json(
                {
                    "html": html,
                    "deploy": choice.row,
                    "sentence": choice.sentence,
                    **({} if left_out is None else {"left_out": left_out}),
                }
            )
        else:
            print_words(choice.sentence, "bold")
            print_words(choice.reason)
            print_words(f"{html}: {len(comparison.rows)} rows")
        if choice.row is None and limits.flags():
            raise RefusedError(
                f"{choice.sentence} {choice.reason} Give other limits, or compare other models."
            )

    configs = (TaskConfig, LimitsConfig, CompareConfig)
    return command_with_flags(command, configs, optional=(TaskConfig,))


MODEL_FILES = (CARD_NAME, "config.json", "model.onnx")
"""Files in the folder of a model, but not in that of a run."""


def saved_in(sources: Sequence[str]) -> Path | None:
    """Return the saved comparison if it is the only source, or in a run's folder that is; None if
    the sources are models still to compare.

    Raises:
        ConfigError: a file or a run's folder is given with other sources; or a run has no
            comparison, or several.
    """
    paths = [*map(Path, sources)]
    saved = [path for path in paths if path.suffix == ".json" and not path.is_dir()]
    runs = [path for path in paths if is_run(path)]
    if not (saved or runs):
        return None
    if len(sources) > 1:
        raise ConfigError(
            f"{(saved or runs)[0]} is a saved table or the folder of a run, and a report is of one "
            f"alone; there are {len(sources)} sources. Give it alone, or models alone."
        )
    if saved:
        return saved[0]
    found = [path for path in sorted(runs[0].rglob("*.json")) if is_comparison(path)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(map(str, found))
        raise ConfigError(f"{runs[0]} has several tables: {names}. Give one of them.")
    raise ConfigError(
        f"{runs[0]} is neither a model nor a run with a table: its recipe has no step of stage "
        "compare. Give the models to compare, the reference first."
    )


def is_run(path: Path) -> bool:
    """Return whether a path is a folder that is not a model's."""
    return path.is_dir() and not any((path / name).is_file() for name in MODEL_FILES)


def is_comparison(path: Path) -> bool:
    """Return whether a JSON file is a saved comparison."""
    try:
        read_comparison(path)
    except DataError:
        return False
    return True


def analyse_command() -> Callable[..., None]:
    """Build `bertender analyse`."""

    def command(
        artifact: AnalysedArgument,
        out: AnalysisOut,
        values: dict[str, Any],
        as_json: JsonFlag = False,
    ) -> None:
        check_charts()
        config = AnalyseConfig.parse(settings_of(AnalyseConfig, values))
        source = api.opened(artifact)
        check_analysable(source)
        check_folder(out)
        task = api.task_of([source], settings_of(TaskConfig, values))
        from bertender.report.analyse import analyse

        analysis = analyse(source, task, config)
        files = save_analysis(analysis, out)
        lines = *analysis_lines(analysis), f"{out}: {', '.join(files)}"
        print_result(with_left_out(analysis, task.left_out), lines, as_json=as_json)

    return command_with_flags(command, (TaskConfig, AnalyseConfig), optional=(TaskConfig,))


def check_unused(
    context: typer.Context, names: Iterable[str], why: str, reason: str = "measures nothing"
) -> None:
    """Raise BadParameter for options that would have no effect.

    Args:
        context: context of the command.
        names: names of the options.
        why: beginning of the message.
        reason: why they would have none.
    """
    sources = {name: context.get_parameter_source(name) for name in names}
    unused = [name for name, each in sources.items() if each and each.name == "COMMANDLINE"]
    if unused:
        raise typer.BadParameter(f"{why} {reason}, so it takes no {', '.join(unused)}.")


def diff_command() -> Callable[..., None]:
    """Build `bertender diff`."""

    def command(
        first: Annotated[str, typer.Argument(metavar="FIRST", help="artifact")],
        second: Annotated[str, typer.Argument(metavar="SECOND", help="artifact to set beside it")],
        values: dict[str, Any],
        file: Annotated[
            Path | None,
            typer.Argument(
                metavar="FILE",
                help="texts, with labels or without; by default the held-out ones of FIRST",
            ),
        ] = None,
        output: Annotated[
            Path | None,
            typer.Option(
                "--output", metavar="FILE", help="write all differences to this .csv or .jsonl file"
            ),
        ] = None,
        as_json: JsonFlag = False,
    ) -> None:
        check_savable("--output", output, "data")
        if output and output.suffix.lower() not in SUFFIXES:
            raise typer.BadParameter(
                f"--output {output}: its name ends in {' or '.join(SUFFIXES)}."
            )
        config = DiffConfig.parse(settings_of(DiffConfig, values))
        if file is None and (
            unused := [each for each in RECORDED_SETTINGS if config.is_explicit(each)]
        ):
            raise typer.BadParameter(f"{config.as_set(unused)}: of a file, and no FILE is given.")
        artifacts = api.opened(first), api.opened(second)
        check_comparable(*artifacts)
        if file is None:
            task = api.task_of(artifacts, {})
        else:
            task = task_of_file(artifacts[0], file, config)
        found = differences(*artifacts, task)
        if output:
            save_differences(found, output)
        if as_json:
            print_json(with_left_out(found, task.left_out))
        else:
            print_differences(found, config.rows)

    return command_with_flags(command, (DiffConfig,))


def print_differences(found: Differences, rows: int) -> None:
    """Print the agreement of two models, and the first rows of their differences."""
    for line in difference_lines(found):
        print_words(line)
    shown = found.differences[:rows]
    if not shown:
        return
    print_words("")
    headings = ("row", "text", "gold", found.first, found.second, "at", "change")
    print_rows(headings, [difference_cells(each) for each in shown])
    if more := len(found.differences) - len(shown):
        print_words(f"and {more} more: --rows, or --output FILE", "dim")


def drift_command() -> Callable[..., None]:
    """Build `bertender drift`."""
    from bertender.comparison.drift import FILE_SETTINGS, DriftConfig

    def command(
        context: typer.Context,
        artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="the model")],
        file: Annotated[
            Path, typer.Argument(metavar="FILE", help="recent texts; labels are not read")
        ],
        values: dict[str, Any],
        out: OutFile = None,
        as_json: JsonFlag = False,
    ) -> None:
        check_savable("--out", out, "JSON")
        config = DriftConfig.parse(settings_of(DriftConfig, values))
        settings = settings_of(TaskConfig, values)
        of_files = {name: settings[name] for name in FILE_SETTINGS if name in settings}
        of_data = [name for name in TaskConfig.model_fields if name not in of_files]
        if config.reference is not None:
            check_unused(context, of_data, "--reference", "reads no task")
        model = api.opened(artifact)
        task = None
        if config.reference is None:
            # the columns are of FILE alone, unless files of the task are named besides
            named = {"task", "train", "dev"} & settings.keys()
            own = {name: value for name, value in settings.items() if name not in of_files}
            task = _task_or_advice(model, settings if named else own)
            if named and task.problem.gives_vectors:
                of_files.pop("pair_column", None)  # pairs are of training alone
        from bertender.comparison.drift import drift, drift_lines, require_no_drift

        found = drift(model, file, config, task, TaskConfig.parse(of_files))
        if out:
            save_result(found, out)
        print_result(found, drift_lines(found), as_json=as_json)
        require_no_drift(found)

    return command_with_flags(command, (TaskConfig, DriftConfig), optional=(TaskConfig,))


def _task_or_advice(artifact: Artifact, settings: dict[str, Any]) -> Task:
    """Return the task of an artifact; if its files are missing, the error names the options to
    give."""
    try:
        return api.task_of([artifact], settings)
    except (ConfigError, DataError, HubUnreachableError) as error:
        raise DataError(
            f"the texts that {artifact.place} was trained for cannot be read: {error} Or give "
            "--reference FILE, texts of that time that it has not learned from."
        ) from None


def show_parity(output: Path) -> None:
    """Print a saved parity."""
    parity = Verification.model_validate_json(output.read_text(encoding="utf-8"))
    print_words(
        f"{parity.candidate} predicts as {parity.reference} does: agreement "
        f"{parity.agreement:.4f} over {parity.texts} texts in {parity.rows} arrangements"
    )


def print_comparison(comparison: Comparison, wide: bool = False) -> None:
    """Print the table at full width: a narrow terminal wraps lines, but no cell is cut."""
    print_table(terminal_table(comparison, wide))


def _measure(
    paths: list[str], values: dict[str, Any], cascade: tuple[str, str] | None = None
) -> tuple[Comparison, LeftOutRows | None]:
    """Return the comparison, and the report on rows left out of its task."""
    config = CompareConfig.parse(settings_of(CompareConfig, values))
    artifacts = [api.opened(path) for path in paths]
    pair = None
    if cascade is not None:
        small, strong = (api.opened(path) for path in cascade)
        pair = small, strong
        # the strong model first: its replacement is compared with it
        known = {each.path.resolve() for each in artifacts}
        artifacts += [each for each in (strong, small) if each.path.resolve() not in known]
    task = api.task_of(artifacts, settings_of(TaskConfig, values))
    from bertender.comparison.compare import compare, runtime_note

    comparison = compare(artifacts, task, config, cascade=pair)
    if note := runtime_note(comparison):
        save_note(note)
    return comparison, task.left_out
