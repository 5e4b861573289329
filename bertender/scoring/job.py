"""A folder of predictions, part by part.

    DIR/_score.json         what the parts are of: model, files and settings; another command into
                            the same folder is an error
    DIR/part-00000.jsonl    the rows of a part with their predictions, written whole or not at all
    DIR/_parts/00000.json   what a finished part has; one that lacks it is computed again
    DIR/_SUCCESS            every part of every shard is there

Processes that share the folder need no other connection. A part depends only on its rows, so
processes that compute the same part write the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from bertender.core.artifact import Artifact
from bertender.core.card import LeftOutRows
from bertender.core.config import Record
from bertender.core.errors import ConfigError, DataError
from bertender.core.files import check_parent, replacing, save_text
from bertender.core.progress import Bar
from bertender.models.classifier import problem_of
from bertender.scoring.config import MACHINE, ScoreConfig
from bertender.scoring.scorer import SPANS, Encoded, Scorer, prediction_columns
from bertender.scoring.texts import (
    FileState,
    Part,
    PartReader,
    checked,
    files_of,
    state_of,
    types_of,
)
from bertender.tasks.rows import SkippedRows, stop, write_jsonl, write_parquet
from bertender.tasks.teacher_files import COMPLETE, MANIFEST, PREDICTED
from bertender.tasks.text_files import TextColumns

logger = logging.getLogger(__name__)

PARTS = "_parts"


class Identity(Record):
    """Inputs that the predictions in a folder depend on."""

    model: str = Field(description="digest of the artifact")
    files: tuple[FileState, ...]
    settings: dict[str, Any]


class Manifest(Record):
    """Description of a folder's parts."""

    schema_version: int = 1
    identity: Identity
    artifact: str
    rows: tuple[int, ...] = Field(description="of each file, those that cannot be used included")

    @property
    def parts(self) -> int:
        """Number of parts, over all shards."""
        return -(-sum(self.rows) // int(self.identity.settings["texts_per_part"]))


class PartRecord(Record):
    """A finished part."""

    number: int
    rows: int = Field(description="of the source, those without a prediction included")
    texts: int = Field(description="predictions")
    truncated: int = Field(description="texts that were cut to the model's input")
    blank: int = Field(description="lines without a text, which have no prediction")
    left_out: LeftOutRows | None
    size_bytes: int = Field(description="of its file; 0 where no text has a prediction")


@dataclass
class Job:
    """The parts of a folder, and their computation; it can be pickled."""

    out: Path
    config: ScoreConfig
    manifest: Manifest
    scorer: Scorer
    reader: PartReader
    types: Mapping[str, Any]
    """Arrow types of the source's columns, where its files have none and the parts do."""

    @classmethod
    def begin(
        cls, artifact: Artifact, source: str, out: Path, config: ScoreConfig, force: bool
    ) -> Job:
        """Check source and folder, and write the manifest if there is none; errors are those of
        `score`."""
        files = files_of(source)
        _check_folder(out, Path(source))
        states = tuple(map(state_of, files))
        shaping = config.model_dump(mode="json", exclude={*MACHINE})
        identity = Identity(model=artifact.digest, files=states, settings=shaping)
        columns = TextColumns(
            problem_of(artifact), artifact.card.task, config.text_column, config.pair_column
        )
        manifest = _manifest_at(out)
        if manifest is not None and manifest.identity != identity:
            difference = _difference(manifest.identity, identity)
            if not force:
                raise ConfigError(
                    f"{out} has the parts of another command: {difference}. Give another --out, or "
                    "begin anew there with --force."
                )
            _clear(out)
            manifest = None
        types = types_of(files) if config.format == "parquet" else {}
        if manifest is None:
            taken = [config.prefix + name for name in prediction_columns(columns.problem)]
            skipped = SkippedRows()
            bad = skipped if config.skip_bad_rows else stop
            rows = tuple(checked(path, columns, taken, bad) for path in files)
            if sum(rows) == skipped.count:
                first = f": {skipped.first[0].reason}" if skipped.first else "."
                raise DataError(f"{source}: it has no text to predict{first}")
            manifest = Manifest(identity=identity, artifact=artifact.name, rows=rows)
            out.mkdir(parents=True, exist_ok=True)
            _save(manifest.model_dump_json(indent=1) + "\n", out / MANIFEST)
        paths = [path.absolute() for path in files]
        return cls(
            out.absolute(),
            config,
            manifest,
            Scorer(
                artifact,
                tokens_per_batch=config.tokens_per_batch,
                max_length=config.max_length,
                runtime=config.runtime,
                threads=config.threads,
                prefix=config.prefix,
            ),
            PartReader(
                [*zip(paths, manifest.rows, strict=True)],
                columns,
                config.texts_per_part,
                config.skip_bad_rows,
            ),
            types,
        )

    def own_parts(self) -> list[int]:
        """Return the numbers of the parts of this shard."""
        number, count = self.config.share
        return [*range(number - 1, self.manifest.parts, count)]

    def size_of(self, number: int) -> int:
        """Return the number of source rows in a part."""
        size = self.config.texts_per_part
        return min(size, sum(self.manifest.rows) - number * size)

    def file_of(self, number: int) -> Path:
        """Return the path of a part."""
        return self.out / f"part-{number:05}.{self.config.format}"

    def records(self) -> dict[int, PartRecord]:
        """Return the records of the finished parts of all shards whose files are complete."""
        found = {}
        for path in sorted((self.out / PARTS).glob("*.json")):
            try:
                record = PartRecord.model_validate_json(path.read_text(encoding="utf-8"))
                size = self.file_of(record.number).stat().st_size if record.size_bytes else 0
            except (ValidationError, OSError, UnicodeDecodeError):
                continue
            if size == record.size_bytes:
                found[record.number] = record
        return found

    def compute(self, numbers: Sequence[int], bar: Bar) -> Iterator[PartRecord]:
        """Compute parts one after the other, reading and tokenising the next one meanwhile."""
        assert self.scorer.classifier  # opened before any thread
        with ThreadPoolExecutor(1) as ahead:
            waiting = [ahead.submit(self._prepare, number) for number in numbers[:1]]
            for number in (*numbers[1:], None):
                part, encoded = waiting.pop().result()
                if number is not None:
                    waiting.append(ahead.submit(self._prepare, number))
                yield self._complete(part, encoded, bar)

    def finish(self) -> int:
        """Mark the folder as complete if it is; return the number of finished parts."""
        count = len(self.records())
        if count == self.manifest.parts:
            _save("", self.out / COMPLETE)
        return count

    def _prepare(self, number: int) -> tuple[Part, Encoded | None]:
        part = self.reader.read(number)
        return part, self.scorer.encode(part.texts) if part.texts else None

    def _complete(self, part: Part, encoded: Encoded | None, bar: Bar) -> PartRecord:
        predictions: dict[int, dict[str, Any]] = {}
        bar.advance(part.count - len(part.texts))
        for found in self.scorer.run(encoded) if encoded else ():
            predictions.update(found)
            bar.advance(len(found))
        rows = [{**row, **predictions[place]} for place, row in enumerate(part.rows)]
        self._check_current()
        size = 0
        if rows:
            size = self._write(part, rows, _types(predictions[0]))
        skipped = part.skipped
        record = PartRecord(
            number=part.number,
            rows=part.count,
            texts=len(rows),
            truncated=0 if encoded is None else int(encoded.truncated.sum()),
            blank=part.blank,
            left_out=LeftOutRows(count=skipped.count, first=tuple(skipped.first))
            if skipped.count
            else None,
            size_bytes=size,
        )
        _save(record.model_dump_json() + "\n", self.out / PARTS / f"{part.number:05}.json")
        return record

    def _write(
        self, part: Part, rows: Sequence[Mapping[str, Any]], types: Mapping[str, Any]
    ) -> int:
        """Write the rows of a part; return the size of its file."""
        path = self.file_of(part.number)
        try:
            with replacing(path) as draft:
                if self.config.format == "jsonl":
                    write_jsonl(draft, rows)
                else:
                    write_parquet(draft, rows, {**self.types, **part.types, **types})
        except DataError as error:
            raise DataError(f"{path.name}: {error}") from None
        return path.stat().st_size

    def _check_current(self) -> None:
        """Raise ConfigError if another command has started again in the folder."""
        now = _manifest_at(self.out)
        if now is None or now.identity != self.manifest.identity:
            raise ConfigError(
                f"another command has begun anew in {self.out}, so that this one ends. Give each "
                "its own --out."
            )


def _types(prediction: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Arrow types for prediction columns whose lists may all be empty in a part."""
    import pyarrow

    text, number, place = pyarrow.string(), pyarrow.float64(), pyarrow.int64()
    span = {"label": text, "score": number, "start": place, "end": place, "text": text}
    by_end = {PREDICTED: text, SPANS: pyarrow.struct(span)}
    return {
        name: pyarrow.list_(kind)
        for name, value in prediction.items()
        for end, kind in by_end.items()
        if isinstance(value, list) and name.endswith(end)
    }


def _manifest_at(out: Path) -> Manifest | None:
    path = out / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}. Remove the folder, or give another --out."
        ) from None


def _check_folder(out: Path, source: Path) -> None:
    """Raise ConfigError if parts cannot be written."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; give the name of a folder.")
    check_parent("--out", out, MANIFEST)
    inside = source if source.is_dir() else source.parent
    if out.exists() and out.resolve() == inside.resolve():
        raise ConfigError(f"--out {out} is the folder of the texts. Give another one.")
    if (out / MANIFEST).exists() or not out.is_dir():
        return
    if there := sorted(each.name for each in out.iterdir() if each.name[0] != "."):
        raise ConfigError(
            f"--out {out} has other files, such as {there[0]}. Give a folder that is empty or new."
        )


def _difference(before: Identity, now: Identity) -> str:
    """Return the differences between two commands as text."""
    found = []
    if before.model != now.model:
        found.append("the model is another one")
    if before.files != now.files:
        names = [", ".join(each.name for each in side.files) for side in (before, now)]
        changed = "its content has changed" if names[0] == names[1] else f"it is {names[1]}"
        found.append(f"the source was {names[0]}, and {changed}")
    for name, value in now.settings.items():
        if (earlier := before.settings.get(name)) != value:
            found.append(f"{name} was {earlier!r}, and is {value!r}")
    return "; ".join(found)


def _clear(out: Path) -> None:
    """Remove the files of another command, the manifest first."""
    records = [*(out / PARTS).glob("*.json")]
    for path in (out / MANIFEST, out / COMPLETE, *records, *out.glob("part-[0-9]*.*")):
        path.unlink(missing_ok=True)


def _save(text: str, path: Path) -> None:
    """Write a file that another process may be writing too."""
    try:
        save_text(text, path)
    except FileNotFoundError:  # its draft was removed by a process on another machine
        if not path.exists():
            raise
