"""Reading a set of GLUE: from local GLUE files where there are some, else from the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import constants

from bertender.core.environment import DATA_VARIABLE, data_directory
from bertender.core.errors import HubUnreachableError
from bertender.core.hub import PROBE_SECONDS, hub_knows
from bertender.tasks.glue_sets import GLUE, GlueSet
from bertender.tasks.labelled import Labelled, read_labelled
from bertender.tasks.rows import read_delimited
from bertender.tasks.task import Split

__all__ = ["HUB_REPOSITORY", "load_glue", "read_files", "read_hub"]

HUB_REPOSITORY = "nyu-mll/glue"
HUB_PLACE = f"api/datasets/{HUB_REPOSITORY}"


def load_glue(name: str) -> tuple[Split, Split]:
    """Return the training and the held-out split of a row of GLUE.

    Raises:
        DataError: a local file is wrong.
        HubUnreachableError: there are no local files, and no hub responds.
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
        raise _unreachable(glue, f"{constants.ENDPOINT} did not respond in {PROBE_SECONDS:.0f} s")
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
