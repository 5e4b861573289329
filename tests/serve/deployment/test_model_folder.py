"""Versions in a repository: whole or absent, named in one step, swept and pruned."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ArtifactError, ConfigError
from serve.config import ServeConfig
from serve.repository import is_repository, write_repository
from serve.repository.config_pbtxt import read_model_config
from serve.server.targets import ModelFolder, model_folder
from tests.serve.deployment.conftest import Versions, snapshot


@pytest.fixture
def folder(versions: Versions, tmp_path: Path) -> ModelFolder:
    config = ServeConfig(max_batch_size=7, instances=2)
    return model_folder(write_repository(versions.old, tmp_path / "models", config), "classifier")


def test_a_version_is_added_before_it_is_named(folder: ModelFolder, versions: Versions) -> None:
    added = folder.add(versions.new)
    assert (added.number, folder.served, folder.versions) == (2, 1, [1, 2])
    assert folder.artifact(2).digest == versions.new.digest
    folder.select(added.config)
    config = folder.config
    assert folder.served == 2 and list(config.version_policy.specific.versions) == [2]
    assert (config.max_batch_size, config.instance_group[0].count) == (7, 2)
    assert config.parameters["digest"].string_value == versions.new.digest
    stamp = folder.artifact(2).stamp
    assert config.parameters["stamp"].string_value == stamp
    assert is_repository(folder.path.parent)


def test_inputs_and_outputs_are_those_of_the_new_artifact(
    folder: ModelFolder, pair_artifact: Artifact
) -> None:
    folder.select(folder.add(pair_artifact).config)
    assert [each.name for each in folder.config.input] == ["TEXT", "TEXT_PAIR"]


def test_what_a_killed_deployment_left_is_swept(folder: ModelFolder, versions: Versions) -> None:
    before = snapshot(folder.path.parent)
    folder.add(versions.new)
    folder.write_candidate(versions.new, folder.candidate)
    for draft in (".2.draft-1-x", "../.classifier-candidate.draft-1-x"):
        shutil.copytree(folder.path / "1", folder.path / draft)
    (folder.path / ".config.pbtxt.draft-1-x").write_text("half")
    (folder.candidate / "config.pbtxt").unlink()  # it was being removed
    assert is_repository(folder.path.parent), "drafts are nobody's work"
    folder.sweep()
    assert snapshot(folder.path.parent) == before


@pytest.mark.parametrize(("keep", "stay"), [(0, []), (1, [3]), (2, [2, 3]), (9, [1, 2, 3])])
def test_the_newest_of_the_earlier_versions_stay(
    keep: int, stay: list[int], folder: ModelFolder, versions: Versions
) -> None:
    for _ in range(3):
        folder.select(folder.add(versions.new).config)
    assert folder.prune(keep) == stay
    assert folder.versions == [*stay, 4]


def test_an_earlier_version_is_an_artifact_to_deploy(
    folder: ModelFolder, versions: Versions
) -> None:
    folder.select(folder.add(versions.new).config)
    folder.select(folder.add(folder.artifact(1)).config)
    folder.prune(0)
    assert Artifact.load(folder.path / "3" / "artifact").digest == versions.old.digest


def test_a_full_disk_leaves_the_served_version(
    folder: ModelFolder, versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(folder.path.parent)

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(ArtifactError, match=r"models cannot be written: No space left"):
        folder.add(versions.new)
    assert snapshot(folder.path.parent) == before


def test_a_candidate_has_the_settings_of_the_served_model(
    folder: ModelFolder, versions: Versions
) -> None:
    folder.write_candidate(versions.new, folder.candidate)
    config = read_model_config(folder.candidate / "config.pbtxt")
    assert (config.name, config.max_batch_size) == ("classifier-candidate", 7)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    with pytest.raises(ArtifactError, match="not a model repository of bertender"):
        model_folder(tmp_path, "classifier")


def test_a_model_that_is_not_there_is_named(folder: ModelFolder) -> None:
    with pytest.raises(ConfigError, match=r"no such model\. It has classifier"):
        model_folder(folder.path.parent, "zzz")
