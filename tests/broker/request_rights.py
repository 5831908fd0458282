# -*- test-case-name: tests.broker.test_request_rights -*-
"""
The lists of docs/security.md that say what each request to a broker with access control needs, made from
L{dledger.rocketmq.broker.access.request_rights}.

    python -m tests.broker.request_rights            say whether docs/ is current
    python -m tests.broker.request_rights --write    bring it up to date
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dledger.rocketmq.broker.access.request_rights import RULES, Answered
from tests.import_graph import ROOT

PAGE = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- request rights -->", "<!-- end of request rights -->"


def _rows(wants_signature: bool) -> list[str]:
    """One item for all requests of one right. Those that nobody gets are in another list, see docs/ha.md."""
    requests: dict[str, list[str]] = {}
    for code, rule in sorted(RULES.items()):
        if isinstance(rule.needs, Answered) == wants_signature and rule.needs is not Answered.REFUSAL:
            needs = str(getattr(rule.needs, "value", rule.needs))
            requests.setdefault(needs, []).append(f"{rule.name} ({code})")
    return [f"* {needs}: {', '.join(names)}" for needs, names in requests.items()]


def table() -> str:
    """Both lists, between their marks."""
    return "\n".join([
        BEGIN, "An account needs", "", *_rows(wants_signature=False),
        "* `admin: true`: any other that the broker knows", "",
        "For these requests any signature is enough. Their answers have no message, but", "",
        *_rows(wants_signature=True),
        "* a refusal: requests that are [not supported](ha.md#not-supported)", END,
    ])


def wanted(text: str) -> str:
    """The page with the present lists. @raise ValueError: its marks are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} lacks {BEGIN} or {END}")
    return before + table() + after


def main(arguments: Sequence[str]) -> int:
    """@return: the exit status: 0 if the page is current."""
    current = PAGE.read_text(encoding="utf-8")
    text = wanted(current)
    if text == current:
        return 0
    if "--write" in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    sys.stdout.write(f"{PAGE.name} is stale: python -m tests.broker.request_rights --write\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
