"""Vectors of texts: how they are read, made, learned, scored and shown, and who else opens them."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import AutoModel, BertModel

import bertender
from bertender.cli.asking import lines_of
from bertender.comparison.accuracy import constant_row, evaluate, found_constant
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.gate.judge import TOLERANCES, check_parity, labelled_sample
from bertender.metrics import score
from bertender.models.classifier import open_classifier
from bertender.models.importing import open_artifact
from bertender.models.sentence_files import (
    POOLINGS,
    TRANSFORMER_NAME,
    VectorSettings,
    read_settings,
    write_settings,
)
from bertender.problems.problem import Outputs
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING, Vectors
from bertender.tasks.loading import load_task
from bertender.tasks.task import Split, Task, TaskConfig
from bertender.text.batch import Batch
from bertender.text.tokenizer import load_tokenizer
from bertender.training.examples import token_dataset
from bertender.training.heads import HEADS
from bertender.training.heads.vectors import in_batch, ordered_cosines
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.finetuning.baseline import train_bag_of_words
from distill.finetuning.config import BagOfWordsConfig, FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from export.bundle import bundle
from export.config import BundleConfig, ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from serve.client.endpoint import Classification
from tests.fake_predictor import FakePredictor
from tests.packages import NODE_MODULES, needs_node
from tests.toy_models import save_encoder
from tests.toys import similarity_task, tiny_tokenizer

KIND = SENTENCE_EMBEDDING.name
HEAD = HEADS[KIND]
SETTINGS: dict[str, Any] = {"batch_size": 8, "learning_rate": 3e-3, "precision": "fp32"}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def loaded(path: Path, **settings: Any) -> Task:
    return load_task(TaskConfig(train=path, dev=path, problem_type=KIND, select=0, **settings))


def unit(*angles: float) -> np.ndarray:
    """Vectors at angles in a plane, in degrees."""
    radians = np.radians(angles)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder as transformers writes it: without a head."""
    return save_encoder("bert", tmp_path_factory.mktemp("vectors") / "encoder")


@pytest.fixture(scope="module")
def teacher(encoder: Path) -> Artifact:
    out = encoder.with_name("teacher")
    config = FinetuneConfig(teacher=str(encoder), epochs=3, **SETTINGS)
    return finetune_by_name(similarity_task(160), config, out)


# reading


def test_pairs_are_read_with_their_similarity(tmp_path: Path) -> None:
    text = "sentence1,sentence2,score\na b,c d,4.5\ne,f,0\n"
    task = loaded(write(tmp_path / "a.csv", text))
    assert task.train.examples == (("a b", "c d"), ("e", "f"))
    assert task.train.label_ids == (4.5, 0.0)
    assert (task.labels, task.metric) == (("embedding",), "cosine_spearman")


def test_pairs_without_a_number_belong_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.tsv", "query\tpassage\na b\tc d\ne\tf\n")
    task = loaded(path, text_column="query", pair_column="passage")
    assert all(map(math.isinf, task.train.label_ids))
    assert task.metric == "recall_at_1" and "positive" not in caplog.text
    other = write(tmp_path / "b.csv", "sentence1,sentence2,closeness\na,b,0.2\n")
    loaded(other)
    assert "every pair is a positive one" in caplog.text
    assert "--label-column: closeness" in caplog.text
    with pytest.raises(DataError, match="no column 'grade'"):
        loaded(path, text_column="query", pair_column="passage", label_column="grade")


def test_a_named_column_is_a_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sentence1,sentence2,score\na,b,high\n")
    with pytest.raises(DataError, match="line 2, column 'score': 'high' is not a number"):
        loaded(path)


def test_texts_alone_are_no_task(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,score\na,1\nb,2\n")
    with pytest.raises(ConfigError, match="--pair-column"):
        loaded(path)


# scores


def test_an_oracle_decodes_to_its_targets() -> None:
    """Vectors whose cosines are the similarities have the best score."""
    task = similarity_task(8, 40)
    angles = [math.degrees(math.acos(target / 5)) for target in task.dev.label_ids]
    found = [
        SENTENCE_EMBEDDING.decode(Outputs(unit(0, angle), np.arange(2)), example)
        for angle, example in zip(angles, task.dev.examples, strict=True)
    ]
    predictions = SENTENCE_EMBEDDING.gather(found)
    assert predictions[:, 0] == pytest.approx(np.array(task.dev.label_ids) / 5, abs=1e-6)
    best = score(task.metric, task.dev.label_ids, predictions)
    assert best.value == pytest.approx(1.0)
    assert found_constant(task, task.dev, predictions) is None


def ranks(*pairs: tuple[float, float, str]) -> list[int]:
    """The ranks of pairs by their angles, and the second text."""
    found = [Vectors(unit(first, second), ("query", text)) for first, second, text in pairs]
    return SENTENCE_EMBEDDING.gather(found)[:, 1].astype(int).tolist()


def test_the_rank_is_among_the_other_texts() -> None:
    assert ranks((0, 1, "a"), (90, 91, "b"), (180, 181, "c")) == [1, 1, 1]
    assert ranks((0, 50, "a"), (90, 20, "b"), (180, 181, "c")) == [2, 2, 1]
    assert ranks((0, 5, "a"), (0, 5, "a"), (0, 9, "b")) == [1, 1, 2], "an equal text is no other"
    truth = [math.inf] * 3
    rows = np.array([[0.9, 1], [0.9, 10], [0.9, 11]])
    assert score("recall_at_1", truth, rows).value == pytest.approx(1 / 3)
    assert score("recall_at_10", truth, rows).value == pytest.approx(2 / 3)


def test_vectors_that_have_collapsed_find_nothing_and_are_named() -> None:
    task = similarity_task(8, 120)
    same = [Vectors(unit(3, 3), example) for example in task.dev.examples]
    predictions = SENTENCE_EMBEDDING.gather(same)
    found = found_constant(task, task.dev, predictions)
    assert found is not None and "same vector" in found.words
    assert score("cosine_spearman", task.dev.label_ids, predictions).value == 0
    recall = score("recall_at_10", [math.inf] * 120, predictions)
    assert recall.value < 0.1
    assert constant_row(task).score.value == 0


def test_a_decision_is_the_nearest_other_text() -> None:
    vectors = 3 * unit(0, 20, 30, 180)
    own = Outputs(vectors, np.arange(4))
    assert SENTENCE_EMBEDDING.decisions(own)[:, 0].tolist() == [1, 2, 1, 2]
    margins = SENTENCE_EMBEDDING.margins(own)[:, 0]
    assert margins.argmin() == 1 and margins.min() == pytest.approx(0.09, abs=0.01)
    tied = Outputs(unit(0, 40, -40), np.arange(3))
    assert SENTENCE_EMBEDDING.margins(tied)[0, 0] == pytest.approx(0, abs=1e-6)
    two = Outputs(unit(0, 40), np.arange(2))
    assert SENTENCE_EMBEDDING.decisions(two)[:, 0].tolist() == [1, 0]
    assert np.isinf(SENTENCE_EMBEDDING.margins(two)).all()


@pytest.mark.parametrize("moved", [0.2, 1.0])
def test_a_margin_is_how_far_vectors_move_before_another_is_nearest(moved: float) -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(300, 64))
    own = Outputs(vectors, np.arange(300))
    margins = SENTENCE_EMBEDDING.margins(own)[:, 0]
    noise = moved * np.median(margins)
    other = Outputs(vectors + noise * generator.normal(size=vectors.shape), np.arange(300))
    before, after = (SENTENCE_EMBEDDING.decisions(each)[:, 0] for each in (own, other))
    turned = before != after
    assert turned.mean() > 0.02
    assert turned[margins > 3 * noise].mean() < 0.02


@pytest.mark.parametrize("some", [False, True])
def test_what_moves_all_vectors_alike_leaves_each_its_neighbours(
    teacher: Artifact, some: bool
) -> None:
    task, sound = similarity_task(8, 60), open_classifier(teacher)
    examples, truth = labelled_sample(task, task.dev, 60, 0)

    def turned(batch: Batch) -> Any:
        """All vectors in other directions, or those of texts with plums alone."""
        plums = [["plum" in text] for example in batch.examples for text in example]
        vectors = sound.predictor.logits(batch)
        return np.where(plums, -vectors, vectors) if some else np.roll(vectors, 1, axis=1)

    candidate = replace(sound, predictor=FakePredictor(turned))
    parity = check_parity(sound, candidate, examples, TOLERANCES["float32"], truth=truth)
    assert any("max_abs_difference" in failure for failure in parity.failures)
    assert any("decided_agreement_high" in failure for failure in parity.failures) == some


def test_a_metric_of_other_pairs_is_undefined() -> None:
    rows = np.array([[0.9, 1.0], [0.1, 2.0]])
    cosine = score("cosine_spearman", [math.inf, math.inf], rows)
    assert cosine.undefined is not None and "recall_at_1" in cosine.undefined
    recall = score("recall_at_1", [0.5, 3.0], rows)
    assert recall.undefined is not None and "cosine_spearman" in recall.undefined


# losses


def test_the_order_of_cosines_is_learned_whatever_the_unit() -> None:
    cosines = torch.tensor([0.9, 0.1, 0.5])
    right = ordered_cosines(cosines, torch.tensor([5.0, 1.0, 3.0]))
    assert float(right) < 0.001
    wrong = ordered_cosines(cosines, torch.tensor([1.0, 5.0, 3.0]))
    by_hand = math.log(1 + sum(math.exp(20 * each) for each in (0.8, 0.4, 0.4)))
    assert float(wrong) == pytest.approx(by_hand, rel=1e-4)
    scaled = ordered_cosines(cosines, torch.tensor([0.1, 0.5, 0.3]))
    assert float(scaled) == pytest.approx(float(wrong))
    assert float(ordered_cosines(cosines[:1], torch.tensor([1.0]))) == 0


def test_an_equal_text_of_another_pair_is_no_wrong_answer() -> None:
    first = torch.from_numpy(unit(0, 10, 90))
    ids = torch.tensor([[5, 6], [5, 6], [7, 8]])
    second = first[[0, 0, 2]]
    alone = in_batch(first[[0, 2]], second[[0, 2]], ids[[0, 2]])
    assert float(in_batch(first, second, ids)) == pytest.approx(float(alone), abs=0.01)
    assert float(in_batch(first, second.roll(1, 0), ids.roll(1, 0))) > 1


def test_autocast_rounds_no_cosine() -> None:
    """Training computes in bfloat16, in which cosines near 1 have steps of 1/256."""
    first, second, narrow = torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(1))
    ids = torch.arange(8).view(4, 2)
    losses = {
        "pairs": lambda: in_batch(first, second, ids),
        "another width": lambda: HEAD.soft_loss(narrow[:, :16], first, {}, 1.0),
    }
    for name, loss in losses.items():
        with torch.autocast("cpu", torch.bfloat16):
            inside = loss()
        torch.testing.assert_close(inside, loss(), rtol=0, atol=0, msg=name)


def test_texts_alone_and_pairs_make_a_batch() -> None:
    split = Split(
        (("apple", "pear plum"), ("saw",), ("drill", "hammer")), (4.0, math.nan, math.inf)
    )
    examples = token_dataset(split, tiny_tokenizer(), KIND)
    batch = examples.collate([examples[row] for row in range(3)])
    assert batch["input_ids"].shape[0] == 5
    vectors = torch.nn.functional.normalize(torch.randn(5, 16), dim=-1).requires_grad_()
    loss = HEAD.hard_loss(vectors, batch)
    loss.backward()
    assert torch.isfinite(loss)
    teacher = torch.nn.functional.normalize(torch.randn(5, 16), dim=-1)
    soft = HEAD.soft_loss(vectors.detach(), teacher, batch, 1.0)
    cosines = (vectors.detach() * teacher).sum(-1)
    torch.testing.assert_close(soft, (2 - 2 * cosines).mean())
    other = HEAD.soft_loss(vectors.detach(), torch.randn(5, 24), batch, 1.0)
    assert float(other) > 0, "of other widths their cosines are compared"


# models


def by_sentence_transformers(folder: Path, texts: list[str], **settings: Any) -> Any:
    library = pytest.importorskip("sentence_transformers")
    settings |= {"device": "cpu", "local_files_only": True}
    opened = library.SentenceTransformer(str(folder), **settings)
    return opened.encode(texts, convert_to_numpy=True)


def test_sentence_transformers_gives_the_same_vectors(teacher: Artifact) -> None:
    """Batch by batch, padding included: the difference is 0."""
    texts = ["apple pear", "saw drill hammer saw drill plum", "melon"]
    ours = open_classifier(teacher).logits([(text,) for text in texts])
    theirs = by_sentence_transformers(teacher.path, texts)
    assert np.abs(ours - theirs).max() == 0
    assert np.linalg.norm(ours, axis=1) == pytest.approx(1, abs=1e-6)


GRAPHS: dict[str, Callable[[Artifact, Task, Path], Artifact]] = {
    "none": lambda teacher, task, out: export(teacher, task, ExportConfig(), out),
    "fused": lambda teacher, task, out: export(teacher, task, ExportConfig(optimize="fused"), out),
    "float16": lambda teacher, task, out: export(
        teacher, task, ExportConfig(precision="float16"), out
    ),
    **{
        scheme: lambda teacher, task, out, scheme=scheme: quantize(
            export(teacher, task, ExportConfig(), out / "graph"),
            task,
            QuantizeConfig(scheme=scheme),
            out / "small",
        )
        for scheme in ("dynamic", "static", "four-bit-embeddings")
    },
}
"""What makes a graph of the teacher."""


@pytest.mark.parametrize("made", GRAPHS)
def test_other_libraries_pool_the_states_of_a_graph(
    made: str, teacher: Artifact, tmp_path: Path
) -> None:
    graph = GRAPHS[made](teacher, similarity_task(8, 60), tmp_path / "made")
    assert read_settings(graph.path) == read_settings(teacher.path)
    session = onnxruntime.InferenceSession(graph.path / "model.onnx")
    texts = ["apple pear", "saw drill hammer saw drill plum", "melon"]
    read = load_tokenizer(graph.path)(texts, padding=True, return_tensors="np")
    vectors, states = session.run(["logits", "last_hidden_state"], dict(read))
    counted = read["attention_mask"][:, :, None]
    pooled = (states * counted).sum(1) / counted.sum(1)
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(pooled, vectors, atol=2e-3 if made == "float16" else 1e-5)
    if find_spec("optimum"):
        theirs = by_sentence_transformers(graph.path, texts, backend="onnx")
        np.testing.assert_allclose(theirs, vectors, atol=0.02)  # 8 bits see the batch's order


ASKED_IN_NODE = """
import {{ pipeline }} from "@huggingface/transformers";
const ask = await pipeline("feature-extraction", "./");
console.log(JSON.stringify((await ask({texts}, {options})).tolist()));
"""


@needs_node
@pytest.mark.parametrize("settings", [VectorSettings("cls", False), VectorSettings("mean")])
def test_a_page_gets_the_vector_by_the_pooling_of_the_note(
    settings: VectorSettings, encoder: Path, tmp_path: Path
) -> None:
    folder, task = tmp_path / "theirs", similarity_task(8, 60)
    model = BertModel.from_pretrained(encoder)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    write_settings(folder, settings, model.config.hidden_size)
    graph = export(open_artifact(folder), task, ExportConfig(), tmp_path / "graph")
    config = BundleConfig(to="browser", node_modules=NODE_MODULES, golden_texts=8)
    page = bundle(graph, task, config, tmp_path / "page")
    assert page.card.findings.bundle is not None
    note = next(each for each in page.card.findings.bundle.notes if "pooling" in each)
    texts, options = ["apple pear plum", "melon"], note[note.index("{") :]
    (page.path / "node_modules").symlink_to(NODE_MODULES.resolve())
    write(page.path / "ask.mjs", ASKED_IN_NODE.format(texts=json.dumps(texts), options=options))
    asked = subprocess.run(["node", "ask.mjs"], cwd=page.path, capture_output=True, check=True)
    ours = open_classifier(graph).logits([(text,) for text in texts])
    np.testing.assert_allclose(json.loads(asked.stdout), ours, atol=1e-5)


def test_the_folder_is_an_encoder_of_transformers(teacher: Artifact) -> None:
    model = AutoModel.from_pretrained(teacher.path)
    assert type(model) is BertModel
    assert json.loads((teacher.path / "config.json").read_text())["architectures"] == ["BertModel"]


@pytest.mark.parametrize("settings", [VectorSettings("cls"), VectorSettings("mean", False)])
def test_a_folder_of_sentence_transformers_is_read_as_it_says(
    settings: VectorSettings, encoder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "theirs"
    model = BertModel.from_pretrained(encoder)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    write_settings(folder, settings, model.config.hidden_size)
    assert read_settings(folder) == settings
    artifact = open_artifact(folder)
    assert (artifact.card.task.problem_type, artifact.card.task.labels) == (KIND, ("embedding",))
    texts = ["apple pear", "saw drill hammer"]
    ours = open_classifier(artifact).logits([(text,) for text in texts])
    assert np.abs(ours - by_sentence_transformers(folder, texts)).max() == 0
    again = by_sentence_transformers(artifact.path, texts)
    assert np.abs(ours - again).max() == 0


def test_vectors_change_with_the_pooling_of_a_folder(encoder: Path, tmp_path: Path) -> None:
    """The import in the cache is of the files as they are, those of modules included."""
    folder = tmp_path / "theirs"
    model = BertModel.from_pretrained(encoder)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    write_settings(folder, VectorSettings("mean"), model.config.hidden_size)
    (folder / "checkpoint-5").mkdir()
    opened = [open_artifact(folder)]
    (folder / "checkpoint-5" / "config.json").write_text("{}")
    assert open_artifact(folder).path == opened[0].path, "no import reads it"
    pooling = {"word_embedding_dimension": model.config.hidden_size, POOLINGS["cls"]: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    opened.append(open_artifact(folder))
    mean, cls = (open_classifier(each).logits([("apple pear saw",)]) for each in opened)
    assert np.abs(mean - cls).max() > 0.01


REFUSED: dict[str, tuple[str, Any, str]] = {
    "a further layer": (
        "modules.json",
        [
            {"path": path, "type": f"a.{kind}"}
            for path, kind in (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_D", "Dense"))
        ],
        "its modules are Transformer, Pooling, Dense",
    ),
    "another pooling": ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "max_tokens"),
    "two poolings": ("1_Pooling/config.json", {"pooling_mode": ["mean", "cls"]}, "mean and cls"),
    "a prompt": ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "prompt"),
    "lower case": ("sentence_bert_config.json", {"do_lower_case": True}, "lower case"),
    "an older name": ("sentence_roberta_config.json", {"do_lower_case": True}, "lower case"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_give_other_vectors_is_refused(name: str, tmp_path: Path) -> None:
    file, content, said = REFUSED[name]
    write_settings(tmp_path, VectorSettings(), 16)
    (tmp_path / TRANSFORMER_NAME).unlink()
    write(tmp_path / file, json.dumps(content))
    with pytest.raises(ModelError, match=said):
        read_settings(tmp_path)


def test_an_encoder_gives_vectors_where_its_pooling_is_said(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--pooling mean"):
        open_artifact(encoder)
    artifact = bertender.import_model(encoder, out=tmp_path / "mean", pooling="mean")
    first = bertender.import_model(encoder, out=tmp_path / "cls", pooling="cls")
    mean, cls = (open_classifier(each).logits([("apple pear",)]) for each in (artifact, first))
    assert np.abs(mean - cls).max() > 0.01
    with pytest.raises(ConfigError, match=r"pooling=cls.*says so itself"):
        (tmp_path / "mean" / "artifact.json").unlink()
        bertender.import_model(tmp_path / "mean", out=tmp_path / "again", pooling="cls")


# stages


def test_pairs_that_belong_together_are_learned(encoder: Path, tmp_path: Path) -> None:
    task = similarity_task(400, 60)

    def alike(split: Split) -> Split:
        kept = split.where([target == 5 for target in split.label_ids])
        return replace(kept, label_ids=(math.inf,) * len(kept))

    pairs = replace(task, train=alike(task.train), dev=alike(task.dev), metric="recall_at_10")
    config = FinetuneConfig(teacher=str(encoder), epochs=3, **SETTINGS)
    made = finetune_by_name(pairs, config, tmp_path / "made")
    training = made.card.findings.training
    assert training is not None
    assert training.losses[-1]["hard"] < training.losses[0]["hard"]
    plain = bertender.import_model(encoder, out=tmp_path / "plain", pooling="mean")
    before, after = (
        evaluate(open_classifier(each), similarity_task().dev, "cosine_spearman")[0].value
        for each in (plain, made)
    )
    assert after > before


def test_a_student_learns_from_texts_without_labels(teacher: Artifact, tmp_path: Path) -> None:
    task = similarity_task()
    more = tmp_path / "more.txt"
    write(more, "".join(f"{text}\n" for text in dict.fromkeys(similarity_task(150).train.texts())))
    config = DistillConfig(
        layers=1, epochs=3, unlabelled=more, weights={"hard": 0.0, "cosine": 0.0}, **SETTINGS
    )
    few = replace(task, train=task.train.first(20))
    student = distill(teacher, few, config, tmp_path / "student")
    training = student.card.findings.training
    assert training is not None and training.unlabelled_texts
    assert training.losses[-1]["soft"] < training.losses[0]["soft"] / 2
    assert by_sentence_transformers(student.path, ["apple"]).shape[1] == 32


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": 3.0}, "temperature=3: it softens"),
        ({"method": "bilstm"}, "labels texts alone"),
        ({"method": "static"}, "labels texts alone"),
        ({"unlabelled_max_entropy": 0.5, "unlabelled_texts": 9}, "directions of their own"),
    ],
)
def test_what_has_no_meaning_for_vectors_is_refused(
    settings: dict[str, Any], said: str, teacher: Artifact, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        distill(teacher, similarity_task(), DistillConfig(**settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", ["tinybert", "minilm", "pkd"])
def test_hidden_states_are_learned_too(method: str, teacher: Artifact, tmp_path: Path) -> None:
    task = similarity_task(64, 16)
    own: dict[str, Any] = {"hidden_size": 16} if method == "minilm" else {}
    settings = {**SETTINGS, "epochs": 1, "layers": 2, "allow_constant": True, **own}
    if method == "tinybert":
        settings["earlier_epochs"] = 1
    student = distill(teacher, task, DistillConfig(method=method, **settings), tmp_path / "out")
    vector = open_classifier(student).logits([("apple",)])
    assert vector.shape == (1, own.get("hidden_size", 32))


def test_a_pruned_model_gives_vectors(teacher: Artifact, tmp_path: Path) -> None:
    config = PruneConfig(heads=0.5, ffn=0.25, epochs=1, max_drop=100, **SETTINGS)
    pruned = prune(teacher, similarity_task(64, 32), config, tmp_path / "pruned")
    vector = open_classifier(pruned).logits([("apple pear",)])
    assert vector.shape == (1, 32) and np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_the_bag_of_words_has_no_regularisation_of_vectors(tmp_path: Path) -> None:
    config = BagOfWordsConfig(inverse_regularisation=2)
    with pytest.raises(ConfigError, match="inverse_regularisation=2: vectors of texts"):
        train_bag_of_words(similarity_task(), config, tmp_path / "baseline")


def test_the_bag_of_words_has_cosines_too(tmp_path: Path) -> None:
    task = similarity_task()
    baseline = train_bag_of_words(task, BagOfWordsConfig(), tmp_path / "baseline")
    found, _ = evaluate(open_classifier(baseline), task.dev, task.metric)
    assert found.value > 0.3
    assert baseline.card.findings.scores is not None
    assert baseline.card.findings.scores.score == pytest.approx(found.value, abs=1e-6)


def test_a_vector_is_shown_as_a_line_of_json() -> None:
    answer = Classification(label=None, score=None, logits=(0.6, -0.8))
    (line,) = lines_of(answer, ("a text",), SENTENCE_EMBEDDING)
    assert json.loads(line) == {"text": "a text", "embedding": [0.6, -0.8]}


def test_one_pair_a_batch_is_refused(tmp_path: Path) -> None:
    """There is nothing to compare it with: the loss would be 0."""
    encoder = save_encoder("bert", tmp_path / "encoder")
    config = FinetuneConfig(teacher=str(encoder), batch_size=1)
    with pytest.raises(ConfigError, match=r"batch_size=1: .* Give 2 or more"):
        finetune_by_name(similarity_task(8, 8), config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_prompts_that_are_left_out_of_the_pooling_are_refused(tmp_path: Path) -> None:
    write_settings(tmp_path, VectorSettings(), 16)
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    write(tmp_path / "1_Pooling/config.json", json.dumps(pooling))
    assert read_settings(tmp_path).pooling == "mean", "without prompts, nothing is left out"
    prompts = {"prompts": {"query": "query: ", "document": ""}}
    write(tmp_path / "config_sentence_transformers.json", json.dumps(prompts))
    with pytest.raises(ModelError, match=r"include_prompt=false .*'query: '.* set prompts to \{\}"):
        read_settings(tmp_path)
