# -*- test-case-name: tests.sim.test_exams -*-
"""Filters of consumers: what each expression lets through of known messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dledger.testing.brokers.exams.examiner import Examiner, messages_in

_Named = Mapping[str, str]
#: Of the messages of the exam: numbers, texts, truth values; every third has no text.
_MESSAGES: tuple[dict[str, str], ...] = tuple(
    {"n": str(number * 5 - 10), "f": f"{number}.5", "b": "true" if number % 2 else "false",
     **({} if number % 3 == 2 else {"s": ("ab", "cd", "O'x", "abc")[number % 4]})}
    for number in range(8)  # as many as an answer has at least, whatever an operator has set
)


def _n(named: _Named) -> int:
    return int(named["n"])


def _f(named: _Named) -> float:
    return float(named["f"])


def _s(named: _Named) -> str:
    return named.get("s", "")


_EXPRESSIONS: tuple[tuple[str, Callable[[_Named], bool]], ...] = (
    ("n > 5", lambda one: _n(one) > 5), ("n >= 5", lambda one: _n(one) >= 5),
    ("n < 5", lambda one: _n(one) < 5), ("n <= 5", lambda one: _n(one) <= 5),
    ("n = 5", lambda one: _n(one) == 5), ("n <> 5", lambda one: _n(one) != 5),
    ("n = -5", lambda one: _n(one) == -5), ("n > -(+5)", lambda one: _n(one) > -5),
    ("5 < n", lambda one: _n(one) > 5), ("n < 3000000000", lambda one: True),
    ("n BETWEEN 0 AND 15", lambda one: 0 <= _n(one) <= 15),
    ("n NOT BETWEEN 0 AND 15", lambda one: not 0 <= _n(one) <= 15),
    ("f > 2.5", lambda one: _f(one) > 2.5), ("f >= 2.5", lambda one: _f(one) >= 2.5),
    ("f <= .5e1", lambda one: _f(one) <= 5), ("n < f", lambda one: _n(one) < _f(one)),
    ("b = TRUE", lambda one: one["b"] == "true"), ("b <> true", lambda one: one["b"] != "true"),
    ("s = 'ab'", lambda one: _s(one) == "ab"), ("s = 'O''x'", lambda one: _s(one) == "O'x"),
    ("s IN ('ab', 'cd')", lambda one: _s(one) in ("ab", "cd")),
    ("s NOT IN ('ab')", lambda one: _s(one) not in ("", "ab")),
    ("s IS NULL", lambda one: not _s(one)), ("s IS NOT NULL", lambda one: bool(_s(one))),
    ("s CONTAINS 'b'", lambda one: "b" in _s(one)),
    ("s NOT CONTAINS 'b'", lambda one: bool(_s(one)) and "b" not in _s(one)),
    ("s STARTSWITH 'ab'", lambda one: _s(one).startswith("ab")),
    ("s ENDSWITH 'c'", lambda one: _s(one).endswith("c")),
    ("s NOT ENDSWITH 'c'", lambda one: bool(_s(one)) and not _s(one).endswith("c")),
    ("NOT (n > 5)", lambda one: _n(one) <= 5),
    ("NOT (s = 'ab')", lambda one: _s(one) not in ("", "ab") or not _s(one) and False),
    ("n > 5 AND s = 'ab'", lambda one: _n(one) > 5 and _s(one) == "ab"),
    ("n < 0 OR s = 'cd' AND n > 3", lambda one: _n(one) < 0 or _s(one) == "cd" and _n(one) > 3),
    ("(n < 0 OR n > 20) AND b = TRUE", lambda one: (_n(one) < 0 or _n(one) > 20) and one["b"] == "true"),
    ("TRUE", lambda one: True), ("FALSE OR n > 10", lambda one: _n(one) > 10),
    ("missing IS NULL AND n > 0", lambda one: _n(one) > 0), ("missing = 1", lambda one: False),
    ("s > 3", lambda one: False),
)
_WRONG = ("n >", "n > 'a'", "n ? 1", "(n > 1", "n IN (1)", "n BETWEEN 9 AND 1",
          "s = NULL", "n IS 5", "'a'", "")


async def filter_paper(exam: Examiner) -> None:
    """Pull with every expression."""
    topic = await exam.topic(1)
    for number, named in enumerate(_MESSAGES):
        await exam.send(topic, f"f{number}", named)
    await exam.reaches(topic, len(_MESSAGES))
    for expression, passes in _EXPRESSIONS:
        answer = await exam.pull(topic, 0, sub=expression, kind="SQL92")
        found = [one.queue_offset for one in messages_in(answer.body)] if answer.code == 0 else []
        wanted = [at for at, named in enumerate(_MESSAGES) if passes(named)]
        exam.require(answer.code in (0, 20) and found == wanted,
                     f"{expression} lets {found} through, {wanted} are right ({answer.code} {answer.remark})")
        exam.require(answer.ext_fields["nextBeginOffset"] == str(len(_MESSAGES)),
                     f"a pull of {expression} goes on at {answer.ext_fields['nextBeginOffset']}")
        if len(wanted) > 1:
            answer = await exam.pull(topic, 0, sub=expression, kind="SQL92", most=1)
            found = [one.queue_offset for one in messages_in(answer.body)]
            following = int(answer.ext_fields["nextBeginOffset"])
            exam.require(found == wanted[:1] and wanted[0] < following <= wanted[1],
                         f"the first message of {expression} is {found}, then {following}")
    for expression in _WRONG:
        answer = await exam.pull(topic, 0, sub=expression, kind="SQL92")
        exam.require(answer.code not in (0, 19, 20, 21), f"the expression {expression!r} is taken")
