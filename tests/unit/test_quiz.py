"""The quiz: repeatable, solvable, graded with the planner's own formulas."""

import json

import pytest
from click.testing import CliRunner

from spola.cli import main as cli
from spola.planner.quiz import Question, grade, questions


@pytest.mark.parametrize("lang", ["en", "it"])
def test_every_question_accepts_its_own_answer_and_no_other(lang):
    for question in questions(300, lang, seed=3):
        if question.kind == "choice":
            assert len(set(question.options)) == 4
            right = question.options.index(question.answer)
            assert [grade(question, option) for option in question.options] == [i == right for i in range(4)]
            assert [grade(question, str(i + 1)) for i in range(4)] == [i == right for i in range(4)]
            assert question.answer.casefold() not in question.text.casefold()
        else:
            assert grade(question, f"{question.answer} {question.unit}")
            assert grade(question, f"{question.answer * 1.02:.12g}")
            assert not grade(question, f"{question.answer * 1.1:.12g}")


def test_a_seed_gives_the_same_questions_again():
    assert questions(20, "en", 7) == questions(20, "en", 7)
    assert questions(20, "en", 7) != questions(20, "en", 8)


def test_all_sums_come_before_one_comes_again():
    sums = [q.text.split()[0:3] for q in questions(15, "en", 1) if q.kind == "number"]
    assert len(sums) == 9
    assert len({tuple(words) for words in sums}) >= 8


@pytest.mark.parametrize("given", ["524288", "524,288", "524.288 byte", "524288 bytes", "5.24e5"])
def test_numbers_are_read_as_people_write_them(given):
    question = Question(kind="number", text="", answer=524288, worked="", unit="bytes")
    assert grade(question, given)


@pytest.mark.parametrize("given", ["", "many", "-524288", "5", "1,2,3.4.5"])
def test_what_is_no_such_number_is_wrong(given):
    assert not grade(Question(kind="number", text="", answer=524288, worked=""), given)


def test_the_text_books_sum():
    found = next(q for q in questions(400, "it", 0) if "13B parametri in INT8" in q.text)
    assert found.answer == 13.0


def test_a_session_on_stdin():
    asked = json.loads(CliRunner().invoke(cli, ["quiz", "-n", "4", "--seed", "5", "--json"]).stdout)[
        "questions"
    ]
    answers = [str(q["answer"]) for q in asked]
    result = CliRunner().invoke(
        cli, ["quiz", "-n", "4", "--seed", "5"], input="\n".join([*answers[:3], "nonsense"]) + "\n"
    )
    assert result.exit_code == 0
    assert "3 of 4 right" in result.stdout


def test_an_early_end_counts_what_was_asked():
    result = CliRunner().invoke(cli, ["quiz", "-n", "4", "--lang", "it"], input="")
    assert result.exit_code == 0
    assert "0 giuste su 0" in result.stdout
