# -*- test-case-name: tests.test_tidy -*-
"""The house rules, checked on every file; and the checkers, each checked on a text that breaks its rule."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests import tidy
from tests.sources import text_of
from tests.tidy import ROOT, Complaint, check, rules_for, text_files

#: Known complaints that have an issue. Add none; remove the fixed ones.
RATCHET: frozenset[str] = frozenset()


class TreeTests(SynchronousTestCase):
    """The tree as it is."""

    def test_house_rules(self) -> None:
        """No file breaks a rule that applies to it."""
        wrong = [
            sentence
            for path in text_files()
            for sentence in check(path, text_of(ROOT / path))
        ]
        new = [sentence for sentence in wrong if sentence not in RATCHET]
        self.assertEqual(new, [], "\n" + "\n".join(new))
        self.assertEqual(sorted(RATCHET - set(wrong)), [], "mended: take it off the ratchet")

    def test_any_is_rare(self) -> None:
        """Private code has few uses of Any, too; and every file that a library forces exists."""
        sources = [
            text_of(ROOT / path) for path in text_files()
            if path.endswith(".py") and tidy.is_typed(path)
        ]
        self.assertGreater(len(sources), 100)
        self.assertLessEqual(sum(map(tidy.mentions_of_any, sources)), tidy.ANY_MAX)
        self.assertEqual([path for path in tidy.FORCED_ANY if not (ROOT / path).exists()], [])

    def test_files_are_found(self) -> None:
        """The walk finds files, but none that git ignores."""
        found = set(text_files())
        for path in ("setup.py", "Makefile", ".ci/run", "dledger/values/ledger/config.py", "tests/tidy.py"):
            self.assertIn(path, found)
        self.assertFalse([path for path in found if path.startswith((".venv/", ".git/"))])

    def test_ignored_directories_are_ignored_by_git(self) -> None:
        """The ignored directories cannot be committed."""
        ignored = {
            line.strip("/").split("/")[0] for line in (ROOT / ".gitignore").read_text("utf-8").splitlines()
        }
        for name in tidy.IGNORED_DIRECTORIES:
            if name not in (".git", "node_modules"):
                self.assertIn(name, ignored)


class CheckerTests(SynchronousTestCase):
    """Every rule, broken once and kept once."""

    def lines(self, complaints: Iterable[Complaint]) -> list[int]:
        """The lines of the complaints."""
        return [line for line, _ in complaints]

    def test_columns(self) -> None:
        """The limit itself is allowed."""
        self.assertEqual(self.lines(tidy.columns("x" * 110 + "\n" + "x" * 111)), [2])

    def test_module_docstring(self) -> None:
        """A comment is no docstring."""
        self.assertEqual(self.lines(tidy.module_docstring("# hello\nx = 1")), [1])
        self.assertEqual(self.lines(tidy.module_docstring('"""Says what it knows."""')), [])

    def test_public_docstrings(self) -> None:
        """Classes, methods and functions; private and nested names are left alone."""
        source = (
            "class A:\n"
            "    def open(self): ...\n"
            "    def _private(self): ...\n"
            "def outer():\n"
            "    '''Has one.'''\n"
            "    def inner(): ...\n"
            "class _B:\n"
            "    def f(self): ...\n"
            "if True:\n"
            "    async def hidden(): ...\n"
        )
        self.assertEqual(self.lines(tidy.public_docstrings(source)), [1, 2, 10])

    def test_pointers(self) -> None:
        """A sentence must not begin with a pointer; the same words inside a sentence are allowed."""
        for text in ("Likewise.", "Likewise the files.", "Reads a. Likewise b.", "As L{x}: y.",
                     "As C{x}: y.", "Reads a. There, too, it may.", "Then, too: nothing."):
            self.assertEqual(self.lines(tidy.pointers(f'def f():\n    """{text}"""\n')), [2], text)
        for text in ("# likewise", "#: There, too: x", "x = 1  # ours; likewise y"):
            self.assertEqual(self.lines(tidy.pointers(f"y = 2\n{text}\n")), [2], text)
        self.assertEqual(self.lines(tidy.pointers('"""\nReads.\n\nLikewise it writes.\n"""')), [4])
        for text in ("It is there, too.", "As L{x}, for many.", "The same as L{x}: it is done likewise."):
            self.assertEqual(self.lines(tidy.pointers(f'"""{text}"""\n# {text}\n')), [], text)

    def test_empty_docstrings(self) -> None:
        """A class or a function says what it is; a public method may name its interface."""
        for head in ("class A", "def f()", "async def f()", "class A:\n  class B",
                     "class A:\n  def _f(self)"):
            for text in ("See the module.", "See L{B}.", "See L{the base <a.b.C>}"):
                source = f'{head}:\n    """{text}"""\n'
                self.assertEqual(self.lines(tidy.empty_docstrings(source)), [head.count("\n") + 1], source)
        for source in (
            'class A:\n  def f(self):\n    """See L{B.f}."""\n', 'class A:\n    """Reads. See L{B}."""\n',
            'class A:\n  def __call__(self):\n    """See L{B}."""\n', "def f(): ...\n",
        ):
            self.assertEqual(self.lines(tidy.empty_docstrings(source)), [], source)

    def test_public_any(self) -> None:
        """In parameters, results, attributes, aliases, bases; in texts and behind private aliases, too."""
        for wrong in (
            "def f(x: Any): ...", "def f(*x: Any): ...", "def f(**x: list[Any]): ...",
            "def f(*, x: Any = 1): ...", "async def f() -> Any: ...", "def f() -> 'list[Any]': ...", "x: Any",
            "X: TypeAlias = dict[str, Any]", "X = Callable[..., Any]", "class A:\n    x: Any",
            "class A:\n    def f(self) -> Any: ...", "class A:\n    def __init__(self, x: Any): ...",
            "class A:\n    def _f(self): self.x: Any = 1", "class A:\n    class B:\n        x: Any",
            "class A(list[Any]): ...", "_X = dict[str, Any]\ndef f(x: _X): ...",
            "_X: TypeAlias = Any\n_Y = list[_X]\ndef f(x: _Y): ...", "if x:\n    def f(x: Any): ...",
        ):
            source = f"from typing import Any\n{wrong}\n"
            self.assertEqual(self.lines(tidy.public_any(source)), [source.count("\n")], wrong)
        for wrong in (
            "import typing\ndef f(x: typing.Any): ...", "import typing as t\ndef f(x: t.Any): ...",
            "from typing import Any as X\ndef f(x: X): ...",
        ):
            self.assertEqual(self.lines(tidy.public_any(wrong)), [2], wrong)

    def test_private_any(self) -> None:
        """Private names, local ones, and another thing of this name are free."""
        for right in (
            "def _f(x: Any) -> Any: ...", "_x: Any = 1", "_X = dict[str, Any]", "class _A:\n    x: Any",
            "class A:\n    _x: Any\n    def _f(self, x: Any): self._y: Any = x", "def f(x: AnyStr): ...",
            "def f():\n    'Any number.'\n    x: Any = 1", "class A:\n    def f(self):\n        x: Any = 1",
        ):
            self.assertEqual(list(tidy.public_any(f"from typing import Any\n{right}\n")), [], right)
        self.assertEqual(list(tidy.public_any("from a import Any\ndef f(x: Any): ...")), [])

    def test_forced_any(self) -> None:
        """The uses that a library forces are named, as long as they are there."""
        source = "from typing import Any\nclass A:\n    def f(self) -> Any: ...\n    def g(self) -> Any: ..."
        self.assertEqual(self.lines(tidy.public_any(source, {"A.f"})), [4])
        self.assertEqual(list(tidy.public_any(source, {"A.f", "A.g"})), [])
        self.assertEqual(self.lines(tidy.public_any("x = 1", {"A.f"})), [1])

    def test_mentions_of_any(self) -> None:
        """Private uses count; imports, and the word in other modules, do not."""
        source = "from typing import Any\n_x: Any = 1\ndef _f(x: list[Any]) -> Any: ...\ny = cast('Any', 1)"
        self.assertEqual(tidy.mentions_of_any(source), 4)
        self.assertEqual(tidy.mentions_of_any("'''Any number.'''\nx = 'Any'"), 0)

    def test_gone_phrases(self) -> None:
        """In every kind of text; who lags may be behind."""
        source = (
            'x = "4 bytes behind the end"\n# The one behind it.\n# The index behind C{end_index}.\n'
            "a follower is far behind, and lags behind its leader\n"
            'y = "x is no text of 1 to 9"\n'
            'z = "3 is no number"  # There is no number, there is no name.\n'
        )
        self.assertEqual(sorted(set(self.lines(tidy.gone_phrases(source)))), [1, 2, 3, 5, 6])
        for path in ("dledger/base/x.py", "tests/base/test_x.py", "docs/x.md", "examples/x/y.py"):
            self.assertIn(tidy.gone_phrases, rules_for(path), path)
        self.assertNotIn(tidy.gone_phrases, rules_for("NEWS.md"))

    def test_telling(self) -> None:
        """In docstrings, comments, names and texts; the position of a file is free."""
        source = (
            '"""It tells.\n\n@ivar is_told: a name.\nNobody reports."""\n'
            'told = ToldEnd("")  # Twice.\nretold = file.tell()\n'
        )
        self.assertEqual(self.lines(tidy.telling(source)), [1, 3, 5, 5])
        for path in ("dledger/base/x.py", "tests/base/test_x.py", "examples/x/y.py"):
            self.assertIn(tidy.telling, rules_for(path), path)
        self.assertNotIn(tidy.telling, rules_for("tests/tidy.py"))

    def test_telling_pages(self) -> None:
        """In the prose of documents."""
        source = "It tells.\n\n    told = 1\n\n`told`, [a](#is-told), and [as told](b.md)\n"
        self.assertEqual(self.lines(tidy.telling_pages(source)), [1, 5])
        self.assertIn(tidy.telling_pages, rules_for("docs/x.md"))
        self.assertNotIn(tidy.telling_pages, rules_for("NEWS.md"))

    def test_plain_english(self) -> None:
        """Phrases of the list, in docstrings and comments, at their line; code and other strings are free."""
        source = (
            '"""It stands there.\n\nNobody but us, so many\nof them."""\n'
            "x = 'what it stands for'  # whoever it is\n"
            "# It stands for election.\n"
        )
        self.assertEqual(sorted(self.lines(tidy.plain_english(source))), [1, 3, 3, 5])
        for pattern, better in tidy.ODD_PHRASES:
            self.assertTrue(better, pattern)

    def test_plain_tests(self) -> None:
        """The same for tests, which may say more with "what"."""
        source = '"""What goes, whatever comes.\n\nIt stands there.\nSo many of them. What it does.\n"""\n'
        self.assertEqual(sorted(self.lines(tidy.plain_tests(source))), [3, 4, 4])
        self.assertIn(tidy.plain_tests, rules_for("tests/core/test_quorum.py"))
        self.assertNotIn(tidy.plain_tests, rules_for("dledger/core/replica.py"))

    def test_overloads_share_a_docstring(self) -> None:
        """Only the implementation needs the docstring."""
        source = "@overload\ndef f(a: int) -> int: ...\n@typing.overload\ndef f(a: str) -> str: ..."
        self.assertEqual(self.lines(tidy.public_docstrings(source)), [])

    def test_test_case_name(self) -> None:
        """It must be the first line, and the tests must exist."""
        root = Path(self.mktemp())
        (root / "tests").mkdir(parents=True)
        (root / "tests" / "test_a.py").touch()
        for source, expected in (
            ("# -*- test-case-name: tests.test_a -*-\n", []),
            ("# -*- test-case-name: tests.test_a,tests.test_b -*-\n", [1]),
            ("# -*- test-case-name: tests.test_b -*-\n", [1]),
            ("\n# -*- test-case-name: tests.test_a -*-\n", [1]),
            ("", [1]),
        ):
            self.assertEqual(self.lines(tidy.test_case_name(source, root)), expected, source)

    def test_print(self) -> None:
        """A name that merely contains the word is fine."""
        self.assertEqual(self.lines(tidy.no_print("x = 1\nprint(x)\nfingerprint(x)\nself.print()")), [2])

    def test_reactor(self) -> None:
        """Inside a function it is allowed, in a class body it is not."""
        for source in ("from twisted.internet import reactor", "import twisted.internet.reactor"):
            self.assertEqual(self.lines(tidy.no_module_level_reactor(source)), [1])
        guarded = "try:\n    from twisted.internet import defer, reactor\nexcept ImportError: pass"
        self.assertEqual(self.lines(tidy.no_module_level_reactor(guarded)), [2])
        inside = "def main():\n    from twisted.internet import reactor"
        self.assertEqual(self.lines(tidy.no_module_level_reactor(inside)), [])

    def test_inline_callbacks(self) -> None:
        """Under either spelling."""
        source = "@inlineCallbacks\ndef f(): ...\n@defer.inlineCallbacks\ndef g(): ..."
        self.assertEqual(self.lines(tidy.no_inline_callbacks(source)), [1, 3])

    def test_todo(self) -> None:
        """With an issue it is allowed."""
        word = "TO" + "DO"
        source = f"# {word}: later\n# {word}(#12): later\n# mas{word.lower()}n\n# FIX" + "ME now"
        self.assertEqual(self.lines(tidy.todo_names_issue(source)), [1, 4])

    def test_one_field_a_line(self) -> None:
        """Unrelated fields are refused; a call's result, an exchange, local names and one field are not."""
        for wrong in ("self.a, self.b = 1, 2", "self.a, other.b = x, [y]", "x = self.a, self.b = 1, 2",
                      "self.a, self.b = self.a + 1, 2"):
            self.assertEqual(self.lines(tidy.one_field_a_line(wrong)), [1], wrong)
        for right in (
            "self.a, self.b = f(x)", "self.a, self.b = self.b, self.a", "a, self.b = self.b, None",
            "a, b = 1, 2", "self.a = self.b = 1", "self.a, self.b = before", "self.a = 1, 2",
        ):
            self.assertEqual(self.lines(tidy.one_field_a_line(right)), [], right)
        self.assertIn(tidy.one_field_a_line, rules_for("dledger/node/node.py"))
        self.assertNotIn(tidy.one_field_a_line, rules_for("tests/core/test_quorum.py"))

    def test_banned_words(self) -> None:
        """In any case, in any file."""
        for word in tidy.BANNED:
            self.assertIn(2, self.lines(tidy.banned_words(f"fine\n see {word.upper()} there")), word)
        self.assertEqual(self.lines(tidy.banned_words("a session of Spark, a seed, a specification")), [])

    def test_rules_for(self) -> None:
        """The rules depend on the path."""
        self.assertIn(tidy.no_print, rules_for("dledger/node/node.py"))
        self.assertNotIn(tidy.no_print, rules_for("dledger/cli/main.py"))
        self.assertNotIn(tidy.no_print, rules_for("benchmarks/append.py"))
        self.assertIn(tidy.public_docstrings, rules_for("protocols/wire/framing.py"))
        self.assertNotIn(tidy.public_docstrings, rules_for("tests/core/test_quorum.py"))
        self.assertIn(tidy.banned_words, rules_for("README.md"))
        source = (
            "# -*- test-case-name: tests.test_tidy -*-\n'''Says.'''\nfrom typing import Any\nx: Any = 1\n"
        )
        for path in ("dledger/node/node.py", "protocols/wire/framing.py", "pyspark_dledger/x.py"):
            (complaint,) = check(path, source)
            self.assertIn(f"{path}:4: x has Any in its signature", complaint)
        self.assertEqual(check("tests/core/test_quorum.py", source), [])
        self.assertNotIn(tidy.no_print, rules_for("examples/first-programs/script.py"))
        self.assertIn(tidy.plain_english, rules_for("examples/first-programs/script.py"))
        self.assertNotIn(tidy.test_case_name, rules_for("dledger/core/__init__.py"))
        for rule in tidy.EVERY_MODULE:
            self.assertIn(rule, rules_for("tests/core/test_quorum.py"))
