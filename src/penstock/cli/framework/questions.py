"""Questions at a terminal for options that were not given, as `stream add` asks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.cli.framework.command_parser import UsageError, converted
from penstock.cli.framework.command_table import Option
from penstock.cli.framework.command_values import CommandValues


@dataclass(frozen=True, slots=True)
class Question:
    """key: the option's name. text: without its default, which is what an empty answer means.

    inverted: a flag is asked for by its opposite (`--deny-purge`: "Allow purging"). answers: further answers,
    and the value of the option that each stands for.
    """

    key: str
    text: str
    default: str = ""
    inverted: bool = False
    answers: Mapping[str, str] = field(default_factory=dict)

    def value(self, option: Option, answer: str) -> Any:
        """The option's value. Capitals don't matter where there is a choice. Raises UsageError."""
        text = answer or self.default
        small = text.lower()
        if small in self.answers:
            text = self.answers[small]
        elif option.choices or option.is_flag:
            text = small
        found = converted(option, text)
        return not found if self.inverted else found


def ask_questions(
    questions: Iterable[Question],
    options: Iterable[Option],
    values: CommandValues,
    ask: Callable[[str], str],
    complain: Callable[[str], object],
) -> CommandValues:
    """Values with the answers for options that were not given. A question is asked until its answer is one.

    ask: gets a text and returns the answer. complain: gets what is wrong with an answer.
    """
    known = {option.key: option for option in options}
    found: dict[str, Any] = {}
    for question in questions:
        option = known[question.key]
        while not values.given(question.key) and question.key not in found:
            answer = ask(f"{question.text} [{question.default}] ")
            try:
                found[question.key] = question.value(option, answer)
            except UsageError as error:
                complain(str(error))
    return values.with_answers(found)
