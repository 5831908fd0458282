# -*- test-case-name: tests.test_tidy -*-
"""
House rules that a machine can check: one function for each, from a source text to complaints.

A complaint is C{(line, sentence)}. L{rules_for} decides which rules apply to a file.
"""

from __future__ import annotations

import ast
import fnmatch
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from tests.overrides import classes_of, documented_by_base
from tests.sources import nodes_of, tree_of

ROOT = Path(__file__).resolve().parent.parent

COLUMNS_MAX = 110

Complaint = tuple[int, str]
Rule = Callable[[str], Iterator[Complaint]]

#: Programs that may print lines for people.
SPEAKING = ("dledger/cli/*", "benchmarks/*", "demo/*", "setup.py", "docs/*")

#: Packages whose public names are an API.
DOCUMENTED = ("dledger/*", "protocols/*", "pyspark_dledger/*", "twisted/*", "benchmarks/*", "demo/*")

#: Never tracked by git, so never checked.
IGNORED_DIRECTORIES = (
    ".git", ".venv", ".tox", ".jars", ".mypy_cache", ".ruff_cache", ".hypothesis", "__pycache__", "build",
    "dist", "demo-data", "dledger-data", "dledger-local", "_trial_temp*", "*.egg-info", "node_modules",
)

TEXT_SUFFIXES = (
    ".py", ".md", ".txt", ".toml", ".ini", ".cfg", ".yml", ".yaml", ".java", ".xml", ".html", ".css", ".js",
    ".json", ".sh", ".feature", ".bugfix", ".wire", ".removal", ".doc", ".service", ".sysusers", ".in",
)
TEXT_NAMES = ("Makefile", "LICENSE", "run", ".gitignore", ".dockerignore", "Containerfile")

#: A project speaks of itself alone: not of the machine it was written on, of its writers, nor of their notes.
#: The words are cut in pieces, so that this file obeys the rule.
BANNED = (
    "/wor" "k/", "/tm" "p/", "/roo" "t/", "/hom" "e/", "clau" "de", "anthro" "pic", "open" "ai", "chat" "gpt",
    "co" "pilot", "language mo" "del", "ai-gen" "erated", "sub-ag" "ent", "suba" "gent", "the br" "ief",
    "task br" "ief", "design ca" "rd", "../sha" "red", "../sp" "ec/", "../se" "eds", "seed art" "icle",
    "artifac" "tory", "jfr" "og", "nexus/rep" "ository", "pypi.or" "g/simple", "repo.mav" "en",
    "proxy.gol" "ang", "this ses" "sion", "store sp" "ec", "wire sp" "ec",
)

#: Turns of phrase that an outsider reads twice, and words to write instead.
ODD_PHRASES: tuple[tuple[str, str], ...] = (
    (r"\bst(?:ands|ood)\b(?! for election| in for| still)", "is, lies, is written"),
    (r"\b(?:who|what|which|when|where)ever\b(?= (?:is|was|it|they|comes|stands|else|has|asks|wants))",
     "name the thing"),
    (r"\bso (?:many|much)\b(?! (?:that|so)\b)", "the name of the constant"),
    (r"\bof such\b(?! files)", "name the things"),
    (r"\bnobody but\b", "only"),
    (r"\bbut for\b", "except"),
    (r"\bcomes of\b", "the result of"),
    (r"\bwhereof\b", "of which"),
    (r"\bwho (?:asks|waits|wants|reads|sends|listens|says|does not)\b", "the caller, the peer, the reader"),
    (r"\bwhat (?:stands|comes|goes|waits|follows|they|it|the log|has been)\b(?! says| means)",
     "name the thing"),
    (r"(?:^|[.:] )(?-i:Who|Whom|Whoever|Of what) ", "begin with the subject"),
)
#: Phrases that no text has, nor one of tests and documents: "behind" means lagging, or hidden. Each with
#: letters of a line that has it, so that few lines are searched.
GONE_PHRASES: tuple[tuple[str, str, str], ...] = (
    ("behind", r"\b(?:behind the (?:last|first|other|earlier|entry|record|damage|cut|hole|begin)\b"
               r"|behind which\b|behind C\{\w*(?:index|position|offset|begin|end)\w*\})", "after"),
    ("behind", r"\b(?:byte|bytes|entry|entries|record|records|offset|one|those) behind (?:it|them|the)\b",
     "after"),
    ("is no", r"\bis no text of\b", "must be"),
    ("is no", r"(?<!\bthere )\bis no (?:number|name|text|member|directory|list|object|voter|file|record"
              r"|message|time|address|whole|backup|archive|segment|table|endpoint|slave|header|client"
              r"|candidate)\b", "is not a"),
    ("its end", r"\bits end tells\b", "the trailer says"),
)
#: Words of speech for what code does; they may be the names of variables.
_TELLING = re.compile(r"(?<![A-Za-z])(?<!file\.)(?:[Tt]ell(?:s|ing|er)?|[Tt]old|TELL\w*|TOLD)(?![a-z])")
_NAMES = re.compile(r"[CL]\{[^{}]*\}|`[^`\n]*`|@\w+ [\w, ]+:|\w+\(\w+\)")
_GONE = tuple((has, re.compile(pattern, re.IGNORECASE), better) for has, pattern, better in GONE_PHRASES)

#: Begins of sentences that point at another sentence, and why they are refused.
_POINTERS = tuple((re.compile(pattern, re.MULTILINE), better) for pattern, better in (
    (r"(?:^[ \t]*|\"\"\"|# |#: |[.:;] )[Ll]ikewise\b", "say it again, in full"),
    (r"(?:^[ \t]*|\"\"\"|# |#: |[.;] )(?:There|Then), too\b", "name the place or the time"),
    (r"\"\"\"As [LC]\{[^{}]*\}:", "write 'The same as ..., because ...'"),
))
#: A docstring that only names another place.
_ONLY_SEE = re.compile(r"See (?:the module|L\{[^{}]*\})\.?")

#: What is released, or will be: its words are those of its time.
OLD_WORDS = ("NEWS.md", "docs/newsfragments/*")

_ODD = tuple((re.compile(pattern, re.MULTILINE | re.IGNORECASE), better) for pattern, better in ODD_PHRASES)
#: Those that tests do not have, either: all, except most of the clauses with "what" and "whatever".
_ODD_IN_TESTS = (
    *(one for one in _ODD if one[1] != "name the thing"),
    (re.compile(r"\bwhat (?:comes|it|they)\b", re.IGNORECASE), "name the thing"),
)

#: Where the prose of the product is.
PROSE = ("dledger/*", "protocols/*", "pyspark_dledger/*", "twisted/*", "benchmarks/*", "demo/*")

#: Packages with types: users check their programs against the public ones.
TYPED = ("dledger/*", "protocols/*", "pyspark_dledger/*")

#: Public signatures with C{Any} because a library has it there, by file. Whatever is added here needs such a
#: library: everything else has a type, if need be C{object}, C{Callable[..., object]} or a Protocol.
FORCED_ANY: Mapping[str, frozenset[str]] = {
    "dledger/cli/console/command.py": frozenset({"Commands.main"}),  # click.Group.main
}
#: Mentions of C{Any} in all of L{TYPED}, private ones too, at most.
ANY_MAX = 8

_LATER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b(?!\(#\d+\))")
_TEST_CASE_NAME = re.compile(r"# -\*- test-case-name: ([\w.,]+) -\*-$")


def columns(source: str) -> Iterator[Complaint]:
    """No line is wider than L{COLUMNS_MAX}."""
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > COLUMNS_MAX:
            yield number, f"{len(line)} columns; {COLUMNS_MAX} are allowed"


def module_docstring(source: str) -> Iterator[Complaint]:
    """Every module has a docstring."""
    if ast.get_docstring(tree_of(source)) is None:
        yield 1, "the module has no docstring"


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Variants of one function, and setters: the main one has the docstring."""
    names = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
    return bool(names & {"overload", "setter", "deleter"})


def _is_documented_by_base(parent: ast.AST, name: str, source: str) -> bool:
    """Whether a base of the class C{parent} documents its method."""
    local, names = classes_of(tree_of(source))
    return isinstance(parent, ast.ClassDef) and documented_by_base(parent, name, names, local)


def public_docstrings(source: str) -> Iterator[Complaint]:
    """
    Every public class, function and method has a docstring, except those nested in functions, and those that
    override one which a base documents.
    """

    def visit(parent: ast.AST, where: str) -> Iterator[Complaint]:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.If | ast.Try):
                yield from visit(node, where)
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("_"):
                continue
            is_function = not isinstance(node, ast.ClassDef)
            if ast.get_docstring(node) is None and not (
                is_function and (_is_overload(node) or _is_documented_by_base(parent, node.name, source))
            ):
                yield node.lineno, f"{where}{node.name} has no docstring"
            if not is_function:
                yield from visit(node, f"{where}{node.name}.")

    yield from visit(tree_of(source), "")


def test_case_name(source: str, root: Path = ROOT) -> Iterator[Complaint]:
    """The first line names the module's tests, and they exist."""
    first = source.splitlines()[0] if source else ""
    match = _TEST_CASE_NAME.match(first)
    if match is None:
        yield 1, "the first line must be '# -*- test-case-name: tests.x.test_y -*-'"
        return
    for name in match[1].split(","):
        path = root.joinpath(*name.split("."))
        if not (path.with_suffix(".py").exists() or (path / "__init__.py").exists()):
            yield 1, f"{name} does not exist"


def no_print(source: str) -> Iterator[Complaint]:
    """Programs write to their log; only those that a person starts write to the terminal."""
    for node in nodes_of(source) if "print" in source else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "pprint", "pprint.pprint"):
            yield node.lineno, "print outside the command line, the benchmarks and the demo"


def no_module_level_reactor(source: str) -> Iterator[Complaint]:
    """Importing the global reactor installs it; only a function that runs a program may."""

    def visit(parent: ast.AST) -> Iterator[Complaint]:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            if "twisted.internet.reactor" in names:
                yield node.lineno, "the reactor is an argument; it is not imported at module level"
            yield from visit(node)

    yield from visit(tree_of(source))


def no_inline_callbacks(source: str) -> Iterator[Complaint]:
    """C{async def} reads better."""
    names = [name for name in ("inlineCallbacks", "returnValue") if name in source]
    for node in nodes_of(source) if names else ():
        name = getattr(node, "attr", getattr(node, "id", ""))
        if name in names:
            yield node.lineno, f"{name}: write async def"


def todo_names_issue(source: str) -> Iterator[Complaint]:
    """Every note of later work names its issue, as C{(#12)}."""
    for number, line in enumerate(source.splitlines(), 1) if _LATER.search(source) else ():
        match = _LATER.search(line)
        if match:
            yield number, f"{match[1]} names no issue; write {match[1]}(#12)"


def one_field_a_line(source: str) -> Iterator[Complaint]:
    """
    Fields are assigned one by one; several in one statement only from one call, or to exchange values.

    C{self.a, self.b = x, y} saves a line, and hides that a class has a field more.
    """
    for node in nodes_of(source):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
            continue
        for target in node.targets:
            if not isinstance(target, ast.Tuple):
                continue
            names = [ast.unparse(one) for one in target.elts if isinstance(one, ast.Attribute)]
            is_exchange = any(
                ast.unparse(one) in names and ast.unparse(one) != names[place]
                for place, value in enumerate(node.value.elts[:len(names)]) for one in ast.walk(value)
                if isinstance(one, ast.Attribute)
            )
            if len(names) > 1 and len(names) == len(target.elts) and not is_exchange:
                yield node.lineno, f"{', '.join(names)}: assign each on a line of its own"


def banned_words(source: str) -> Iterator[Complaint]:
    """No line has one of L{BANNED}."""
    lowered = source.lower()
    words = [word for word in BANNED if word in lowered]
    for number, line in enumerate(lowered.splitlines(), 1) if words else ():
        yield from ((number, f"{word!r} does not belong in this project") for word in words if word in line)


def plain_tests(source: str) -> Iterator[Complaint]:
    """As L{plain_english}, for tests: some clauses with "what" may say what a test is about."""
    return _odd(source, _ODD_IN_TESTS)


def plain_english(source: str) -> Iterator[Complaint]:
    """Comments and docstrings avoid L{ODD_PHRASES}; texts of other strings are checked by people."""
    return _odd(source, _ODD)


class _Text(NamedTuple):
    """A comment or a text in three quotes. @ivar is_inside: it is a part of an expression: it may be code."""

    line: int
    text: str
    is_inside: bool


#: A comment or a string: the sign of a comment may be in a string. (C{tokenize} takes ten times the time.)
_COMMENT_OR_STRING = re.compile("|".join((
    r"#[^\n]*", r'"""(?:[^"\\]+|\\.|"(?!""))*"""', r"'''(?:[^'\\]+|\\.|'(?!''))*'''",
    r'"(?:[^"\\\n]+|\\.)*"', r"'(?:[^'\\\n]+|\\.)*'",
)), re.DOTALL)


@lru_cache(maxsize=2)
def _prose(source: str) -> tuple[_Text, ...]:
    """The comments and docstrings of a module, each with its first line."""
    found, line, counted = [], 1, 0
    for match in _COMMENT_OR_STRING.finditer(source):
        begin, text = match.start(), match[0]
        is_text = text.startswith('"""') and not source[begin - 1:begin].isalnum()  # (that is a prefix)
        if is_text or text.startswith("#"):
            line, counted = line + source.count("\n", counted, begin), begin
            before = source[source.rfind("\n", 0, begin) + 1:begin].rstrip()[-1:]
            is_inside = bool(before) and not (before.isalnum() or before in "_\"'")
            found.append(_Text(line, text, is_text and is_inside))
    return tuple(found)


def _odd(source: str, phrases: Collection[tuple[re.Pattern[str], str]]) -> Iterator[Complaint]:
    for line, text, _ in _prose(source):
        for pattern, better in phrases:
            for found in pattern.finditer(text):
                yield line + text.count("\n", 0, found.start()), f"{found[0].strip()!r}: write {better}"


def pointers(source: str) -> Iterator[Complaint]:
    """
    A sentence says what it means, and does not point at an earlier one: the earlier one may be moved, and the
    reader does not know how much of it is meant.
    """
    for line, text, _ in _prose(source):
        for pattern, better in _POINTERS:
            for found in pattern.finditer(text):
                yield line + text.count("\n", 0, found.start()), f"{found[0].strip()!r}: {better}"


def empty_docstrings(source: str) -> Iterator[Complaint]:
    """
    The docstring of a class, of a function of a module and of a private method says more than where to look.

    A public method may name the method of the interface that it implements.
    """
    nodes = nodes_of(source) if "See " in source else ()
    in_classes = {id(one) for node in nodes if isinstance(node, ast.ClassDef) for one in node.body}
    for node in nodes:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_method = id(node) in in_classes and not isinstance(node, ast.ClassDef)
        is_public = is_method and not re.match("_.*(?<!__)$", node.name)
        if not is_public and _ONLY_SEE.fullmatch(ast.get_docstring(node) or ""):
            yield node.lineno, f"{node.name}: say what it is or does, not only where to look"


def telling(source: str) -> Iterator[Complaint]:
    """
    Prose and names say what reports, names, shows or informs; nothing tells, and nobody is told.
    """
    for number, line in enumerate(source.splitlines(), 1):
        for found in _TELLING.finditer(line):
            yield number, f"{found[0]!r}: write reports, says, names, shows or informs"


def telling_pages(source: str) -> Iterator[Complaint]:
    """As L{telling}, for a document: its code is free, and so are the targets of links."""
    for number, line in enumerate(source.splitlines(), 1):
        if not line.startswith("    "):
            for found in _TELLING.finditer(re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)):
                yield number, f"{found[0]!r}: write reports, says, names, shows or informs"


def gone_phrases(source: str) -> Iterator[Complaint]:
    """No text has one of L{GONE_PHRASES}: prose, an error, or a line of a document."""
    for number, line in enumerate(source.splitlines(), 1):
        lowered = line.lower()
        for has, pattern, better in _GONE:
            for found in pattern.finditer(line) if has in lowered else ():
                yield number, f"{found[0]!r}: write {better}"


def _any_itself(source: str) -> set[str]:
    """The names of C{typing.Any} in a module."""
    names = {"typing.Any"}
    for node in nodes_of(source):
        if isinstance(node, ast.ImportFrom) and node.module in ("typing", "typing_extensions"):
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "Any"}
        elif isinstance(node, ast.Import):
            names |= {f"{alias.asname}.Any" for alias in node.names if alias.name == "typing"}
    return names


def _names_of_any(source: str) -> set[str]:
    """The names of C{typing.Any} in a module, and of its aliases of types that mention it."""
    names = _any_itself(source)
    for statement in tree_of(source).body:  # an alias comes before its use
        target = statement.targets[0] if isinstance(statement, ast.Assign) else (
            statement.target if isinstance(statement, ast.AnnAssign) else None
        )
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and any(_mentions(value, names)):
            names.add(target.id)
    return names


def _mentions(node: ast.AST | None, names: set[str]) -> Iterator[int]:
    """The lines on which one of C{names} is used below C{node}, in texts of types, too."""
    for one in ast.walk(node) if node is not None else ():
        if isinstance(one, ast.Name | ast.Attribute) and ast.unparse(one) in names:
            yield one.lineno
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and "\n" not in one.value:
            if not names.isdisjoint(re.findall(r"[\w.]+", one.value)):
                yield one.lineno


def _signatures(parent: ast.AST, where: str) -> Iterator[tuple[str, ast.AST]]:
    """The name of every public function, class, attribute and alias, and each of its types."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.If | ast.Try | ast.ExceptHandler | ast.With):
            yield from _signatures(node, where)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
                name = ast.unparse(target)
                is_type = isinstance(node, ast.Assign) or "TypeAlias" in ast.unparse(node.annotation)
                if not name.startswith("_") and is_type and not where and node.value is not None:
                    yield where + name, node.value
                if not name.startswith("_") and isinstance(node, ast.AnnAssign):
                    yield where + name, node.annotation
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from ((where + node.name, base) for base in node.bases)
            yield from _signatures(node, f"{where}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = where + node.name
            if not node.name.startswith("_") or node.name.endswith("__"):
                yield from ((name, one.annotation) for one in ast.walk(node.args)
                            if isinstance(one, ast.arg) and one.annotation is not None)
                if node.returns is not None:
                    yield name, node.returns
            if where:  # the attributes that a method makes are the object's, whatever the method's name
                yield from ((where + ast.unparse(one.target).removeprefix("self."), one.annotation)
                            for one in ast.walk(node) if isinstance(one, ast.AnnAssign)
                            and re.fullmatch(r"self\.[a-zA-Z]\w*", ast.unparse(one.target)))


def public_any(source: str, forced: Collection[str] = ()) -> Iterator[Complaint]:
    """
    C{Any} is in no public signature: it makes type checkers accept every use, here and in users' programs.

    @param forced: functions and attributes, as C{Class.name}, in which a library has it; each must be needed.
    """
    if "Any" not in source and not forced:
        return
    names, found = _names_of_any(source), set()
    for name, annotation in _signatures(tree_of(source), ""):
        for line in _mentions(annotation, names):
            found.add(name)
            if name not in forced:
                yield line, f"{name} has Any in its signature: say what it takes, or object"
    for name in sorted(set(forced) - found):
        yield 1, f"{name} has no Any in its signature any more: take it off FORCED_ANY"


def is_typed(path: str) -> bool:
    """Whether a file is in L{TYPED}."""
    return _matches(path, TYPED)


def mentions_of_any(source: str) -> int:
    """How often a module uses C{Any}, its imports aside."""
    return sum(1 for _ in _mentions(tree_of(source), _any_itself(source))) if "Any" in source else 0


EVERY_MODULE: tuple[Rule, ...] = (
    columns, module_docstring, no_module_level_reactor, no_inline_callbacks,
    todo_names_issue, banned_words, pointers, empty_docstrings,
)


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def rules_for(path: str) -> tuple[Rule, ...]:
    """
    The rules that apply to a file.

    @param path: relative to the root, with C{/}.
    """
    if not path.endswith(".py"):
        if not path.endswith(".md"):
            return (todo_names_issue, banned_words)
        return (banned_words,) if _matches(path, OLD_WORDS) else (
            banned_words, gone_phrases, telling_pages
        )
    if path.startswith("examples/"):  # programs as users write them, with their own reactor and output
        return (todo_names_issue, banned_words, plain_english, gone_phrases, telling)
    rules = EVERY_MODULE if path == "tests/test_tidy.py" or path == "tests/tidy.py" else (
        *EVERY_MODULE, gone_phrases, telling
    )
    if not _matches(path, SPEAKING):
        rules += (no_print,)
    if _matches(path, DOCUMENTED):
        rules += (public_docstrings,)
    if is_typed(path):
        rules += (one_field_a_line,)
    if _matches(path, PROSE):
        rules += (plain_english,)
    elif path not in ("tests/tidy.py", "tests/test_tidy.py"):
        rules += (plain_tests,)
    if is_typed(path):
        rules += (partial(public_any, forced=FORCED_ANY.get(path, frozenset())),)
    if not path.endswith("__init__.py"):
        rules += (test_case_name,)
    return rules


def text_files(root: Path = ROOT) -> Iterator[str]:
    """Every text file of the project, relative to the root, except those that git ignores."""
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not _matches(name, IGNORED_DIRECTORIES))
        for name in sorted(files):
            if name.endswith(TEXT_SUFFIXES) or name in TEXT_NAMES:
                yield Path(directory, name).relative_to(root).as_posix()


def check(path: str, source: str) -> list[str]:
    """All complaints about one file, as C{path:line: sentence}."""
    return [
        f"{path}:{line}: {sentence}" for rule in rules_for(path) for line, sentence in sorted(rule(source))
    ]
