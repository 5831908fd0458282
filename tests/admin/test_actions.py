# -*- test-case-name: tests.admin.test_actions -*-
"""An action shows its effects first, and doing it is another question."""

from __future__ import annotations

from typing import Any

import attrs
import treq

from dledger.admin.actions.doing import LOOK_S
from dledger.admin.actions.table import MEMBER_ACTIONS
from protocols.wire.codes import ResponseCode
from tests.admin.fakes import MACHINE, picture
from tests.admin.test_resource import PageCase

FAILED = attrs.evolve(MACHINE, state="failed", failed_index=91, reason="ValueError: <x>")


class EffectTests(PageCase):
    """GET /effects changes nothing."""

    def effects(self, query: str, status: int = 200) -> Any:
        """The document."""
        return self.document(f"/effects?{query}", status)

    def html(self, path: str) -> str:
        """As a browser gets it."""
        url, headers = f"http://admin.test{path}", {"accept": "text/html"}
        asked = self.successResultOf(self.treq.get(url, headers=headers))
        text: str = self.successResultOf(treq.text_content(asked))
        return text

    def test_transfer(self) -> None:
        """From whom to whom, and how much the next leader lacks."""
        reported = self.effects("do=transfer&to=n1")
        self.assertEqual((reported["target"], reported["problem"]), ("transfer?to=n1", ""))
        self.assertIn("from n0 to n1", " ".join(reported["effects"]))
        self.assertIn("n1 lacks", " ".join(reported["effects"]))
        self.assertEqual(self.effects("do=transfer&to=n2")["problem"], "n2 is not connected")
        for query in ("", "&to=n0", "&to=n9", "&x=1"):
            self.effects(f"do=transfer{query}", 400)
        self.effects("do=shutdown", 400)
        self.assertEqual(self.node.transferees, [])

    def test_not_leader(self) -> None:
        """A follower says so, and who leads; there is no button."""
        self.node.picture = picture(role="follower", leader_id="n2")
        reported = self.effects("do=transfer&to=n1")
        self.assertEqual(reported["problem"], "n0 does not lead; n2 does")
        self.assertEqual(
            reported["effects"], ["Only the leader hands leadership over: ask the pages of n2."]
        )
        self.assertEqual(self.effects("do=transfer&to=n2")["problem"], "n0 does not lead; n2 does")
        self.node.picture = picture(role="candidate", leader_id=None)
        self.assertIn("knows none now", self.effects("do=transfer&to=n1")["effects"][0])
        self.node.picture = picture(role="follower", leader_id="n2")
        self.assertNotIn('method="post"', self.html("/effects?do=transfer&to=n1"))
        self.assertIn("n0 does not lead; n2 does", self.html("/"))

    def test_leader(self) -> None:
        """The page of the leader says no such thing."""
        self.assertNotIn("does not lead", self.html("/"))

    def test_flush(self) -> None:
        """Any member does it."""
        self.node.picture = picture(role="follower", leader_id="n2", flushed_index=98, ledger_end_index=100)
        reported = self.effects("do=flush")
        self.assertEqual((reported["target"], reported["problem"]), ("flush", ""))
        self.assertIn("up to 100; those up to 98 are there already", reported["effects"][0])

    def test_skip(self) -> None:
        """Only of the entry at which the machine of the leader has failed."""
        self.assertIn("runs no state machine", self.effects("do=skip&index=91")["problem"])
        self.node.picture = picture(machine=MACHINE)
        self.assertEqual(self.effects("do=skip&index=91")["problem"],
                         "the state machine kv is running, and has not failed at 91")
        self.node.picture = picture(machine=FAILED)
        self.assertIn("has not failed at 90", self.effects("do=skip&index=90")["problem"])
        reported = self.effects("do=skip&index=91")
        self.assertEqual((reported["problem"], reported["target"]), ("", "skip?index=91"))
        self.assertIn("cannot be undone", reported["effects"][1])
        self.effects("do=skip", 400)
        self.assertEqual(self.node.skipped, [])

    def test_snapshot(self) -> None:
        """Of the machine of this member, whether it leads or not; and why it would take none."""
        self.assertEqual(self.effects("do=snapshot")["problem"], "this member runs no state machine")
        for facts, problem in (
            ({}, ""), ({"state": "starting"}, "the state machine kv is starting"),
            ({"is_writing": True}, "a snapshot is being written"),
            ({"in_doubt": "others differ"}, "others differ"),
            ({"snapshot_index": 90}, "there is a snapshot of the state after the entry 90"),
            ({"snapshot_index": -1}, ""),
        ):
            machine = attrs.evolve(MACHINE, **facts)
            self.node.picture = picture(machine=machine, role="follower", leader_id="n2")
            reported = self.effects("do=snapshot")
            self.assertEqual((reported["problem"], reported["target"]), (problem, "snapshot"), facts)
            self.assertIn("entries up to 90", reported["effects"][0])
        self.assertIn("it has none yet", reported["effects"][0])
        self.assertEqual(self.node.snapshots_asked, 0)

    def test_page(self) -> None:
        """The forms; then the plan, with a button that carries it out; nothing of the query is HTML."""
        page = self.html("/actions")
        for name in ("transfer", "flush", "snapshot", "skip"):
            self.assertIn(f'name="do" value="{name}"', page)
        self.assertNotIn('method="post"', page)
        shown = self.html("/effects?do=transfer&to=n1")
        self.assertIn('action="transfer?to=n1" method="post"', shown)
        self.assertIn("Nothing has been done yet", shown)
        self.assertNotIn("<script>x", self.html("/effects?do=transfer&to=%3Cscript%3Ex"))


class QueryTests(PageCase):
    """What has a slip does nothing."""

    WRONG = (
        ("junk=1", "'junk' is unknown here"), ("index=1&index=2", "index is given 2 times"),
        ("to=n1&to=n2", "to is given 2 times"), ("index=" + "9" * 19, "is not a whole number"),
        ("index=9223372036854775808", "is not a whole number"), ("to=%ff", "to is not UTF-8"),
        ("to=" + "n" * 256, "to is longer than 255"), ("level=loud", "level is debug, "),
        ("level=warn&room=", "room is a module"), ("index=", "index is "),
    )

    def test_refused(self) -> None:
        """Of every action, with the form that it takes; the page of effects refuses the same."""
        self.node.picture = picture(machine=FAILED)
        seen = set()
        for name, action in MEMBER_ACTIONS.items():
            for query, said in self.WRONG:
                is_own = query.split("=")[0] in {value.name for value in action.values}
                if not is_own:
                    said = f"{query.split('=')[0]!r} is unknown here; {name} takes "
                for method, path in (("POST", f"/{name}?{query}"), ("GET", f"/effects?do={name}&{query}")):
                    if method == "GET" and not action.title:
                        continue
                    error = self.document(path, 400, method)["error"]
                    if method == "POST":
                        self.assertTrue(error.startswith(f"write {action.usage}: "), error)
                        if "times" not in error and "UTF-8" not in error:
                            self.assertIn(said, error, path)
                    seen.add((name, query))
        self.assertEqual(len(seen), len(MEMBER_ACTIONS) * len(self.WRONG))
        self.assertEqual((self.node.transferees, self.node.skipped), ([], []))


class SkipTests(PageCase):
    """POST /skip."""

    def test_skip(self) -> None:
        """The answer of the member is the answer."""
        self.assertEqual(self.document("/skip?index=91", 200, "POST"), {"index": 91, "order_index": 150})
        for query in ("", "?index=", "?index=-1", "?index=x", "?index=" + "9" * 20):
            self.assertIn("write /skip?index=", self.document(f"/skip{query}", 400, "POST")["error"], query)
        self.node.skip_code = ResponseCode.UNEXPECTED_ARGUMENT
        self.assertIn("it is not skipped: it runs", self.document("/skip?index=91", 409, "POST")["error"])
        self.assertEqual(self.node.skipped, [91, 91])
        self.assertEqual(self.ask("/skip?index=91").code, 405)


class SnapshotTests(PageCase):
    """POST /snapshot."""

    def machine(self, **facts: Any) -> None:
        """The status of the member's machine from now on."""
        self.node.picture = picture(machine=attrs.evolve(MACHINE, **facts))

    def post(self, *looks: dict[str, Any]) -> tuple[int, Any]:
        """Ask; with each look of the page the machine has come further. @return: status and document."""
        self.machine()
        asked = self.treq.request("POST", "http://admin.test/snapshot")
        for facts in looks:
            self.machine(**facts)
            self.clock.advance(LOOK_S)
        self.treq.flush()
        self.pump()
        response = self.successResultOf(asked)
        return response.code, self.successResultOf(response.json())

    def test_taken(self) -> None:
        """When it is written: after which entry."""
        done = {"snapshots": 4, "snapshot_index": 90, "snapshot_size": 77}
        self.assertEqual(self.post({"is_writing": True}, done), (
            200, {"snapshot_index": 90, "snapshot_size": 77, "is_writing": False},
        ))
        self.assertEqual(self.node.snapshots_asked, 1)

    def test_long(self) -> None:
        """One that takes longer goes on."""
        status, reported = self.post({"is_writing": True})
        self.assertEqual((status, reported["is_writing"]), (202, True))

    def test_failed(self) -> None:
        """One that cannot be written, or may not be taken."""
        status, reported = self.post({"is_writing": True}, {"snapshot_problem": "no room"})
        self.assertEqual((status, reported["error"]), (409, "no snapshot: no room"))
        self.node.snapshot_problem = "it starts"
        self.assertEqual(self.post(), (409, {"error": "no snapshot: it starts"}))
