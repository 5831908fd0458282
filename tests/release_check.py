# -*- test-case-name: tests.test_release -*-
"""
A release without its last steps: what docs/releasing.md asks for, as far as a machine can look.

    python -m tests.release_check 0.2.0    the news of this release, and its wheel, into build/release

Nothing of the tree is changed: the news are a draft, and the wheel is made of the files that git has. When
the news were built, and the fragments are gone, NEWS.md must have a part about the release.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import ZipFile

from dledger.version import commit_of
from tests.import_graph import ROOT, module_names

OUT = ROOT / "build" / "release"
FRAGMENTS = ROOT / "docs" / "newsfragments"
#: A release; everything before the first dot of C{dev} in C{dledger/version.py}.
RELEASE = re.compile(r"\d+\.\d+\.\d+")
#: In a checkout and in the source distribution only.
NOT_INSTALLED = "dledger/testing/"


def check_version(release: str, source: str) -> str | None:
    """
    Whether C{release} is what this source becomes.

    @param source: the text of dledger/version.py.
    @return: a sentence about what is wrong.
    """
    if not RELEASE.fullmatch(release):
        return f"{release!r} is not a release such as 0.2.0"
    found = re.search(r'^VERSION = "([^"]+)"$', source, re.MULTILINE)
    if found is None:
        return "dledger/version.py has no line VERSION"
    if found[1] not in (release, f"{release}.dev0"):
        return f"dledger/version.py has {found[1]}, which does not become {release}"
    return None


def news(release: str) -> str:
    """The news of the release as towncrier would put them into NEWS.md."""
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", release], cwd=ROOT,
        capture_output=True, text=True, check=True, timeout=120,
    )
    return done.stdout


def written_news(release: str, text: str) -> str:
    """The part about the release in C{text}, that of NEWS.md; empty if there is none."""
    found = re.search(rf"^## dledger {re.escape(release)} \(.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def missing_news(text: str) -> list[str]:
    """The fragments whose first words are not in C{text}."""
    plain = re.sub(r"\s+", " ", text)
    return [
        path.name for path in sorted(FRAGMENTS.iterdir()) if path.name.startswith("+")
        if re.sub(r"\s+", " ", path.read_text("utf-8")).strip()[:60] not in plain
    ]


def wheel(directory: Path, commit: str = "HEAD") -> Path:
    """Make a wheel of a commit in C{directory}: files that git does not have are not in it."""
    source = directory / "source"
    # A clone, so that the wheel knows its commit.
    for words in (("clone", "--quiet", "--no-checkout", str(ROOT), str(source)),
                  ("-C", str(source), "checkout", "--quiet", "--detach", commit)):
        subprocess.run(["git", *words], cwd=ROOT, check=True, timeout=60)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check",
         "--wheel-dir", str(directory), str(source)],
        check=True, timeout=300,
    )
    (made,) = directory.glob("*.whl")
    return made


def wrong_files(names: Sequence[str]) -> Iterator[str]:
    """Sentences about a wheel with the files C{names}: what is missing, and what must not be there."""
    for module, path in module_names(ROOT).items():
        name = path.relative_to(ROOT).as_posix()
        if (name not in names) != name.startswith(NOT_INSTALLED):
            yield f"{module}: {'is installed' if name in names else 'is not installed'}"
    for name in ("dledger/py.typed", "protocols/py.typed", "dledger/spark/jvm/dledger-spark.jar"):
        if name not in names:
            yield f"{name}: is not installed"
    for name in names:
        if name.startswith(("tests/", "benchmarks/", "demo/")):
            yield f"{name}: is installed"


def wrong_metadata(text: str, commit: str) -> Iterator[str]:
    """
    Sentences about the metadata of a wheel: links that lead nowhere where the text is read, a version that no
    index takes, another commit than the one that it was made of.

    @param commit: empty: not known.
    """
    version = re.search(r"^Version: (.*)$", text, re.MULTILINE)
    if version is None or "+" in version[1]:
        yield f"an index takes no such version: {version and version[1]}"
    if commit and not re.search(rf"^Keywords: .*commit-{commit}$", text, re.MULTILINE):
        yield f"the keywords do not end with commit-{commit}"
    for target in re.findall(r"\]\(([^)]*)\)", text):
        if not target.startswith(("https://", "http://")):
            yield f"the description has a relative link: {target}"


def main(arguments: Sequence[str]) -> int:
    """@return: the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("one argument, please: the release, such as 0.2.0\n")
        return 2
    (release,) = arguments
    version = (ROOT / "dledger" / "version.py").read_text("utf-8")
    wrong = [sentence for sentence in (check_version(release, version),) if sentence]
    if not wrong:
        OUT.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(OUT)
        OUT.mkdir()
        text = news(release)
        (OUT / "NEWS.md").write_text(text, "utf-8")
        wrong = [f"{name}: is not in the news" for name in missing_news(text)]
        if not any(FRAGMENTS.glob("+*")) and not written_news(release, (ROOT / "NEWS.md").read_text("utf-8")):
            wrong.append(f"NEWS.md has no part about {release}, and there is no fragment for it")
        made = wheel(OUT)
        with ZipFile(made) as file:
            wrong += wrong_files(file.namelist())
            (metadata,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
            wrong += wrong_metadata(file.read(metadata).decode(), commit_of(ROOT))
        sys.stdout.write(f"{made.relative_to(ROOT)}, {OUT.relative_to(ROOT)}/NEWS.md\n")
    sys.stderr.write("".join(f"{sentence}\n" for sentence in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
