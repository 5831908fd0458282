# -*- test-case-name: tests.base.test_tokens -*-
"""Files of tokens: who holds which, and what is refused."""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving import tokens as module
from dledger.base.serving.tokens import (
    TOKEN_FILE_BYTES_MAX,
    TOKENS_MAX,
    ClientTokenFile,
    TokenFile,
    hashed_token,
    is_token_name,
    new_token,
)
from dledger.values.client_token import TOKEN_CHARS_MAX, ClientToken, as_client_token
from dledger.values.rights import ClientRole


class TokenTests(SynchronousTestCase):
    """One file."""

    def setUp(self) -> None:
        self.path = Path(self.mktemp())

    def test_holder(self) -> None:
        """Each token has its holder, two may have one; anything else has none."""
        made = [new_token(name) for name in ("ops", "ops", "night.shift-1")]
        self.path.write_text("# who may\n\n" + "".join(line for _, line in made))
        file = TokenFile(str(self.path))
        self.assertEqual([file.holder(token) for token, _ in made], ["ops", "ops", "night.shift-1"])
        first = made[0][0]
        for wrong in ("", first[:-1], first + "x", first.swapcase(), "ops", made[0][1], "x" * 100_000,
                      "\x00", "\udcff", "\u00e9" + first):
            self.assertIsNone(file.holder(wrong), wrong[:50])

    def test_no_file_has_the_token(self) -> None:
        """Only its hash; and no two tokens are the same."""
        made = [new_token("ops") for _ in range(50)]
        self.assertEqual(len({token for token, _ in made}), 50)
        for token, line in made:
            self.assertNotIn(token, line)
            self.assertGreaterEqual(len(token), 43)

    def test_constant_time(self) -> None:
        """Every line is compared, whichever fits, by the function that takes the same time for all."""
        made = [new_token(name) for name in "abc"]
        self.path.write_text("".join(line for _, line in made))
        file, compared = TokenFile(str(self.path)), []
        real = hmac.compare_digest

        def compare(one: Any, other: Any) -> bool:
            compared.append(other)
            return real(one, other)

        self.patch(module.hmac, "compare_digest", compare)
        for token in (made[0][0], made[2][0], "wrong"):
            del compared[:]
            file.holder(token)
            self.assertEqual(len(compared), 3)

    def test_unsound(self) -> None:
        """Each with its reason, which never has the line: that may be a token."""
        line = new_token("ops")[1]
        for text, reason in (
            ("", "0 tokens"), ("# nothing\n", "0 tokens"), (line + "a-token-in-the-clear\n", "line 2 is not"),
            (line.replace("sha256", "md5"), "line 1"), (line.upper(), "line 1"), (line[:-2], "line 1"),
            ((TOKENS_MAX + 1) * line, "tokens"), ("#" * (TOKEN_FILE_BYTES_MAX + 1), "more than"),
        ):
            self.path.write_text(text)
            error = self.assertRaises(ValueError, TokenFile, str(self.path))
            self.assertIn(reason, str(error))
            self.assertNotIn("in-the-clear", str(error))
        self.assertIn("No such file", str(self.assertRaises(ValueError, TokenFile, "nowhere")))

    def test_changes(self) -> None:
        """A changed file counts; one that is not sound, or missing, does not, and is reported once."""
        (old, line), (new, other) = new_token("old"), new_token("new")
        self.path.write_text(line)
        file = TokenFile(str(self.path))
        self.assertFalse(file.refresh())
        self.write(line + other)
        self.assertTrue(file.refresh())
        self.assertEqual((file.holder(old), file.holder(new)), ("old", "new"))
        self.write("half a li")
        self.assertRaises(ValueError, file.refresh)
        self.assertFalse(file.refresh())
        self.path.unlink()
        self.assertRaises(ValueError, file.refresh)
        self.assertEqual((file.holder(old), file.holder(new)), ("old", "new"))
        self.write(other)
        self.assertTrue(file.refresh())
        self.assertEqual((file.holder(old), file.holder(new)), (None, "new"))

    def write(self, text: str) -> None:
        """Replace the file by another one."""
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(text)
        os.replace(beside, self.path)

    def test_names(self) -> None:
        """What can stand in a file."""
        for name in ("ops", "night.shift-1", "A_b", "x" * 64):
            self.assertTrue(is_token_name(name), name)
        for name in ("", "two words", "x" * 65, "\u00e9", "a\n", "#a"):
            self.assertFalse(is_token_name(name), name)


class ClientTokenTests(SynchronousTestCase):
    """Tokens with roles."""

    def setUp(self) -> None:
        self.path = Path(self.mktemp())

    def test_grants(self) -> None:
        """A role, of every group or of some, whatever their names."""
        odd = "a, b%\u00e4 *"
        made = [new_token("all", ClientRole.ADMIN), new_token("some", ClientRole.READ, (odd, "*", "g"))]
        self.path.write_text("".join(line for _, line in made))
        file = ClientTokenFile(str(self.path))
        first, second = file.grant(made[0][0]), file.grant(made[1][0])
        assert first is not None and second is not None
        self.assertEqual((first.name, first.role, first.groups), ("all", ClientRole.ADMIN, frozenset()))
        self.assertEqual((second.role, second.groups), (ClientRole.READ, {odd, "*", "g"}))
        self.assertEqual(file.grant_of(hashed_token(made[0][0])), first)
        self.assertIsNone(file.grant("x" * (TOKEN_CHARS_MAX + 1)))

    def test_kinds_do_not_mix(self) -> None:
        """A token of an administration is none of a log, and the other way round."""
        for line, right, wrong in (
            (new_token("a")[1], TokenFile, ClientTokenFile),
            (new_token("a", ClientRole.READ)[1], ClientTokenFile, TokenFile),
        ):
            self.path.write_text(line)
            right(str(self.path))
            with self.assertRaises(ValueError) as caught:
                wrong(str(self.path))
            self.assertIn(f"{wrong.option}={self.path}: line 1 is not", str(caught.exception))

    def test_unknown_role(self) -> None:
        """Refused, with a form that would do."""
        line = new_token("a", ClientRole.READ)[1]
        for bad in (line.replace(" read ", " root "), line.replace(" read *", " read")):
            self.path.write_text(bad)
            with self.assertRaises(ValueError) as caught:
                ClientTokenFile(str(self.path))
            self.assertIn("NAME sha256 HASH ROLE GROUPS", str(caught.exception))

    def test_shown(self) -> None:
        """One word; in no repr."""
        token = as_client_token("secret")
        assert token is not None
        self.assertEqual((token.text, token.is_insecure), ("secret", False))
        self.assertNotIn("secret", repr(token))
        self.assertIs(as_client_token(token), token)
        self.assertIsNone(as_client_token(None))
        for text in ("", "two words", "\u00e4", "x" * (TOKEN_CHARS_MAX + 1), "a\n"):
            with self.assertRaises(ValueError) as caught:
                ClientToken(text)
            self.assertNotIn(text or "?", str(caught.exception))
