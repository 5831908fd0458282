# -*- test-case-name: tests.broker.access.test_yaml_text -*-
"""YAML as text: what Java's beans see, and files that are none."""

from __future__ import annotations

import yaml
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.access.yaml_text import DEPTH_MAX, read_yaml

#: A value that no message may have.
SECRET = "top-secret-77"


class YamlTextTests(SynchronousTestCase):
    """What is read."""

    def test_values(self) -> None:
        """Values are text as it is written; YAML would make numbers and dates of some."""
        for written in ("012345670", "12_345_678", "0x12345678", "1234567.50", "2026-01-02", "2026-99-99",
                        "190:20:30", "true", "1" * 5000, ".inf", "=", "<<"):
            self.assertEqual(read_yaml(f"a: {written}\n".encode()), {"a": written})
        for written in ("", "~", "null"):
            self.assertEqual(read_yaml(f"a: {written}\n".encode()), {"a": None})
        self.assertEqual(read_yaml(b"a: '~'\nb: \"null\""), {"a": "~", "b": "null"})
        self.assertEqual(read_yaml(b""), None)
        self.assertEqual(read_yaml(b"- a\n- [b, {c: d}]\n"), ["a", ["b", {"c": "d"}]])

    def test_anchors(self) -> None:
        """A value can be named and used again; a list that has itself cannot."""
        self.assertEqual(read_yaml(b"a: &x [b]\nc: *x\nd: &y e\nf: *y\n"),
                         {"a": ["b"], "c": ["b"], "d": "e", "f": "e"})
        self.assertRaises(ValueError, read_yaml, b"a: &x [*x]")

    def test_malformed(self) -> None:
        """Each is a L{ValueError} that names the line, and says nothing of the value there."""
        for written, words in (
            ("@" + SECRET, "line 2: no YAML"), ('"' + SECRET, "no YAML"), ("a: " + SECRET, "line 2: no YAML"),
            ("%" + SECRET, "line 2: no YAML"), ("*" + SECRET, "line 2: a value begins with '*'"),
            ("!" + SECRET, "line 2: "), (f"!{SECRET}!x y", "line 2: "), ("!!timestamp x", "line 2: a value"),
            ("!!bool x", "line 2: a value begins with '!'"), ("!!int ''", "line 2: a value"),
            ("|" + SECRET, "line 2: "), ("!!python/object:os.system {}", "line 2: a value"),
            ("b\na: c", "line 3: 'a' is given twice"), (f"b\n[{SECRET}]: c", "a name must be text"),
            ("b\n---\nc: d", "line 3: a second document"), ("b\0", "no YAML"),
        ):
            error = self.assertRaises(ValueError, read_yaml, f"c: d\na: {written}\n".encode())
            self.assertIn(words, str(error), written)
            self.assertNotIn(SECRET, str(error))
        self.assertIn("no YAML", str(self.assertRaises(ValueError, read_yaml, b"a: \xe9")))

    def test_deep(self) -> None:
        """Neither recursion nor memory grows with the lists in lists of a text."""
        for text in ("[" * 200_000, "- " * 100_000, "{a: " * 100_000):
            self.assertIn("within each other", str(self.assertRaises(ValueError, read_yaml, text.encode())))
        self.assertNotEqual(read_yaml(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX), None)
        lines = ["- &a0 [x]"] + [f"- &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]" for n in range(1, 30)]
        self.assertEqual(len(read_yaml("\n".join(lines).encode())), 30)  # type: ignore[arg-type]


class PurePythonTests(YamlTextTests):
    """The same without the package's part in C."""

    def setUp(self) -> None:
        self.patch(yaml, "CBaseLoader", yaml.BaseLoader)
