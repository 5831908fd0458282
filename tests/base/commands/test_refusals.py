# -*- test-case-name: tests.base.commands.test_refusals -*-
"""Fields of requests: what is there, what is missing, what makes no sense."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code, Fields, Refused


class FieldsTests(SynchronousTestCase):
    """A field is read as its type, or refused with a sentence that names it."""

    def setUp(self) -> None:
        self.fields = Fields({
            "topic": "T", "number": "-7", "yes": "True", "no": "false", "word": "seven", "long": str(2**40),
            "huge": "9" * 21, "other": "\u0663", "empty": "",
        })

    def refused(self, call: object, *args: object, **options: object) -> str:
        """The remark of a refusal; its code is SYSTEM_ERROR."""
        error = self.assertRaises(Refused, call, *args, **options)
        self.assertEqual(error.code, Code.SYSTEM_ERROR)
        return str(error.remark)

    def test_what_is_there(self) -> None:
        """Text, numbers and flags as they stand."""
        fields = self.fields
        self.assertEqual(fields.text("topic"), "T")
        self.assertEqual(fields.number("number"), -7)
        self.assertEqual(fields.number("long", most=2**63 - 1), 2**40)
        self.assertTrue(fields.flag("yes"))
        self.assertFalse(fields.flag("no"))

    def test_defaults(self) -> None:
        """An absent field is its default; one that is there is not."""
        fields = self.fields
        self.assertEqual(fields.text("absent", "x"), "x")
        self.assertEqual(fields.number("absent", 3), 3)
        self.assertTrue(fields.flag("absent", True))
        self.assertEqual(fields.number("number", 3), -7)

    def test_missing(self) -> None:
        """Java's words for what is missing."""
        for read in (self.fields.text, self.fields.number, self.fields.flag):
            self.assertEqual(self.refused(read, "absent"), "the custom field <absent> is null")

    def test_no_number(self) -> None:
        """Words, other scripts' digits, too many digits and nothing are no numbers."""
        for name in ("word", "other", "huge", "empty"):
            self.assertIn("is not a number", self.refused(self.fields.number, name))

    def test_limits(self) -> None:
        """A number outside its limits is refused with them; without any they are those of 32 bits."""
        self.assertEqual(self.refused(self.fields.number, "number", least=0, most=9),
                         "number=-7 is outside 0..9")
        self.assertIn("outside", self.refused(self.fields.number, "long"))

    def test_no_flag(self) -> None:
        """Neither true nor false."""
        self.assertIn("neither true nor false", self.refused(self.fields.flag, "word"))

    def test_text(self) -> None:
        """A refusal shows both of its parts."""
        self.assertEqual(str(Refused(Code.NO_PERMISSION, "not here")), "not here (16)")
