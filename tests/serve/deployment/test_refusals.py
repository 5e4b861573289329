"""What does not take the place of the served model: it goes on, and nothing else is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bertender.core.artifact import Artifact, GoldenTexts
from bertender.core.errors import (
    ArtifactError,
    BertenderError,
    BusyError,
    ConfigError,
    DamagedArtifactError,
    DeploymentError,
    ServingError,
)
from bertender.tasks.task import Task
from bertender.text.tokenizer import stated_longest_input
from export.config import ExportConfig
from export.exporter import export
from serve import repository as repositories
from serve.config import DeployConfig, ServeConfig
from serve.deploy import deploy
from serve.repository import MODEL_FILE, write_repository
from serve.server import targets as model_folders
from serve.server.targets import FolderTarget, held
from tests.problems.kinds import graph_of as graph_of
from tests.serve.deployment.conftest import (
    Deployable,
    Versions,
    answered_by,
    asking,
    changed,
    logits_of,
    snapshot,
)

pytestmark = pytest.mark.server


def other_answers(golden: GoldenTexts) -> GoldenTexts:
    """The third text was answered otherwise when the artifact was made."""
    texts = list(golden.texts)
    (row,) = texts[2].logits
    other = {"fruit": "tool", "tool": "fruit"}[str(texts[2].label)]
    texts[2] = texts[2].model_copy(update={"label": other, "logits": (row[::-1],)})
    return golden.model_copy(update={"texts": tuple(texts)})


def disagreeing(artifact: Artifact, folder: Path) -> Artifact:
    return changed(artifact, folder / "disagreeing", golden=other_answers)


def unloadable(artifact: Artifact, folder: Path) -> Artifact:
    return changed(artifact, folder / "unloadable", graph=lambda graph: graph[: len(graph) // 2])


def damaged(artifact: Artifact, folder: Path) -> Artifact:
    copy = changed(artifact, folder / "damaged")
    (copy.path / "model.onnx").write_bytes(b"half of it")
    return copy


Broken = Callable[[Artifact, Path], Artifact]
BROKEN: dict[str, tuple[Broken, type[BertenderError], str]] = {
    "answers otherwise": (
        disagreeing,
        DeploymentError,
        r"golden text 3 of 8 \(label '(fruit|tool)'\) is predicted '(fruit|tool)'; its logits "
        r"differ by \d",
    ),
    "does not load": (unloadable, DeploymentError, "load failed for model 'classifier-candidate'"),
    "is damaged": (damaged, DamagedArtifactError, r"model\.onnx differs"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_candidate_that_is_wrong_changes_nothing(
    name: str, versions: Versions, running: Deployable, tmp_path: Path
) -> None:
    make, kind, said = BROKEN[name]
    candidate, repository = make(versions.new, tmp_path), running.server.repository
    before = snapshot(repository)
    with asking(running.server.http_url) as clients:
        with pytest.raises(kind, match=said) as caught:
            deploy(candidate, running.server.http_url, running.config)
        time.sleep(0.2)
    assert answered_by(clients.answers, versions.old) == [True]
    assert snapshot(repository) == before
    assert running.loaded() == {"classifier": {1}}
    assert "number" not in str(caught.value), "no text of the task is in an error"


CODE = {
    "hangs while it loads": "\nimport time\ntime.sleep(1000)\n",
    "hangs at a text": """
class TritonPythonModel(TritonPythonModel):
    def execute(self, requests):
        import time
        time.sleep(1000)
""",
    "dies of a text": """
class TritonPythonModel(TritonPythonModel):
    def execute(self, requests):
        os._exit(3)
""",
}
"""Ways of a candidate's process to end or not, added to its model.py."""
HANGS_S = 8.0
HTTP_THREADS = 8
"""Of Triton: so many connections meet each of them, and one that is held would show."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CODE)
def test_a_candidate_that_hangs_or_dies_takes_nobody_with_it(
    name: str,
    versions: Versions,
    running: Deployable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = running.server.repository
    before = snapshot(repository)
    config = running.config.model_copy(update={"timeout_s": HANGS_S})
    urls = [running.server.http_url] * HTTP_THREADS
    with asking(*urls) as clients:
        with monkeypatch.context() as patch:
            patch.setattr(repositories, "MODEL_FILE", MODEL_FILE + CODE[name])
            with pytest.raises(DeploymentError, match="does not take the place of 'classifier'"):
                deploy(versions.new, running.server.http_url, config)
        time.sleep(3)  # the supervisor has had the time to look
        running.answer()  # as does who comes anew
    assert answered_by(clients.answers, versions.old) == [True]
    assert clients.longest_s < HANGS_S / 2, "nobody waits for the candidate"
    assert snapshot(repository) == before
    assert running.loaded() == {"classifier": {1}}
    np.testing.assert_allclose(running.answer(), logits_of(versions.old), atol=1e-4)


@pytest.mark.slow
def test_a_version_that_hangs_in_the_place_of_the_served_one_is_taken_back(
    versions: Versions, running: Deployable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The candidate was right, and the same files do not load a second time."""
    repository = running.server.repository
    before, fill = snapshot(repository), model_folders.fill_version

    def hanging(version: Path, artifact: Artifact, *, is_temporary: bool) -> str:
        stamp = fill(version, artifact, is_temporary=is_temporary)
        if "classifier-candidate" not in str(version):
            (version / "model.py").write_text(MODEL_FILE + CODE["hangs while it loads"])
        return stamp

    monkeypatch.setattr(model_folders, "fill_version", hanging)
    config = running.config.model_copy(update={"timeout_s": HANGS_S})
    with asking(running.server.http_url) as clients:
        with pytest.raises(
            DeploymentError, match=r"version 1, which goes on: .* (did|does) not load"
        ):
            deploy(versions.new, running.server.http_url, config)
        time.sleep(3)  # the supervisor has had the time to look
    assert answered_by(clients.answers, versions.old) == [True]
    assert snapshot(repository) == before
    assert running.loaded() == {"classifier": {1}}


@pytest.mark.parametrize("place", ["server", "directory"])
def test_a_model_of_another_task_is_refused(
    place: str, of_another_task: Artifact, running: Deployable
) -> None:
    server = running.server
    to = {"server": server.http_url, "directory": str(server.repository)}[place]
    config = {"server": running.config, "directory": DeployConfig()}[place]
    with pytest.raises(
        DeploymentError, match=r"labels red, blue, served fruit, tool.*--other-task"
    ):
        deploy(of_another_task, to, config)
    assert running.loaded() == {"classifier": {1}}


def test_a_candidate_of_a_directory_that_is_wrong_changes_nothing(
    versions: Versions, tmp_path: Path
) -> None:
    repository = write_repository(versions.old, tmp_path / "models", ServeConfig())
    before = snapshot(tmp_path / "models")
    candidate = disagreeing(versions.new, tmp_path)
    with pytest.raises(DeploymentError, match="golden text 3 of 8"):
        deploy(candidate, str(repository), DeployConfig())
    assert snapshot(tmp_path / "models") == before


def test_vectors_of_another_length_are_refused(
    graph_of: Callable[[str], Artifact], tmp_path: Path
) -> None:
    """Clients keep vectors, and compare new ones with them."""

    def halved(golden: GoldenTexts) -> GoldenTexts:
        texts = [
            each.model_copy(update={"logits": tuple(row[: len(row) // 2] for row in each.logits)})
            for each in golden.texts
        ]
        return golden.model_copy(update={"texts": tuple(texts)})

    served = graph_of("sentence_embedding")
    repository = write_repository(served, tmp_path / "models", ServeConfig())
    candidate = changed(served, tmp_path / "half", golden=halved)
    with pytest.raises(DeploymentError, match=r"length of a vector 16, served 32.*--other-task"):
        deploy(candidate, str(repository), DeployConfig())


@pytest.mark.parametrize(
    ("turned", "said"), [(False, ""), (True, "golden texts, the mean cosine is")]
)
def test_vectors_that_clients_cannot_compare_come_with_a_warning(
    turned: bool,
    said: str,
    graph_of: Callable[[str], Artifact],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another encoder of the same width: an index of the earlier vectors finds anything."""

    def other(golden: GoldenTexts) -> GoldenTexts:
        texts = [
            each.model_copy(update={"logits": tuple(row[::-1] for row in each.logits)})
            for each in golden.texts
        ]
        return golden.model_copy(update={"texts": tuple(texts)}) if turned else golden

    served = graph_of("sentence_embedding")
    repository = write_repository(served, tmp_path / "models", ServeConfig())
    candidate = changed(served, tmp_path / "other", golden=other)
    if turned:
        with pytest.raises(DeploymentError, match="golden text"):  # its graph says otherwise
            deploy(candidate, str(repository), DeployConfig())
    else:
        deploy(candidate, str(repository), DeployConfig())
    assert (said in caplog.text) if said else ("vectors" not in caplog.text)


def test_a_task_learned_from_a_newer_file_is_the_same_task(
    versions: Versions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repository = write_repository(versions.old, tmp_path / "models", ServeConfig())
    renamed = changed(versions.new, tmp_path / "renamed", task_name="train-2027")
    assert deploy(renamed, str(repository), DeployConfig()).version == 2
    assert "learned 'train-2027'" in caplog.text


def test_what_a_model_of_another_task_differs_in_is_not_said(
    versions: Versions,
    graph_of: Callable[[str], Artifact],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Even if the served version cannot be read."""
    repository = write_repository(versions.old, tmp_path / "models", ServeConfig())
    (repository / "classifier" / "1" / "artifact" / "artifact.json").write_text("{}")
    config = DeployConfig(other_task=True)
    assert deploy(graph_of("sentence_embedding"), str(repository), config).version == 2
    assert "learned" not in caplog.text and "vectors" not in caplog.text


def test_a_server_that_goes_after_the_switch_undoes_nothing(
    versions: Versions,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(target: FolderTarget, folder: object) -> None:
        raise ServingError("the server does not listen")

    monkeypatch.setattr(FolderTarget, "settle", gone)
    repository = write_repository(versions.old, tmp_path / "models", ServeConfig())
    assert deploy(versions.new, str(repository), DeployConfig()).version == 2
    assert "the server does not listen" in caplog.text


@pytest.mark.parametrize(("served", "shorter"), [(None, True), (16, False)])
def test_a_model_that_reads_fewer_tokens_comes_with_a_warning(
    served: int | None,
    shorter: bool,
    versions: Versions,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No golden text shows it: each is as long as the model itself reads."""
    limits = ServeConfig(max_length=served)
    repository = write_repository(versions.old, tmp_path / "models", limits)
    candidate = changed(versions.new, tmp_path / "shorter", golden=other_answers, most_tokens=16)
    with pytest.raises(DeploymentError, match="golden text 3 of 8"):
        deploy(candidate, str(repository), DeployConfig())
    longest = stated_longest_input(versions.old.path)
    said = f"reads 16 tokens of a text, and the served version {longest}"
    assert (said in caplog.text) == shorter


def test_a_model_that_reads_windows_refuses_no_long_text(
    graph_of: Callable[[str], Artifact], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = graph_of("question_answering")
    repository = write_repository(served, tmp_path / "models", ServeConfig())
    candidate = changed(served, tmp_path / "shorter", most_tokens=16)
    with pytest.raises(DeploymentError, match="golden text"):  # shorter windows, other logits
        deploy(candidate, str(repository), DeployConfig())
    assert (stated_longest_input(served.path) or 0) > 16
    assert "reads 16 tokens" not in caplog.text


@pytest.mark.slow
def test_a_flag_lets_another_task_in(
    of_another_task: Artifact, versions: Versions, tmp_path: Path
) -> None:
    repository = write_repository(versions.old, tmp_path / "models", ServeConfig())
    config = DeployConfig(other_task=True)
    assert deploy(of_another_task, str(repository), config).digest == of_another_task.digest


def test_an_artifact_without_golden_texts_is_refused(
    teacher: Artifact, task: Task, running: Deployable, tmp_path: Path
) -> None:
    bare = export(teacher, task, ExportConfig(parity_texts=8, golden_texts=0), tmp_path / "onnx")
    with pytest.raises(ArtifactError, match="no golden texts"):
        deploy(bare, running.server.http_url, running.config)


def test_a_server_that_nobody_started_is_named(
    versions: Versions, running: Deployable, tmp_path: Path
) -> None:
    for url in ("http://127.0.0.1:1", f"http://192.0.2.1:{running.server.config.http_port}"):
        with pytest.raises(ConfigError, match=r"no `bertender serve` of this user listens there"):
            deploy(versions.new, url, running.config)
    with pytest.raises(ConfigError, match="no such directory, and no url"):
        deploy(versions.new, str(tmp_path / "nowhere"), running.config)


def test_a_wrong_token_is_named(versions: Versions, running: Deployable, tmp_path: Path) -> None:
    url = running.server.http_url
    with pytest.raises(ConfigError, match=r"admin_token_file is not set.*--admin-token-file FILE"):
        deploy(versions.new, url, DeployConfig())
    with pytest.raises(ConfigError, match=r"admin_token_file=.*absent"):
        deploy(versions.new, url, DeployConfig(admin_token_file=tmp_path / "absent"))
    assert not (tmp_path / "absent").exists()
    (tmp_path / "other").write_text("another-token-than-that\n")
    (tmp_path / "other").chmod(0o600)
    with pytest.raises(ConfigError, match="refuses this token"):
        deploy(versions.new, url, DeployConfig(admin_token_file=tmp_path / "other"))
    directory = str(running.server.repository)
    with pytest.raises(ConfigError, match=r"is for a running server.*is a directory"):
        deploy(versions.new, directory, running.config)


def test_an_unknown_model_is_named(versions: Versions, running: Deployable) -> None:
    config = running.config.model_copy(update={"model": "clasifier"})
    with pytest.raises(ConfigError, match=r"no such model\. Did you mean 'classifier'"):
        deploy(versions.new, running.server.http_url, config)


def test_two_do_not_deploy_at_once(versions: Versions, running: Deployable) -> None:
    with held(running.server.repository), pytest.raises(BusyError, match="another process deploys"):
        deploy(versions.new, running.server.http_url, running.config)
