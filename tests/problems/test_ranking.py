"""Queries with passages: how they are read, learned, ranked, imported and answered."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import bertender
from bertender.cli.asking import lines_of
from bertender.comparison.accuracy import constant_row, evaluate, found_constant, predict_outputs
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.metrics import score
from bertender.models.classifier import Classifier, open_classifier
from bertender.models.importing import import_model, open_artifact
from bertender.problems.problem import Outputs
from bertender.problems.ranking import MOST_TRAINED, NOTHING, RANKING
from bertender.recipes.recorded_task import recorded_task
from bertender.scoring.scorer import Scorer
from bertender.tasks.choice_files import CANDIDATES
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from bertender.tasks.text_files import read_unlabelled
from bertender.training.examples import token_dataset
from bertender.training.heads import HEADS
from bertender.training.heads.head import ROWS
from serve.backend.batches import BucketedClassifier
from serve.backend.fair_queue import Refusal
from serve.bulk import read_file, write_predictions
from serve.client.endpoint import Classification
from serve.wire import from_arrays, input_names, row_in, to_arrays
from tests.fake_predictor import FakePredictor
from tests.serve.asking import ask, serving
from tests.toys import ranking_task, tiny_bert, tiny_tokenizer, write_model


def loaded(path: Path, **settings: Any) -> Any:
    config = TaskConfig(train=path, dev=path, problem_type="ranking", select=0, **settings)
    return load_task(config)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def rows(*values: dict[str, Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in values)


def listed(relevance: Any, *passages: str) -> dict[str, Any]:
    return {"query": "q", "passages": passages or ("red", "green"), "relevance": relevance}


FLAT = "query,passage,relevance\nq,red,0\nr,blue,1\nq,green,2\nr,pink,0\n"
FILES = {
    "flat.csv": FLAT,
    "flat.tsv": FLAT.replace(",", "\t"),
    "flat.jsonl": rows(
        *(
            {"query": query, "passage": passage, "relevance": relevance}
            for query, passage, relevance in (("q", "red", 0), ("q", "green", 2), ("r", "blue", 1))
        )
    ),
    "list.jsonl": rows(listed([0, 2])),
    "twice.csv": FLAT + "q,green,2\n",
}


@pytest.mark.parametrize("name", FILES)
def test_queries_are_read_from_lists_and_from_rows(name: str, tmp_path: Path) -> None:
    task = loaded(write(tmp_path / name, FILES[name]))
    assert (task.labels, task.metric) == (("relevance",), "ndcg_at_10")
    assert task.train.examples[0] == ("q", "red", "green")
    assert task.train.label_ids[0] == (0.0, 2.0)
    assert len(task.text_columns) == 2


@pytest.mark.parametrize("relevance", [1, "1", "green", [0, 1], ["green"], [0.0, 1.0]])
def test_the_relevant_passage_is_named_in_several_ways(relevance: Any, tmp_path: Path) -> None:
    task = loaded(write(tmp_path / "a.jsonl", rows(listed(relevance))))
    assert task.train.label_ids == ((0.0, 1.0),)


@pytest.mark.parametrize("query", ["query", "anchor"])
def test_triples_are_read_in_an_order_that_says_nothing(query: str, tmp_path: Path) -> None:
    """Positives come first in every row: read so, a model that scores all alike would be right."""
    triples = [
        {query: f"q{row % 10}", "positive": f"right {row % 10}", "negative": f"wrong {row}"}
        for row in range(30)
    ]
    task = loaded(write(tmp_path / "a.jsonl", rows(*triples)))
    assert len(task.train) == 10
    for example, relevances in zip(task.train.examples, task.train.label_ids, strict=True):
        assert len(example) == 5
        assert sorted(relevances) == [0.0, 0.0, 0.0, 1.0]
        assert example[1 + relevances.index(1.0)].startswith("right")
    assert 0 < [each[0] for each in task.train.label_ids].count(1.0) < 10


def test_negatives_come_in_lists_and_in_columns(tmp_path: Path) -> None:
    row = {"query": "q", "positive": ["a", "b"], "negative_1": "c", "negatives_2": ["d"]}
    task = loaded(write(tmp_path / "a.jsonl", rows(row)))
    pairs = dict(zip(task.train.examples[0][1:], task.train.label_ids[0], strict=True))
    assert pairs == {"a": 1, "b": 1, "c": 0, "d": 0}


def test_columns_of_any_name_are_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "ask,text,grade\nq,red,0\nq,green,1\n")
    names = {"text_column": "ask", "pair_column": "text", "label_column": "grade"}
    task = loaded(path, **names)
    assert task.text_columns == ("ask", "text")
    assert task.train.label_ids == ((0.0, 1.0),)


def test_a_column_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows(listed([0, 1])))
    with pytest.raises(DataError, match=r"no column 'passage'. Did you mean 'passages'"):
        loaded(path, pair_column="passage")
    with pytest.raises(DataError, match="no column 'passage'"):
        read_file(path, "query", "passage", 2, problem=RANKING)
    lines = write(tmp_path / "a.txt", "a query\n")
    with pytest.raises(DataError, match="a line holds one text, and the examples have query, pass"):
        read_file(lines, "text", None, 2, problem=RANKING)


WRONG = {
    "none of the 2 passages of this query is relevant": listed([0, 0]),
    "3 relevances for 2 passages": listed([0, 1, 1]),
    "1 relevances for 2 passages": listed([1]),
    "2 is not an index of the 2 passages": listed(2),
    "'blue' is not a number": listed("blue"),
    "the relevance -1 is below 0": listed([0, -1]),
    "an empty list": {"query": "q", "passages": [], "relevance": []},
    "is neither a text nor a list of texts": {"query": "q", "passages": 3, "relevance": 1},
    "has the relevances 0 and 1": listed([0, 1], "red", "red"),
    "the file has no column of relevances": {"query": "q", "passages": ["a", "b"]},
    "empty": listed([0, 1], "red", " "),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_no_query_is_named(said: str, tmp_path: Path) -> None:
    fine = {**listed([0, 1]), "query": "fine"} if "no column" not in said else {}
    path = write(tmp_path / "a.jsonl", rows(*([fine] if fine else []), WRONG[said]))
    with pytest.raises(DataError, match=rf"a.jsonl, line {1 + bool(fine)}, column '.*{said}"):
        loaded(path)


def test_queries_without_a_relevant_passage_are_left_out_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.csv", FLAT + "s,one,0\ns,two,0\n")
    with pytest.raises(DataError, match="line 6, column 'relevance': none of the 2 passages"):
        loaded(path)
    task = loaded(path, skip_bad_rows=True)
    assert [example[0] for example in task.train.examples] == ["q", "r"]
    assert task.left_out.count == 2  # of both files


@pytest.mark.data
@pytest.mark.usefixtures("data_directory")
def test_a_named_task_ranks_the_paragraphs_of_a_document() -> None:
    task = load_task(TaskConfig(task="squad-ranking", select=0))
    assert task.metric == "ndcg_at_10"
    for split in (task.train, task.dev):
        assert all(sum(target) == 1 for target in split.label_ids)
        assert all(2 <= len(target) <= CANDIDATES for target in split.label_ids)
    learned = {passage for example in task.train.examples for passage in example[1:]}
    assert not learned & {passage for example in task.dev.examples for passage in example[1:]}


def test_the_scores_are_those_of_the_literature() -> None:
    generator = np.random.default_rng(3)
    counts = generator.integers(2, 15, 40)
    truth = [tuple(map(float, generator.integers(0, 4, count))) for count in counts]
    truth = [each if max(each) else (1.0, *each[1:]) for each in truth]
    found = [tuple(generator.normal(size=count).tolist()) for count in counts]
    expected = [
        ndcg_score([2 ** np.array(own) - 1], [given], k=10)
        for own, given in zip(truth, found, strict=True)
    ]
    assert score("ndcg_at_10", truth, found).value == pytest.approx(np.mean(expected))
    made = [(0.0, 1.0, 2.0), (1.0, 0.0)]
    given = [(0.5, 0.1, 0.9), (1.0, 3.0)]
    assert score("mean_reciprocal_rank", made, given).value == pytest.approx(0.75)
    assert score("recall_at_1", made, given).value == pytest.approx(0.25)
    assert score("recall_at_5", made, given).value == 1.0


def test_a_relevance_may_be_a_count() -> None:
    assert score("ndcg_at_10", [(5000.0, 0.0)], [(1.0, 0.0)]).value == 1.0
    assert score("ndcg_at_10", [(0.0, 5000.0)], [(1.0, 0.0)]).value == pytest.approx(1 / np.log2(3))


def test_equal_scores_keep_the_order_given() -> None:
    assert score("mean_reciprocal_rank", [(0.0, 1.0, 0.0)], [(1.0, 1.0, 1.0)]).value == 0.5
    undefined = score("ndcg_at_10", [(1.0, 1.0)], [(0.0, 1.0)]).undefined
    assert undefined is not None and "any order of them is right" in undefined


def test_an_oracle_decodes_to_its_targets() -> None:
    """Each passage is a row with one score, which another batch may have computed."""
    task = ranking_task(8, 20)
    predictions = []
    for target, example in zip(task.dev.label_ids, task.dev.examples, strict=True):
        rows = [Outputs(np.array([[each]], np.float32), np.zeros(1, int)) for each in target]
        outputs = RANKING.joined(rows)
        assert outputs.logits.shape == (len(target), 1)
        assert RANKING.decode(outputs, example) == target
        best = int(np.argmax(target))
        assert RANKING.decisions(outputs).tolist() == [[best]]
        assert RANKING.by_names(target, ("relevance",))[0] == str(best)
        predictions.append(RANKING.decode(outputs, example))
    for metric in ("ndcg_at_10", "mean_reciprocal_rank", "recall_at_5"):
        assert score(metric, task.dev.label_ids, predictions).value == 1.0


def test_a_model_that_scores_all_alike_is_found() -> None:
    task = ranking_task(8, 20)
    assert constant_row(task).label == "the order given"
    alike = [(0.3,) * len(target) for target in task.dev.label_ids]
    found = found_constant(task, task.dev, alike)
    assert found is not None
    assert found.label == "the order given"
    differ = [target for target in task.dev.label_ids if len({*target}) > 1]
    share = sum(target[0] == max(target) for target in differ) / len(differ)
    assert found.share == pytest.approx(share)
    assert found_constant(task, task.dev, task.dev.label_ids) is None


def test_a_margin_is_that_of_the_two_best() -> None:
    outputs = Outputs(np.array([[0.5], [2.0], [1.0]], np.float32), np.arange(3))
    assert RANKING.margins(outputs).tolist() == [[0.5]]
    assert RANKING.margins(Outputs(outputs.logits[:1], np.arange(1))).tolist() == [[0.0]]


def batch_of(counts: list[int], relevances: list[float]) -> dict[str, torch.Tensor]:
    return {ROWS: torch.tensor(counts), "labels": torch.tensor(relevances)[:, None]}


def test_the_loss_is_a_softmax_over_the_passages_of_a_query() -> None:
    batch = batch_of([2, 3, 1], [0, 1, 2, 0, 2, math.nan])
    scores = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, 9.0])[:, None].requires_grad_()
    first = -scores[:2, 0].log_softmax(0)[1]
    second = -(scores[2:5, 0].log_softmax(0) * torch.tensor([0.5, 0, 0.5])).sum()
    loss = HEADS["ranking"].hard_loss(scores, batch)
    torch.testing.assert_close(loss, (first + second) / 2)
    loss.backward()
    assert scores.grad is not None and scores.grad.isfinite().all() and scores.grad[5] == 0
    unlabelled = batch_of([2], [math.nan, math.nan])
    assert HEADS["ranking"].hard_loss(scores[:2], unlabelled) == 0


def test_a_student_learns_the_margins_of_its_teacher() -> None:
    head, batch = HEADS["ranking"], batch_of([3, 1, 2], [0.0] * 6)
    generator = torch.Generator().manual_seed(4)
    ours, theirs = torch.randn(2, 6, 1, generator=generator)
    losses = []
    for start, end in ((0, 3), (4, 6)):
        own, wanted = ours[start:end, 0], theirs[start:end, 0]
        margins = (own[:, None] - own[None]) - (wanted[:, None] - wanted[None])
        count = end - start
        losses.append(margins.square().sum() / (count * (count - 1)))
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(head.soft_loss(ours, theirs, batch, 1.0), expected)
    torch.testing.assert_close(head.soft_loss(theirs + 3.0, theirs, batch, 2.0), torch.tensor(0.0))


def test_training_reads_the_rows_of_the_endpoint() -> None:
    task = ranking_task(8, 8)
    tokenizer = tiny_tokenizer()
    examples = token_dataset(task.train, tokenizer, task.problem_type)
    batch = examples.collate([examples[row] for row in range(8)])
    arrays = RANKING.encoder(tokenizer)(task.train.examples).arrays
    for name, array in arrays.items():
        np.testing.assert_array_equal(batch[name].numpy(), array)
    assert batch["labels"].flatten().tolist() == [
        each for target in task.train.label_ids for each in target
    ]


def test_many_passages_are_learned_from_in_part_and_scored_as_a_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    passages = tuple(f"passage {number}" for number in range(40))
    row = listed([float(number in (30, 35)) for number in range(40)], *passages)
    with caplog.at_level(logging.WARNING):
        task = loaded(write(tmp_path / "a.jsonl", rows(row)))
    assert "1 of 1 training queries have more passages" in caplog.text
    ((_, *kept),) = task.train.examples
    assert len(kept) == MOST_TRAINED
    assert {"passage 30", "passage 35"} <= {*kept}
    assert sum(task.train.label_ids[0]) == 2
    assert len(task.dev.examples[0]) == 41
    texts = (("q", *passages),)
    extended = task.with_unlabelled(texts)
    assert len(extended.train.examples[-1]) == 1 + MOST_TRAINED
    assert all(map(math.isnan, extended.train.label_ids[-1]))


def test_passages_without_relevances_are_read(tmp_path: Path) -> None:
    task = ranking_task(8, 8)
    flat = write(tmp_path / "a.csv", "query,passage\nq,red\nr,blue\nq,green\nq,red\n")
    assert read_unlabelled(flat, task) == (("q", "red", "green", "red"), ("r", "blue"))
    lists = write(tmp_path / "a.jsonl", rows({"query": "q", "passages": ["red", "green"]}))
    assert read_unlabelled(lists, task) == (("q", "red", "green"),)


def cross_encoder(folder: Path, **settings: Any) -> Path:
    """A folder as sentence-transformers' CrossEncoder saves it."""
    torch.manual_seed(5)
    model = tiny_bert(len(tiny_tokenizer()), ("LABEL_0",))
    for name, value in settings.items():
        setattr(model.config, name, value)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


OF_CROSS_ENCODER = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}


def test_a_finished_cross_encoder_ranks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = cross_encoder(tmp_path / "theirs", **OF_CROSS_ENCODER)
    with caplog.at_level(logging.WARNING):
        assert open_artifact(theirs).card.task.problem_type == "regression"
    assert "CrossEncoder" in caplog.text
    assert "--problem-type regression" in caplog.text
    assert "--problem-type ranking" in caplog.text
    made = bertender.import_model(theirs, {"problem_type": "ranking"}, out=tmp_path / "made")
    assert (made.card.task.problem_type, made.card.task.labels) == ("ranking", ("relevance",))
    assert made.card.task.text_columns == ("query", "passages")
    task = recorded_task(made, {"dev": write(tmp_path / "dev.jsonl", rows(listed(1), listed(0)))})
    assert task.problem_type == "ranking"
    found, _ = evaluate(open_classifier(made.of_task(task.record())), task.dev, task.metric)
    assert found.n == 2


def test_a_model_taken_for_numbers_says_how_it_ranks(tmp_path: Path) -> None:
    numbers = open_artifact(cross_encoder(tmp_path / "theirs"))
    with pytest.raises(ConfigError, match=r"bertender import .*theirs --problem-type ranking"):
        ranking_task(8, 8).check_problem(numbers)
    with pytest.raises(ConfigError, match=r"head of .* is that of single_label_class"):
        model = tiny_bert(len(tiny_tokenizer()), ("a", "b"))
        model.save_pretrained(tmp_path / "two")
        tiny_tokenizer().save_pretrained(tmp_path / "two")
        import_model(tmp_path / "two", tmp_path / "out", problem_type="ranking")


def test_transformers_gives_the_scores_of_an_artifact(tmp_path: Path) -> None:
    model, task = tiny_bert(len(tiny_tokenizer()), ("relevance",)), ranking_task(8, 8)
    for name, value in RANKING.model_settings.items():
        setattr(model.config, name, value)
    written = write_model(model, tiny_tokenizer(), task, tmp_path / "model")
    config = json.loads((written.path / "config.json").read_text())
    assert config["id2label"] == {"0": "relevance"}
    assert config["sentence_transformers"]["activation_fn"].endswith("Identity")
    found = predict_outputs(open_classifier(written), task.dev.examples)
    plain = AutoModelForSequenceClassification.from_pretrained(written.path)
    tokenizer = AutoTokenizer.from_pretrained(written.path)
    for (query, *passages), own in zip(task.dev.examples, found, strict=True):
        tokens = tokenizer([query] * len(passages), passages, padding=True, return_tensors="pt")
        with torch.no_grad():
            expected = plain(**tokens).logits
        np.testing.assert_allclose(own.logits, expected.numpy(), atol=1e-5)
        pairs = [(query, passage) for passage in passages]
        np.testing.assert_allclose(
            by_cross_encoder(written.path, pairs), expected.numpy()[:, 0], atol=1e-5
        )
    again = open_artifact(plain_copy(written, tmp_path / "again"))
    assert again.card.task.problem_type == "ranking", "by the name of its output"


def by_cross_encoder(folder: Path, pairs: list[tuple[str, str]]) -> Any:
    library = pytest.importorskip("sentence_transformers")
    opened = library.CrossEncoder(str(folder), device="cpu", local_files_only=True)
    return opened.predict(pairs)


def plain_copy(artifact: Artifact, out: Path) -> Path:
    """The folder as transformers reads it, without the card."""
    out.mkdir()
    for path in artifact.path.iterdir():
        if path.name != "artifact.json":
            (out / path.name).write_bytes(path.read_bytes())
    return out


def test_lists_travel_in_one_tensor() -> None:
    assert input_names(2, has_list=True) == ("TEXT", "PASSAGES")
    examples = (("q", "red", "green"), ("r", "blue"))
    arrays = to_arrays(examples, 2, has_list=True)
    assert [array.shape for array in arrays] == [(2, 1), (2, 2)]
    assert from_arrays(arrays, has_list=True) == examples
    for wrong, said in {
        ("q",): "row 1 has 1 text, but the model takes a query and its passages",
        ("q", "red", ""): "PASSAGES row 1 is empty",
    }.items():
        with pytest.raises(DataError, match=said) as refused:
            to_arrays([examples[0], wrong], 2, has_list=True)
        place = row_in(str(refused.value))
        assert place is not None and place.row == 1
    with pytest.raises(DataError, match="PASSAGES row 1 is empty"):
        empty = np.array([[b"red", b"green"], [b"", b"blue"]], np.object_)
        from_arrays([arrays[0], empty], has_list=True)


def answer(example: tuple[str, ...], scores: tuple[float, ...]) -> Classification:
    outputs = Outputs(np.array(scores, np.float32)[:, None], np.arange(len(scores)))
    names = np.array([b"relevance"], np.object_)
    tensors = RANKING.response([outputs], [example], names, [example])
    return Classification(**RANKING.read_response(tensors, 0, example))


def test_an_answer_has_the_passages_in_order(tmp_path: Path) -> None:
    example = ("q", "red", "green", "blue")
    found = answer(example, (0.5, 2.0, -1.0))
    assert (found.label, found.logits) == (("1", "0", "2"), (0.5, 2.0, -1.0))
    assert found.ranking is not None
    assert [(each.number, each.score, each.text) for each in found.ranking] == [
        (1, 2.0, "green"),
        (0, 0.5, "red"),
        (2, -1.0, "blue"),
    ]
    assert [*lines_of(found, example, RANKING)] == [
        "1\t2.0000\tgreen",
        "0\t0.5000\tred",
        "2\t-1.0000\tblue",
        "",
    ]
    output = tmp_path / "out.csv"
    write_predictions(output, RANKING.columns.texts, [example], [found])
    assert output.read_text().splitlines() == [
        "query,passage,score,rank,truncated",
        "q,red,0.5,2,false",
        "q,green,2.0,1,false",
        "q,blue,-1.0,3,false",
    ]


def test_scores_of_requests_are_padded_apart() -> None:
    examples = [("q", "red", "green", "blue"), ("r", "pink")]
    outputs = [
        Outputs(np.arange(len(each) - 1, dtype=np.float32)[:, None], np.arange(len(each) - 1))
        for each in examples
    ]
    tensors = RANKING.response(outputs, examples, np.array([b"relevance"], np.object_), examples)
    assert tensors["SCORES"][1].tolist() == [0.0, NOTHING, NOTHING]
    own = RANKING.response_of(tensors, slice(1, 2), examples[1:])
    assert own["SCORES"].tolist() == [[0.0]]
    assert own["ORDER"].tolist() == [[0]]
    assert RANKING.joined_logits([tensors, own]).shape == (3, 3)


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_a_score_that_is_not_finite_is_refused(broken: float) -> None:
    """As a score of no passage, it would shift those after it by one passage."""
    example = ("q", "red", "green", "blue", "pink")
    scores = np.array([[1.0], [broken], [3.0], [2.0]], dtype=np.float32)
    encode, predictor = RANKING.encoder(tiny_tokenizer()), FakePredictor(lambda batch: scores)
    local = Classifier("broken", ("relevance",), encode, predictor, 0, RANKING, 2)
    scorer = Scorer("broken")
    scorer.classifier = local
    with pytest.raises(ModelError, match="with NaN or infinite logits"):
        predict_outputs(local, [example])
    with pytest.raises(ModelError, match="with NaN or infinite logits"):
        scorer([example])
    with serving(BucketedClassifier(encode, predictor, RANKING), local.labels) as served:
        (refused,) = ask(served, [example])
    assert isinstance(refused, Refusal) and "not finite" in refused.reason


@pytest.mark.parametrize("name", ["flat.csv", "list.jsonl"])
def test_queries_of_a_file_are_asked_about(name: str, tmp_path: Path) -> None:
    texts = read_file(write(tmp_path / name, FILES[name]), "text", None, 2, problem=RANKING)
    assert texts.texts[0] == ("q", "red", "green")
    assert len(texts.columns) == 2


def test_splits_keep_a_query_on_one_side() -> None:
    assert RANKING.told_apart_by(("q", "red")) == RANKING.told_apart_by(("q", "green"))


def test_passages_of_the_shortest_query_of_the_gate_differ() -> None:
    """Equal ones would tie, and noise would order them."""
    short, _ = RANKING.edge_examples([("who ran", "The man ran.", "The man sat.", "Rain.")], 9)
    assert short == ("who", "The man ran.", "The man sat.")
