"""Tiny real models and tasks, made here: no network, no hub, no file from outside."""

from __future__ import annotations

import copy
import gc
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# before torch is imported: tiny models are slower on more threads, and far slower beside other work
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.config import Config
from bertender.core.findings import Findings
from bertender.measure import load
from bertender.tasks.task import Split, Task
from distill.vocabularies.wordpiece import train_wordpiece
from tests.repeats import repeats

FRUIT = ("apple", "pear", "plum", "cherry", "grape", "melon")
TOOLS = ("hammer", "saw", "drill", "wrench", "pliers", "chisel")


class NoConfig(Config):
    """The config of an artifact that a test made by hand."""


def toy_task(train_size: int = 96, dev_size: int = 32) -> Task:
    """Two classes told apart by their words; texts of 3 to 14 words, so that lengths differ."""
    generator = torch.Generator().manual_seed(7)

    def split(size: int, offset: int) -> Split:
        examples, labels = [], []
        for row in range(size):
            words = (FRUIT, TOOLS)[row % 2]
            count = int(torch.randint(2, 14, (), generator=generator))
            picks = torch.randint(0, len(words), (count,), generator=generator).tolist()
            text = " ".join(words[pick] for pick in picks)
            examples.append((f"{text} number {row + offset}",))
            labels.append(row % 2)
        return Split(tuple(examples), tuple(labels))

    return Task(
        "toy", ("fruit", "tool"), "accuracy", ("text",), split(train_size, 0), split(dev_size, 900)
    )


def tiny_tokenizer() -> BertTokenizerFast:
    """A WordPiece tokenizer of a few hundred pieces, trained on the toy words."""
    return copy.deepcopy(_trained_tokenizer())


@cache
def _trained_tokenizer() -> BertTokenizerFast:
    words, numbers = " ".join((*FRUIT, *TOOLS, "number")), " ".join(map(str, range(1000)))
    # so often that the words stay whole
    return train_wordpiece([*[words] * 200, numbers], 300, 64)


def tiny_bert(vocab_size: int, labels: tuple[str, ...]) -> BertForSequenceClassification:
    """A BERT of 4 layers x 32 that nobody has trained; the same weights every time."""
    torch.manual_seed(3)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
            id2label=dict(enumerate(labels)),
            label2id={label: index for index, label in enumerate(labels)},
        )
    ).eval()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests cache out of the user's own cache, and its content out of the tests."""
    if os.environ.get("BERTENDER_CACHE"):
        yield
        return
    os.environ["BERTENDER_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["BERTENDER_CACHE"]


@pytest.fixture(scope="session", autouse=True)
def nobody_else() -> Iterator[None]:
    """Hide how busy the machine is: tests run beside each other, and none is to be refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "cpu_seconds", lambda: None)
        yield


@pytest.fixture(scope="session")
def task() -> Task:
    return toy_task()


def write_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, out: Path
) -> Artifact:
    """Write a torch artifact of a model as it is, as if `finetune` had."""
    with new_artifact(
        out,
        kind="torch",
        family=model.config.model_type,
        task=task.record(),
        stage="finetune",
        config=NoConfig(),
        seed=0,
    ) as draft:
        model.save_pretrained(draft.directory)
        tokenizer.save_pretrained(draft.directory)
        draft.findings = Findings(parameters=model.num_parameters())
    return Artifact.load(out)


Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Make a folder once in a run, whichever process needs it first: (name, fill) -> the folder.

    What is in it is shared by tests, which only read it.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name: str, fill: Callable[[Path], object]) -> Path:
        folder = shared / "once" / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        whole = folder.with_name(f"{name}.whole")
        with FileLock(folder.with_name(f"{name}.lock")):
            if not whole.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                whole.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def teacher(once: Once, task: Task) -> Artifact:
    """A torch artifact of the tiny BERT."""

    def fill(folder: Path) -> None:
        tokenizer = tiny_tokenizer()
        write_model(tiny_bert(len(tokenizer), task.labels), tokenizer, task, folder / "teacher")

    return Artifact.load(once("teacher", fill) / "teacher")


@pytest.fixture(scope="session")
def plain_export(once: Once, task: Task) -> Callable[[str], tuple[Artifact, Artifact]]:
    """The export of a tiny encoder of each architecture, as `tests.exports` says."""
    from tests.exports import write_plain_export  # which takes a second, and needs this module

    def exported(model_type: str) -> tuple[Artifact, Artifact]:
        folder = once(
            f"export-{model_type}", lambda folder: write_plain_export(model_type, task, folder)
        )
        return Artifact.load(folder / "source"), Artifact.load(folder / "onnx")

    return exported


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what repeats a path, before `-m` chooses."""
    for item in repeats(items):
        item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Take what was imported and collected out of the garbage collector's sight.

    Every training ends in a full collection, which read two million objects of modules and tests:
    half a second, a fifth of the suite.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def data_directory() -> Path:
    """The folder of real data sets, or a skip that says how to have it."""
    folder = os.environ.get("BERTENDER_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs real data sets: set BERTENDER_DATA to a folder of GLUE files")
    return Path(folder)
