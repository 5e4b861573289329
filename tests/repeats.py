"""Which tests repeat a path that another test of the same function has gone already.

They are marked `slow`: `make test` leaves them to `make test-slow`. Five kinds repeat a path:

- architectures under another name: rows of FAMILIES that differ in their language head alone;
- methods whose students are of the kind of another method's, in tests OF_STUDENTS;
- a paper's second methods whose student is that of its first, in tests for which a student is
  trained by each method: their losses and phases have tests of their own;
- combinations of several parametrizations (scheme by architecture, method by teacher), once each
  value of each has been seen;
- tests of ONE_PATH, each of which costs seconds for every value of its parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertender.models.families import BERT_HEAD, FAMILIES
from bertender.models.own_models import PRUNABLE
from distill.methods import METHODS

__all__ = ["FOLDERS", "ONE_PATH", "REPEATED", "SAME_PAPER", "repeats"]

FOLDERS = (
    "benchmarks",
    "compression",
    "core",
    "distill",
    "export",
    "models",
    "pipeline",
    "problems",
    "quantize",
    "serve",
    "text",
    "training",
)
"""Under tests/, those whose tests train, export and quantize."""

LAYERS = {name: replace(family, language_head=BERT_HEAD) for name, family in FAMILIES.items()}
ALIKE = {name: [other for other in FAMILIES if LAYERS[other] == LAYERS[name]] for name in FAMILIES}
PREFERRED = ("bert", "roberta")
"""The ones to test of those that are alike."""
OTHERS = frozenset(
    name
    for name, alike in ALIKE.items()
    if name != next((each for each in PREFERRED if each in alike), alike[0])
)
REPEATED = OTHERS | {PRUNABLE[name].config.model_type for name in OTHERS & PRUNABLE.keys()}
"""Architectures that have the row of another."""

STUDENTS = [(type(row.student), vars(row.student)) for row in METHODS.values()]
PAPERS = [row.paper for row in METHODS.values()]
SAME_STUDENT = frozenset(
    name for place, name in enumerate(METHODS) if STUDENTS.index(STUDENTS[place]) < place
)
"""Methods whose student is built as that of a method before them."""
SAME_PAPER = SAME_STUDENT & {
    name for place, name in enumerate(METHODS) if PAPERS.index(PAPERS[place]) < place
}
"""Those of them of the paper of a method before them."""
OF_STUDENTS = frozenset({"test_the_student_exports_quantizes_and_survives_float16"})
"""Functions of what was trained, whichever way it was."""

ONE_PATH = frozenset(
    {
        "test_a_basic_graph_is_smaller_and_has_plain_operators",
        "test_a_general_teacher_is_refused_as_the_step_refuses_it",
        "test_a_killed_run_goes_on_in_its_phase_to_the_same_weights",
        "test_a_killed_run_goes_on_to_the_same_weights",
        "test_a_killed_run_of_two_lengths_goes_on_in_its_phase",
        "test_a_log_that_cannot_be_written_ends_no_supervisor",
        "test_a_pruned_teacher_teaches_or_is_refused",
        "test_a_quantization_is_judged_apart",
        "test_a_refused_scheme_gives_way_to_the_next",
        "test_a_scheme_quantizes_it",
        "test_a_score_that_falls_too_far_is_refused_and_gone",
        "test_a_shorter_modernbert_learns",
        "test_a_student_goes_the_whole_way",
        "test_a_table_has_times_of_all_parts",
        "test_answers_that_move_too_far_are_refused_and_gone",
        "test_attention_is_fused_in_every_layer",
        "test_batch_and_length_are_dynamic",
        "test_embeddings_can_stay_in_float",
        "test_every_activation_is_looked_at",
        "test_every_architecture_answers_in_half_the_bytes",
        "test_every_architecture_is_fine_tuned_by_name",
        "test_every_architecture_is_refused_as_the_step_refuses_it",
        "test_every_family",
        "test_every_fault_is_caught_where_it_is_planted",
        "test_every_method_trains_a_tagger",
        "test_every_scheme_goes_by_graphs_of_two_files",
        "test_every_scheme_passes_on_a_cpu_that_adds_exactly",
        "test_every_shape_is_refused_as_the_step_refuses_it",
        "test_every_start_is_refused_as_the_step_refuses_it",
        "test_four_bits_are_planned_where_a_graph_has_a_place_for_them",
        "test_it_is_exported_or_refused_with_the_way_on",
        "test_it_teaches_a_student_that_reads_word_pieces",
        "test_only_float_graphs_are_quantized",
        "test_optimised_graphs_are_converted_too",
        "test_other_families",
        "test_other_free_ports_are_chosen_where_one_is_taken_meanwhile",
        "test_others_open_it_by_the_document_as_bertender_does",
        "test_pairs",
        "test_products_of_layers_have_few_bits_and_others_eight",
        "test_rivals_in_triton_answer_every_text_of_a_request",
        "test_scales_are_shared_in_groups",
        "test_slow_and_idle_clients_delay_nobody",
        "test_students_of_another_class_have_its_words",
        "test_tables_of_4_bits_of_other_families",
        "test_texts_without_labels_are_learned_from",
        "test_the_file_stores_so_many_bits",
        "test_the_graph_computes_as_the_model_that_was_trained",
        "test_the_limit_of_a_known_queue",
        "test_the_most_sensitive_go_back_until_the_score_holds",
        "test_the_next_scheme_takes_the_place_of_one_that_is_refused",
        "test_the_same_source_gives_the_same_bytes",
        "test_weights_in_a_file_of_their_own_are_optimised_alike",
        "test_what_a_dead_stub_left_does_not_delay_the_end",
    }
)
"""Functions whose first test is quick: the others take seconds, mostly on rows tested elsewhere."""


def repeats(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests that repeat a path, in the folders where that costs time."""
    seen: set[tuple[str, str, tuple[int, ...]]] = set()
    for item in items:
        if _folder(item.path) not in FOLDERS:
            continue
        parameters = _parameters(item)
        named = {value for value in parameters.values() if isinstance(value, str)}
        if named & REPEATED:
            yield item
            continue
        if SAME_PAPER & {str(parameters[name]) for name in _of_fixtures(item, parameters)}:
            yield item
            continue
        function = item.nodeid.partition("[")[0]
        if function.rpartition("::")[2] in OF_STUDENTS and named & SAME_STUDENT:
            yield item
            continue
        if function.rpartition("::")[2] in ONE_PATH and any(function == f for f, *_ in seen):
            yield item
            continue
        values = {(function, *axis) for axis in _axes(item, parameters)}
        if len(values) > 1 and values <= seen:
            yield item
        seen |= values


def _folder(path: Path) -> str:
    """Return the folder under tests/ that a test lies in."""
    parts = path.relative_to(Path(__file__).parent).parts
    return parts[0] if len(parts) > 1 else ""


def _axes(
    item: pytest.Item, parameters: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and the values of each parametrization: a row of several values is one.

    Values are known by their objects, which all tests of a function share; pytest's own `indices`
    number the combinations.
    """
    for names in (*_marked(item), *((name,) for name in _of_fixtures(item, parameters))):
        yield ",".join(names), tuple(id(parameters[name]) for name in names)


def _of_fixtures(item: pytest.Item, parameters: Mapping[str, Any]) -> list[str]:
    """Return the names of the parameters that fixtures have."""
    return sorted(parameters.keys() - {name for names in _marked(item) for name in names})


def _marked(item: pytest.Item) -> list[tuple[str, ...]]:
    """Return the names of the parameters of each `parametrize` of a test."""
    return [_names(mark.args[0]) for mark in item.iter_markers("parametrize")]


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        return tuple(name.strip() for name in names.split(","))
    return tuple(names)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    call = getattr(item, "callspec", None)
    return dict(call.params) if call else {}
