"""Bundling: a graph with its tokenizer in the layout of another program, behind the parity gate.

A program is a class in its own file. The check uses only the files of the bundle, on the texts of
the gate, against the artifact in ONNX Runtime; a bundle with other predictions is not written.
"""

from __future__ import annotations

from pathlib import Path

from bertender.core.artifact import Artifact, check_writable, new_artifact
from bertender.core.errors import ModelError
from bertender.core.findings import Findings
from bertender.gate.artifacts import open_source
from bertender.gate.judge import TOLERANCES, check_parity, labelled_sample, require_parity
from bertender.tasks.task import Task
from export.bundle.browser import Browser
from export.bundle.openvino import OpenVinoFolder
from export.bundle.program import Program
from export.bundle.single_file import SingleFile
from export.config import BROWSER, OPENVINO, SINGLE_FILE, BundleConfig

PROGRAM_CLASSES: dict[str, type[Program]] = {
    BROWSER: Browser,
    OPENVINO: OpenVinoFolder,
    SINGLE_FILE: SingleFile,
}
"""Row of PROGRAMS -> class that writes and opens its folder."""


def check_target(config: BundleConfig, source: Artifact) -> None:
    """Raise an error if a source or its kind of problem has no bundle, before any work.

    Raises:
        ConfigError: settings contradict each other.
        ModelError: the program does not support the source.
        RuntimeMissingError: the program that checks the bundle is not installed.
    """
    config.check_rules()
    if source.card.kind not in ("torch", "onnx") or not source.card.task.labels:
        raise ModelError(
            f"{source.place} is of kind {source.card.kind!r} (stage {source.card.stage!r}); only "
            "graphs are bundled, and torch classifiers, which are exported first. Give the "
            "artifact of `export` or `quantize`."
        )
    _program(config).check(source)


def bundle(source: Artifact, task: Task, config: BundleConfig, out: Path) -> Artifact:
    """Write an onnx artifact as a bundle, and check that the bundle's files predict the same.

    Raises:
        ParityError: the predictions differ; nothing is written then. Errors of `check_target` are
            raised too.
    """
    check_target(config, source)
    check_writable(out, source)
    program, opened = _program(config), open_source(source, task)
    card = source.card
    with new_artifact(
        out,
        kind="bundle",
        family=card.family,
        task=card.task,
        stage="bundle",
        config=config,
        seed=config.seed,
        precision=card.precision,
        max_length=card.max_length,
        parent=source,
    ) as draft:
        program.write(source, draft.directory)
        candidate = program.open(source, draft.directory, opened.parameters, out.name)
        examples, truth = labelled_sample(task, task.choices, config.parity_texts, config.seed)
        bounds = TOLERANCES[program.tolerance(source)]
        parity = check_parity(opened, candidate, examples, bounds, seed=config.seed, truth=truth)
        require_parity(parity, program.next_step)
        draft.findings = Findings(
            parameters=opened.parameters,
            bundle=program.complete(source, opened, examples, draft.directory),
            parity=parity.summary(),
        )
    return Artifact.load(out)


def _program(config: BundleConfig) -> Program:
    assert config.to is not None  # BUNDLE_RULES
    return PROGRAM_CLASSES[config.to](config)
