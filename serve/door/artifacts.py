"""What the door itself reads of a repository: golden texts, and how many tokens texts have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertender.core.artifact import GOLDEN_NAME, Artifact, read_golden
from bertender.core.errors import BertenderError
from bertender.problems import PROBLEMS
from bertender.text.batch import Tokenize
from bertender.text.tokenizer import open_tokenizer
from serve.config import BackendParameters
from serve.repository.config_pbtxt import CONFIG_NAME, read_model_config


class Artifacts:
    """The artifacts of the served versions. Its methods may be called by several threads.

    Args:
        repository: what `write_repository` wrote.
    """

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self._tokenizers: dict[str, tuple[Path, Tokenize]] = {}
        """Name of a model -> the folder of its served version, and its tokenizer."""

    def golden(self, model: str) -> Sequence[str] | None:
        """Return the texts of a golden example; None where the artifact has none."""
        try:
            artifact, _ = self._of(model)
            if GOLDEN_NAME not in artifact.card.files:
                return None
            problem = PROBLEMS[artifact.card.task.problem_type]
            return problem.to_texts(read_golden(artifact).texts[0].example)
        except (BertenderError, OSError):  # it is being replaced
            return None

    def count_tokens(self, model: str, examples: Sequence[tuple[str, ...]]) -> list[int]:
        """Return how many tokens the longest row of each example has, at most one more than the
        model reads; the first that has more is the last."""
        artifact, parameters = self._of(model)
        problem = PROBLEMS[artifact.card.task.problem_type]
        folder, encode = self._tokenizers.get(model, (None, None))
        if encode is None or folder != artifact.path:
            encode = problem.encoder(open_tokenizer(artifact.path, parameters.max_length))
            self._tokenizers[model] = artifact.path, encode
        counts = []
        for example in examples:
            batch = encode([problem.to_example(example)])
            is_cut = batch.truncated is not None and bool(batch.truncated[0])
            counts.append(batch.lengths()[0] + is_cut)
            if is_cut:  # the request is refused by it; tokenising 2 MB of others takes a second
                break
        return counts

    def _of(self, model: str) -> tuple[Artifact, BackendParameters]:
        config = read_model_config(self.repository / model / CONFIG_NAME)
        values = {name: each.string_value for name, each in config.parameters.items()}
        parameters = BackendParameters.parse(values)
        version = max(config.version_policy.specific.versions)
        folder = self.repository / model / str(version) / parameters.artifact
        return Artifact.load(folder.resolve(), verify=False), parameters
