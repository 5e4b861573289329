"""Toys: tiny real models, tasks, tokenizers and texts, made here, with no file from outside."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaTokenizerFast,
)

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.config import Config
from bertender.core.findings import Findings
from bertender.tasks.named import NamedTask
from bertender.tasks.task import Split, Task
from bertender.text.batch import Example
from bertender.text.tokenizer import padding_of
from bertender.training.examples import TokenDataset
from distill.pretraining.rows import pack_rows
from distill.pretraining.vocabularies import train_wordpiece

FRUIT = ("apple", "pear", "plum", "cherry", "grape", "melon")
TOOLS = ("hammer", "saw", "drill", "wrench", "pliers", "chisel")


class NoConfig(Config):
    """The config of an artifact that a test made by hand."""


new_toy = partial(new_artifact, config=NoConfig(), seed=0)
"""`new_artifact` without settings."""


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


def write_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, out: Path
) -> Artifact:
    """Write a torch artifact of a model as it is, as if `finetune` had."""
    with new_toy(
        out, kind="torch", family=model.config.model_type, task=task.record(), stage="finetune"
    ) as draft:
        model.save_pretrained(draft.directory)
        tokenizer.save_pretrained(draft.directory)
        draft.findings = Findings(parameters=model.num_parameters())
    return Artifact.load(out)


@dataclass(frozen=True)
class ToyNamedTask(NamedTask):
    """A row of TASKS whose data are given, or stop at an error."""

    splits: tuple[Split, Split] | Exception
    texts: tuple[Example, ...] = ()
    """Those without labels."""
    has_unlabelled = True

    @classmethod
    def of(cls, task: Task, texts: tuple[Example, ...] = ()) -> ToyNamedTask:
        splits = task.train, task.dev
        return cls("a toy", task.labels, task.metric, task.text_columns, splits, texts)

    def load(self) -> tuple[Split, Split]:
        if isinstance(self.splits, Exception):
            raise self.splits
        return self.splits

    def unlabelled(self) -> tuple[Example, ...]:
        return self.texts


def drawn_words(generator: torch.Generator, words: Sequence[str], count: int) -> list[str]:
    return [words[pick] for pick in torch.randint(0, len(words), (count,), generator=generator)]


def number_task(train_size: int = 400, dev_size: int = 40) -> Task:
    """How much of a text is about fruit, as a number from 200 to 240? The mean is far from 0."""
    generator = torch.Generator().manual_seed(12)

    def split(size: int) -> Split:
        examples, numbers = [], []
        for fruit, tools in torch.randint(0, 4, (size, 2), generator=generator).tolist():
            words = [
                *drawn_words(generator, FRUIT, fruit),
                *drawn_words(generator, TOOLS, tools + (fruit + tools == 0)),
            ]
            order = torch.randperm(len(words), generator=generator).tolist()
            examples.append((" ".join(words[place] for place in order),))
            numbers.append(200 + 40 * fruit / len(words))
        return Split(tuple(examples), tuple(numbers))

    return Task(
        *("share", ("number",), "pearson", ("text",), split(train_size), split(dev_size)),
        problem_type="regression",
    )


def set_task(train_size: int = 400, dev_size: int = 40) -> Task:
    """Is a text about fruit, about tools, about both, or about neither?"""
    generator = torch.Generator().manual_seed(13)

    def split(size: int) -> Split:
        examples, sets = [], []
        for fruit, tools in torch.randint(0, 2, (size, 2), generator=generator).tolist():
            words = [
                "number",
                *drawn_words(generator, FRUIT, 2 * fruit),
                *drawn_words(generator, TOOLS, 2 * tools),
            ]
            order = torch.randperm(len(words), generator=generator).tolist()
            examples.append((" ".join(words[place] for place in order),))
            sets.append(tuple(number for number, there in enumerate((fruit, tools)) if there))
        return Split(tuple(examples), tuple(sets))

    return Task(
        *("topics", ("fruit", "tools"), "micro_f1", ("text",), split(train_size), split(dev_size)),
        problem_type="multi_label_classification",
    )


def similarity_task(train_size: int = 400, dev_size: int = 40) -> Task:
    """How alike are two texts in how much they are about fruit, from 0 to 5?"""
    generator = torch.Generator().manual_seed(14)

    def text(fruit: int) -> str:
        words = [*drawn_words(generator, FRUIT, fruit), *drawn_words(generator, TOOLS, 4 - fruit)]
        order = torch.randperm(len(words), generator=generator).tolist()
        return " ".join(words[place] for place in order)

    def split(size: int) -> Split:
        shares = torch.randint(0, 5, (size, 2), generator=generator).tolist()
        examples = tuple((text(first), text(second)) for first, second in shares)
        return Split(examples, tuple(5 - 1.25 * abs(first - second) for first, second in shares))

    return Task(
        *("alike", ("embedding",), "cosine_spearman", ("sentence1", "sentence2")),
        *(split(train_size), split(dev_size)),
        problem_type="sentence_embedding",
    )


def answer_task(train_size: int = 300, dev_size: int = 40) -> Task:
    """Which fruit is among the tools? One or two words, or none; some texts have two windows."""
    generator = torch.Generator().manual_seed(14)

    def split(size: int) -> Split:
        examples, answers = [], []
        for row, fruit in enumerate(torch.randint(0, 3, (size,), generator=generator).tolist()):
            longest = 90 if row % 8 == 0 else 20
            count = int(torch.randint(2, longest, (), generator=generator))
            place = int(torch.randint(0, count, (), generator=generator))
            tools = drawn_words(generator, TOOLS, count)
            answer = " ".join(drawn_words(generator, FRUIT, fruit))
            before = "".join(f"{word} " for word in tools[:place])
            examples.append((f"number {row}", f"{before}{answer} {' '.join(tools[place:])}"))
            answers.append(((answer, len(before)),) if fruit else ())
        return Split(tuple(examples), tuple(answers))

    columns = ("question", "context")
    return Task(
        *("find", ("start", "end"), "answer_f1", columns, split(train_size), split(dev_size)),
        problem_type="question_answering",
    )


def choice_task(train_size: int = 256, dev_size: int = 40) -> Task:
    """Which of three choices is most about tools? They have one to six words, and differ."""
    generator = torch.Generator().manual_seed(14)

    def choice(fruit: int, tools: int) -> str:
        words = [*drawn_words(generator, FRUIT, fruit), *drawn_words(generator, TOOLS, tools)]
        order = torch.randperm(len(words), generator=generator).tolist()
        return " ".join(words[place] for place in order)

    def split(size: int) -> Split:
        examples, right = [], []
        kinds = ((3, 0), (1, 0), (4, 2), (2, 2), (1, 3), (0, 2))  # by their share of tools
        for row in range(size):
            drawn = torch.randperm(len(kinds), generator=generator)[:3].tolist()
            examples.append((f"number {row}", *(choice(*kinds[each]) for each in drawn)))
            right.append(drawn.index(max(drawn)))
        return Split(tuple(examples), tuple(right))

    columns = ("question", "choice_0", "choice_1", "choice_2")
    return Task(
        *("tools", ("0", "1", "2"), "accuracy", columns, split(train_size), split(dev_size)),
        problem_type="multiple_choice",
    )


def ranking_task(train_size: int = 128, dev_size: int = 40) -> Task:
    """Which of two to five passages is about tools? Some by half, which is less relevant."""
    generator = torch.Generator().manual_seed(15)

    def passage(fruit: int, tools: int) -> str:
        words = [*drawn_words(generator, FRUIT, fruit), *drawn_words(generator, TOOLS, tools)]
        order = torch.randperm(len(words), generator=generator).tolist()
        return " ".join(words[place] for place in order)

    def split(size: int) -> Split:
        examples, relevances = [], []
        kinds = {(3, 0): 0.0, (2, 0): 0.0, (4, 0): 0.0, (2, 2): 1.0, (0, 3): 2.0}
        for row in range(size):
            count = int(torch.randint(2, 6, (), generator=generator))
            drawn = [[*kinds][each] for each in torch.randperm(5, generator=generator).tolist()]
            own = drawn[:count]
            own[row % count] = (0, 3)
            examples.append((f"number {row}", *(passage(*kind) for kind in own)))
            relevances.append(tuple(kinds[kind] for kind in own))
        return Split(tuple(examples), tuple(relevances))

    columns = ("query", "passages")
    return Task(
        *("tools", ("relevance",), "ndcg_at_10", columns, split(train_size), split(dev_size)),
        problem_type="ranking",
    )


def pair_task(train_size: int = 96, dev_size: int = 32) -> Task:
    """Which of two texts is about tools? The other one is about fruit; two to six words each."""
    generator = torch.Generator().manual_seed(11)

    def words(kind: int) -> str:
        count = int(torch.randint(2, 7, (), generator=generator))
        picks = torch.randint(0, 6, (count,), generator=generator).tolist()
        return " ".join((FRUIT, TOOLS)[kind][pick] for pick in picks)

    def split(size: int) -> Split:
        seconds = torch.randint(0, 2, (size,), generator=generator).tolist()
        examples = tuple((words(1 - second), words(second)) for second in seconds)
        return Split(examples, tuple(seconds))

    columns = ("left", "right")
    return Task(
        "pairs", ("first", "second"), "accuracy", columns, split(train_size), split(dev_size)
    )


def three_kinds(train_size: int = 90) -> Task:
    """Three classes told apart by one word each."""
    kinds = ("apple", "hammer", "number")
    examples = tuple((f"{kinds[row % 3]} {row % 7} saw",) for row in range(train_size))
    split = Split(examples, tuple(row % 3 for row in range(train_size)))
    return Task("kinds", kinds, "accuracy", ("text",), split, split.first(30))


def packed(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> TokenDataset:
    """The rows of `pack_rows`, in memory."""
    rows = list(pack_rows(passages, tokenizer, max_length))
    columns = {name: [row[name] for row in rows] for name in ("input_ids", "attention_mask")}
    return TokenDataset(columns, padding_of(tokenizer))


def passages(count: int = 400) -> list[str]:
    """Sentences in which a word tells much of the others."""
    generator = torch.Generator().manual_seed(6)
    picks = torch.randint(0, 6, (count, 2), generator=generator).tolist()
    frames = (("eat the", "from the tree", FRUIT), ("use the", "from the box", TOOLS))
    return [
        f"{before} {words[first]} and the {words[second]} {after}"
        for row, (first, second) in enumerate(picks)
        for before, after, words in [frames[row % 2]]
    ]


def byte_level_tokenizer() -> RobertaTokenizerFast:
    """A tokenizer whose pieces mark what begins a word, not what continues one."""
    trainer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = " " + " ".join((*FRUIT, *TOOLS))
    trainer.train_from_iterator([words] * 20, vocab_size=400, special_tokens=special)
    trainer.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    return RobertaTokenizerFast(tokenizer_object=trainer._tokenizer, model_max_length=64)
