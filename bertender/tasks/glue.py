"""The classification sets of GLUE: from local GLUE files where there are some, else from the hub.

Wang et al. 2018, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding", arXiv:1804.07461. The labels have the order of the hub's copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from bertender.core.environment import DATA_VARIABLE, data_directory
from bertender.core.errors import HubUnreachableError
from bertender.core.hub import PROBE_SECONDS, hub_knows
from bertender.tasks.files import Labelled, read_labelled
from bertender.tasks.rows import read_delimited
from bertender.tasks.task import Split

__all__ = ["GLUE", "GlueSet", "HUB_REPOSITORY", "load_glue", "read_files", "read_hub"]

HUB_REPOSITORY = "nyu-mll/glue"
HUB_PLACE = f"api/datasets/{HUB_REPOSITORY}"


@dataclass(frozen=True)
class GlueSet:
    """Where a set lies, and how its local files and the hub's copy write its columns and labels."""

    folder: str
    hub_name: str
    labels: tuple[str, ...]
    text_columns: tuple[str, ...]
    file_text_columns: tuple[str, ...]
    file_label_column: str
    file_labels: tuple[str, ...]
    file_columns: tuple[str, ...] = ()  # for files without a header

    def file(self, root: Path, split: str) -> Path:
        return root / self.folder / f"{split}.tsv"


GLUE: Mapping[str, GlueSet] = {
    "sst2": GlueSet(
        folder="SST-2",
        hub_name="sst2",
        labels=("negative", "positive"),
        text_columns=("sentence",),
        file_text_columns=("sentence",),
        file_label_column="label",
        file_labels=("0", "1"),
    ),
    "cola": GlueSet(
        folder="CoLA",
        hub_name="cola",
        labels=("unacceptable", "acceptable"),
        text_columns=("sentence",),
        file_text_columns=("sentence",),
        file_label_column="label",
        file_labels=("0", "1"),
        file_columns=("source", "label", "mark", "sentence"),
    ),
    "mrpc": GlueSet(
        folder="MRPC",
        hub_name="mrpc",
        labels=("not_equivalent", "equivalent"),
        text_columns=("sentence1", "sentence2"),
        file_text_columns=("#1 String", "#2 String"),
        file_label_column="Quality",
        file_labels=("0", "1"),
    ),
    "rte": GlueSet(
        folder="RTE",
        hub_name="rte",
        labels=("entailment", "not_entailment"),
        text_columns=("sentence1", "sentence2"),
        file_text_columns=("sentence1", "sentence2"),
        file_label_column="label",
        file_labels=("entailment", "not_entailment"),
    ),
}


def load_glue(name: str) -> tuple[Split, Split]:
    """Return the training and the held-out split of a row of GLUE.

    Raises:
        DataError: a local file is wrong.
        HubUnreachableError: there are no local files, and no hub answers.
    """
    glue, root = GLUE[name], data_directory()
    if root is not None and (root / glue.folder).is_dir():
        return read_files(glue, root)
    return read_hub(glue)


def read_files(glue: GlueSet, root: Path) -> tuple[Split, Split]:
    """Read both splits from `root`, a folder of GLUE files as GLUE's own download script makes."""
    train, dev = (
        _read_file(glue, glue.file(root, split)).split(glue.file_labels, f"GLUE's {glue.folder}")
        for split in ("train", "dev")
    )
    return train, dev


def read_hub(glue: GlueSet, repository: str = HUB_REPOSITORY) -> tuple[Split, Split]:
    """Read both splits with `datasets` from the hub, its cache, or a local copy of the repository.

    Raises:
        HubUnreachableError: the data are in none of these places; known within seconds.
    """
    if not (constants.HF_HUB_OFFLINE or Path(repository).is_dir() or hub_knows(HUB_PLACE)):
        raise _unreachable(glue, f"{constants.ENDPOINT} did not answer in {PROBE_SECONDS:.0f} s")
    import datasets  # a second of imports that local files do without

    try:
        data = datasets.load_dataset(repository, glue.hub_name)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise _unreachable(glue, str(error)) from None
    return _hub_split(glue, data["train"]), _hub_split(glue, data["validation"])


def _read_file(glue: GlueSet, path: Path) -> Labelled:
    table = read_delimited(path, delimiter="\t", quoted=False, columns=glue.file_columns)
    return read_labelled(table, glue.file_text_columns, glue.file_label_column)


def _hub_split(glue: GlueSet, rows: Mapping[str, list[str]]) -> Split:
    columns = ([text.strip() for text in rows[column]] for column in glue.text_columns)
    return Split(tuple(zip(*columns, strict=True)), tuple(map(int, rows["label"])))


def _unreachable(glue: GlueSet, reason: str) -> HubUnreachableError:
    return HubUnreachableError(
        f"the GLUE set {glue.folder} is not on this machine, and the hub cannot be used: {reason}. "
        f"Either set {DATA_VARIABLE} to a folder that holds {glue.folder}/train.tsv and "
        f"{glue.folder}/dev.tsv, or go online (and unset HF_HUB_OFFLINE). Files of your own: "
        "--train and --dev."
    )
