# -*- test-case-name: tests.test_release -*-
"""A release can be made of this tree, as docs/releasing.md says."""

from __future__ import annotations

from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from tests.import_graph import ROOT, module_names
from tests.release_check import (
    NOT_INSTALLED,
    check_version,
    main,
    missing_news,
    news,
    written_news,
    wrong_files,
    wrong_metadata,
)
from tests.test_packaging import setup_arguments


class VersionTests(SynchronousTestCase):
    """Which release a source becomes."""

    SOURCE = 'VERSION = "0.2.0.dev0"\n'

    def test_next(self) -> None:
        """The one without C{dev0}, before and after that is cut off."""
        self.assertIsNone(check_version("0.2.0", self.SOURCE))
        self.assertIsNone(check_version("0.2.0", 'VERSION = "0.2.0"\n'))

    def test_others(self) -> None:
        """Another release, something that is none, a source without the line."""
        self.assertIn("does not become 0.3.0", check_version("0.3.0", self.SOURCE) or "")
        self.assertIn("is not a release", check_version("v0.2", self.SOURCE) or "")
        self.assertIn("no line VERSION", check_version("0.2.0", "") or "")

    def test_arguments(self) -> None:
        """The release is asked for."""
        self.assertEqual(main([]), 2)


class NewsTests(SynchronousTestCase):
    """The news of the next release."""

    def test_every_fragment(self) -> None:
        """Towncrier takes each of them, under its kind; one that it did not take would be noticed."""
        try:
            text = news("0.2.0")
        except FileNotFoundError as error:
            raise SkipTest(str(error)) from error
        self.assertEqual(missing_news(text), [])
        self.assertTrue(text.strip() == "" or "## dledger 0.2.0 (" in text)
        if text.strip().count("\n") > 3:
            self.assertNotEqual(missing_news(text[: len(text) // 2]), [])


    def test_written(self) -> None:
        """The part of one release, also the last one, up to the next."""
        text = "# News\n\n## dledger 0.2.0 (2026-11-27)\n\n- a\n\n## dledger 0.1.0 (2026-11-22)\n\n- b\n"
        self.assertEqual(written_news("0.2.0", text), "## dledger 0.2.0 (2026-11-27)\n\n- a\n\n")
        self.assertEqual(written_news("0.1.0", text), "## dledger 0.1.0 (2026-11-22)\n\n- b\n")
        self.assertEqual(written_news("0.2", text), "")

    def test_readable(self) -> None:
        """The news of a release are few enough to be read: fragments about one thing are one entry."""
        parts = (ROOT / "NEWS.md").read_text("utf-8").split("\n## ")[1:]
        self.assertGreater(len(parts), 0)
        for part in parts:
            self.assertLessEqual(part.count("\n- "), 160, part.partition("\n")[0])


class WheelTests(SynchronousTestCase):
    """What a wheel has."""

    def names(self) -> list[str]:
        """A sound list."""
        return [
            path.relative_to(ROOT).as_posix() for path in module_names(ROOT).values()
            if not path.relative_to(ROOT).as_posix().startswith(NOT_INSTALLED)
        ] + ["dledger/py.typed", "protocols/py.typed", "dledger/spark/jvm/dledger-spark.jar"]

    def test_sound(self) -> None:
        """Nothing is said of it, and setup.py leaves the simulators out."""
        self.assertEqual(list(wrong_files(self.names())), [])
        self.assertIn("exclude=['dledger.testing', 'dledger.testing.*']", setup_arguments()["packages"])

    def test_unsound(self) -> None:
        """A module or another file that is missing, a simulator, a test."""
        names = self.names()
        for name in ("dledger/version.py", "dledger/py.typed", "twisted/plugins/dledger_plugin.py"):
            self.assertEqual(len(list(wrong_files([one for one in names if one != name]))), 1, name)
        self.assertEqual(
            list(wrong_files([*names, "dledger/testing/__init__.py", "tests/__init__.py"])),
            ["dledger.testing: is installed", "tests/__init__.py: is installed"],
        )

    def test_metadata(self) -> None:
        """A version with a commit, a wheel of another commit, a relative link."""
        sound = "Version: 0.2.0\nKeywords: log,commit-ab12\n\n[x](https://y/z)\n"
        self.assertEqual(list(wrong_metadata(sound, "ab12")), [])
        for old, new, said in (
            ("0.2.0", "0.2.0+gab12", "no such version: 0.2.0+gab12"), ("-ab", "-ac", "commit-ab12"),
            ("https://y", "y", "relative link: y/z"),
        ):
            (sentence,) = wrong_metadata(sound.replace(old, new), "ab12")
            self.assertIn(said, sentence)
