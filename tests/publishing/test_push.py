"""Pushing artifacts to a hub, a stand-in on loopback, and opening them by name afterwards."""

from __future__ import annotations

import json
import shutil
import socket
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

import bertender
from bertender.core.artifact import Artifact
from bertender.core.card import CARD_NAME, LeftOutRow, LeftOutRows
from bertender.core.errors import (
    ConfigError,
    DamagedArtifactError,
    HubRefusedError,
    HubUnreachableError,
)
from bertender.core.findings import TeacherFileFindings
from bertender.models.importing import open_artifact
from bertender.publishing.push import PushConfig, push
from bertender.tasks.task import Task
from tests.front import fail, invoke, last_line, succeed
from tests.stand_in_hub import READER, WRITER, Hub, Repository
from tests.toys import new_toy, tiny_bert, tiny_tokenizer, write_model

REPO = "anna/toy-reviews"


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Artifact:
    """An artifact whose card has paths of this machine."""
    folder = tmp_path_factory.mktemp("placed")
    source = {"task": "toy", "train": str(folder / "train.csv"), "dev": None}
    tokenizer = tiny_tokenizer()
    model = tiny_bert(len(tokenizer), task.labels)
    return write_model(model, tokenizer, replace(task, source=source), folder / "reviews")


def test_the_artifact_comes_back_by_the_name_of_the_repository(
    hub: Hub, placed: Artifact, tmp_path: Path
) -> None:
    pushed = push(placed, REPO, PushConfig())
    assert (pushed.digest, pushed.private) == (placed.digest, False)
    assert {*hub.repositories[REPO].files} == {*placed.card.files, CARD_NAME, "README.md"}
    opened = open_artifact(REPO)
    assert (opened.digest, opened.name) == (placed.digest, "toy-reviews")
    assert opened.card.stage == placed.card.stage, "not imported anew"
    texts = [("apple pear",), ("saw",)]
    own, other = (bertender.open_model(each).logits(texts) for each in (placed, REPO))
    np.testing.assert_array_equal(own, other)
    imported = bertender.import_model(REPO, out=tmp_path / "imported")
    assert imported.digest == placed.digest
    assert bertender.import_model(REPO, out=tmp_path / "imported", force=True)
    with pytest.raises(ConfigError, match="is an artifact, which has its own"):
        bertender.import_model(REPO, out=tmp_path / "other", labels=["a", "b"])


def test_no_path_of_this_machine_is_published(hub: Hub, placed: Artifact) -> None:
    scored = str(placed.path.parent / "scored")
    learned = TeacherFileFindings(path=scored, sha256="", form="labels", rows=3, gold=0)
    findings = placed.card.findings.model_copy(update={"teacher_file": learned})
    card = placed.card.model_copy(update={"findings": findings})
    push(replace(placed, card=card), REPO, PushConfig())
    files = hub.repositories[REPO].files
    assert b"train.csv" in files[CARD_NAME] and b'"scored"' in files[CARD_NAME]
    folder = str(placed.path.parent).encode()
    assert [name for name, content in files.items() if folder in content] == []


def test_an_older_artifact_goes_and_other_files_stay(
    hub: Hub, placed: Artifact, exported: Artifact
) -> None:
    push(exported, REPO, PushConfig(private=True))
    hub.repositories[REPO].files[".gitattributes"] = b""
    pushed = push(placed, REPO, PushConfig())
    assert pushed.removed == ("golden.json", "model.onnx") and pushed.private
    assert {*hub.repositories[REPO].files} - {*pushed.files} == {".gitattributes"}


def test_a_model_that_no_push_has_put_there_stays(hub: Hub, placed: Artifact) -> None:
    hub.repositories[REPO] = Repository(files={"pytorch_model.bin": b"", "README.md": b"theirs"})
    with pytest.raises(HubRefusedError, match=r"has put there: pytorch_model.bin\. Give --force"):
        push(placed, REPO, PushConfig())
    assert hub.repositories[REPO].files["README.md"] == b"theirs"
    push(placed, REPO, PushConfig(), force=True)
    assert "pytorch_model.bin" in hub.repositories[REPO].files


def test_texts_of_the_task_become_public_only_where_that_is_wanted(
    hub: Hub, exported: Artifact
) -> None:
    with pytest.raises(ConfigError, match=r"golden.json holds texts of task 'toy'.*--private"):
        push(exported, REPO, PushConfig())
    assert not hub.repositories
    push(exported, REPO, PushConfig(private=True))
    assert hub.repositories[REPO].private
    push(exported, REPO, PushConfig())  # it is private already
    push(exported, "anna/open", PushConfig(publish_texts=True))
    assert not hub.repositories["anna/open"].private


@pytest.mark.parametrize("rows", [[], [{"text": "a pear"}]])
def test_a_browser_bundle_without_texts_may_be_public(
    rows: list[dict[str, str]], hub: Hub, task: Task, tmp_path: Path
) -> None:
    """Its page reads texts.json also of a bundle made with --golden-texts 0."""
    made = tmp_path / "bundle"
    with new_toy(made, kind="bundle", family="bert", task=task.record(), stage="bundle") as draft:
        (draft.directory / "texts.json").write_text(json.dumps({"rows": rows}))
    refused = pytest.raises(ConfigError, match=r"texts.json holds texts of task 'toy'")
    with refused if rows else nullcontext():
        push(Artifact.load(made), REPO, PushConfig())


def test_reasons_of_left_out_rows_show_no_texts_in_public(hub: Hub, placed: Artifact) -> None:
    """They quote the cells; how many rows were left out is no secret."""
    row = LeftOutRow(file="/data/train.csv", place="line 3", reason="'Dear Ms Miller' is no label")
    record = placed.card.task.model_copy(update={"left_out": LeftOutRows(count=7, first=(row,))})
    made = replace(placed, card=placed.card.model_copy(update={"task": record}))
    cards = [
        (PushConfig(), False),
        (PushConfig(publish_texts=True), True),
        (PushConfig(private=True), True),
    ]
    for number, (config, is_shown) in enumerate(cards):
        push(made, f"{REPO}-{number}", config)
        card = hub.repositories[f"{REPO}-{number}"].files[CARD_NAME]
        assert (b"Miller" in card) == is_shown and b'"count": 7' in card
        assert b"/data" not in card


def test_private_is_no_empty_promise(hub: Hub, placed: Artifact) -> None:
    hub.repositories[REPO] = Repository()
    with pytest.raises(ConfigError, match="is there already, and is public"):
        push(placed, REPO, PushConfig(private=True))


def test_a_readme_of_the_user_is_pushed_as_it_is(
    hub: Hub, placed: Artifact, tmp_path: Path
) -> None:
    shutil.copytree(placed.path, tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("mine")
    copy = Artifact.load(tmp_path / "copy")
    push(copy, REPO, PushConfig())
    assert hub.repositories[REPO].files["README.md"] == b"mine"
    with pytest.raises(ConfigError, match=r"license=mit: .*README.md is pushed as it is"):
        push(copy, REPO, PushConfig(license="mit"))


def test_a_damaged_artifact_is_not_pushed(hub: Hub, placed: Artifact, tmp_path: Path) -> None:
    shutil.copytree(placed.path, tmp_path / "copy")
    (tmp_path / "copy" / "config.json").write_text("{}")
    with pytest.raises(DamagedArtifactError, match=r"config.json differs"):
        push(Artifact.load(tmp_path / "copy", verify=False), REPO, PushConfig())
    assert not hub.requests


@pytest.mark.parametrize("name", ["toy", "a/b/c", "anna/toy reviews", "anna/--toy"])
def test_a_name_that_no_hub_takes_is_refused_at_once(name: str, hub: Hub, placed: Artifact) -> None:
    with pytest.raises(ConfigError, match=r"is no name of a repository: .* Give OWNER/NAME"):
        push(placed, name, PushConfig())
    assert not hub.requests


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (READER, "the token has no right to write to anna/toy-reviews: .*Is 'anna' you"),
        ("hf_expired", "the hub does not accept the token. Make one"),
    ],
)
def test_who_may_not_write_is_told_the_next_step(
    token: str, said: str, hub: Hub, placed: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(HubRefusedError, match=said):
        push(placed, REPO, PushConfig())
    hub.repositories[REPO] = Repository()
    with pytest.raises(HubRefusedError, match=said):
        push(placed, REPO, PushConfig())


def test_without_a_token_nobody_is_asked(
    hub: Hub, placed: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(HubRefusedError, match=r"no token of a hub is set.*--token-file"):
        push(placed, REPO, PushConfig())
    assert not hub.requests


def test_without_a_network_it_says_so(
    hub: Hub, placed: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    with pytest.raises(HubUnreachableError, match=f"no hub responds at {address}.*HF_ENDPOINT"):
        push(placed, REPO, PushConfig())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachableError, match="HF_HUB_OFFLINE is set"):
        push(placed, REPO, PushConfig())


def test_the_command_shows_no_token(
    hub: Hub, placed: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    file = tmp_path / "token"
    file.write_text(f"{WRITER}\n")
    words = ("push", placed.path, REPO, "--token-file", file, "--license", "apache-2.0")
    result = invoke("--verbose", *words)
    assert result.exit_code == 0 and f"{hub.url}/{REPO}/commit/" in result.stdout, result.output
    assert b"license: apache-2.0" in hub.repositories[REPO].files["README.md"]
    assert last_line(succeed(*words, "--json"))["digest"] == placed.digest
    file.write_text(READER)
    refused = invoke("--verbose", *words)
    assert refused.exit_code == 2
    for said in (result.output, refused.output):
        assert not any(token in said for token in (WRITER, READER))
    file.write_text("two words")
    assert "no token in it" in fail(*words)
    file.unlink()
    assert f"token_file={file}: No such file" in fail(*words)


def test_a_public_repository_opens_without_a_token(
    hub: Hub, placed: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(placed, REPO, PushConfig())
    monkeypatch.delenv("HF_TOKEN")
    assert open_artifact(REPO).digest == placed.digest


def test_an_artifact_without_files_of_a_model_is_pushed_as_well(
    hub: Hub, task: Task, tmp_path: Path
) -> None:
    """A file in a folder, as bundles have them."""
    made = tmp_path / "bundle"
    with new_toy(made, kind="bundle", family="bert", task=task.record(), stage="bundle") as draft:
        (draft.directory / "onnx").mkdir()
        (draft.directory / "onnx" / "page.txt").write_text("a page")
    bundle = Artifact.load(made)
    push(bundle, REPO, PushConfig())
    assert open_artifact(REPO).digest == bundle.digest
