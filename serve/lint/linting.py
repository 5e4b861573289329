"""Lint a model repository: read it, and hold every model against LINT_RULES."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from bertender.core.errors import ArtifactError
from serve.lint.findings import Fault, Finding, Severity
from serve.lint.reading import ReadModel, ReadRepository, read_repository
from serve.lint.rules import LINT_RULES

logger = logging.getLogger(__name__)

SYNTAX, NO_CONFIG = "syntax", "no-config"
"""What is found before any rule applies."""


UNREADABLE = (OSError, ValueError, RecursionError)
"""What rules raise for names, numbers of enumerations and files that no sound model has."""


def lint_repository(directory: Path) -> tuple[Finding, ...]:
    """Return what is wrong with a model repository; nothing is run, and no server is asked.

    Raises:
        ArtifactError: `directory` holds no model.
    """
    repository = read_repository(directory)
    return tuple(
        finding for model in repository.models.values() for finding in _findings(model, repository)
    )


def check_repository(directory: Path) -> None:
    """Raise ArtifactError for the errors of a repository; its warnings are logged."""
    findings = lint_repository(directory)
    for finding in findings:
        if finding.severity == "warning":
            logger.warning("%s", finding.line)
    errors = [each for each in findings if each.severity == "error"]
    if errors:
        raise ArtifactError(
            "Triton would not load this repository, so it is not written. "
            + "; ".join(each.line for each in errors)
        )


def _findings(model: ReadModel, repository: ReadRepository) -> Iterator[Finding]:
    if model.config is None:
        yield _unread(model, repository)
        return
    for name, rule in LINT_RULES.items():
        try:
            faults = [*rule.look(model, repository)]
        except UNREADABLE as error:  # one hostile or odd model must not hide the others
            faults = [Fault(model.config_file, "", str(error), "what can be read")]
        for fault in faults:
            yield _reported(fault, name, rule.severity, repository.directory)


def _unread(model: ReadModel, repository: ReadRepository) -> Finding:
    """Return the finding on a model without a configuration that can be read."""
    if not model.problem:
        allowed = "one that is written: without it, Triton completes what it can from the model"
        fault = Fault(model.config_file, "", "missing", allowed)
        return _reported(fault, NO_CONFIG, "warning", repository.directory)
    field = f"line {model.line}" if model.line else ""
    fault = Fault(model.config_file, field, model.problem, "text of Triton's model_config.proto")
    return _reported(fault, SYNTAX, "error", repository.directory)


def _reported(fault: Fault, rule: str, severity: Severity, directory: Path) -> Finding:
    return Finding(
        severity=severity,
        rule=rule,
        file=os.path.relpath(fault.file, directory),
        field=fault.field,
        value=fault.value,
        allowed=fault.allowed,
    )
