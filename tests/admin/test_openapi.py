# -*- test-case-name: tests.admin.test_openapi -*-
"""The description of the pages fits the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import treq
from treq.testing import StubTreq
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin import resource
from dledger.admin.broker import KEPT_S, BrokerPages
from dledger.admin.name_server import NameServerPages
from dledger.admin.resource import AdminApp
from dledger.admin.sites.guard import AdminGuard
from dledger.base.serving.tokens import new_token
from dledger.node.reporting.reports import SeenEvent
from dledger.values.ledger.holes import Hole
from dledger.values.option_values import Setting
from protocols.wire.codes import ResponseCode
from tests.admin import test_broker, test_name_server, test_resource
from tests.admin.fakes import MACHINE, FakeNode, picture

#: Of pages that search: right ones, wrong ones, and some for what is not there.
QUERIES = {
    "/effects": ("?do=transfer&to=n1", "?do=flush", "?do=skip&index=7", "?do=snapshot", "?do=nothing"),
    "/entries": ("?from=10&count=2", "?count=x", "?from=1"),
    "/topics": ("?topic=orders", "?topics=1", "?topic=none"),
    "/messages": ("?topic=orders", "?topic=orders&key=k", "?position=0", "?topic=none"),
}


class FitsCase(SynchronousTestCase):
    """Compares values with schemas."""

    def fits(self, value: Any, schema: dict[str, Any], where: str) -> None:
        """A value has exactly what its schema says, all the way down."""
        if "anyOf" in schema:
            schema = next(one for one in schema["anyOf"] if (one["type"] == "null") == (value is None))
        kind = schema.get("type")
        kinds: dict[str, Any] = {"string": str, "integer": int, "boolean": bool, "number": (int, float),
                                 "array": list, "object": dict, "null": type(None)}
        if kind is not None:
            self.assertIsInstance(value, kinds[kind], where)
        if "properties" in schema:
            self.assertEqual(sorted(value), sorted(schema["properties"]), where)
            for name, inner in schema["properties"].items():
                self.fits(value[name], inner, f"{where}.{name}")
        elif kind == "object":
            for name, one in value.items():
                self.fits(one, schema.get("additionalProperties", {}), f"{where}[{name}]")
        elif kind == "array":
            for one in value:
                self.fits(one, schema["items"], f"{where}[]")

    def pages_fit(
        self, document: dict[str, Any], ask: Callable[[str], Any], seen: set[tuple[str, str]]
    ) -> None:
        """Every page in JSON is as described. @param seen: path and status of each answer are added."""
        for path in sorted(document["paths"]):
            for query in ("", *QUERIES.get(path, ())):
                response = ask(path + query)
                answers = document["paths"][path]["get"]["responses"][str(response.code)]["content"]
                if "application/json" in answers:
                    schema = answers["application/json"]["schema"]
                    self.fits(self.successResultOf(response.json()), schema, path)
                seen.add((path, str(response.code)))


    def refusals(self, paths: Iterable[str]) -> set[tuple[str, str]]:
        """
        The guard's answers to a caller without a token, whatever the options of the server are; and the
        site's to a target that is too long (see tests.admin.test_site).
        """
        tokens = Path(self.mktemp())
        tokens.write_text(new_token("ops")[1])
        guards = (AdminGuard(Clock().seconds, token_file=str(tokens), reads_need_token=True),
                  AdminGuard(Clock().seconds, contents_need_token=True))
        found = ((path, guard.refusal("GET", path, "", "host")) for path in paths for guard in guards)
        refusals = {(path, str(refused.status)) for path, refused in found if refused is not None}
        return refusals | {(path, "414") for path in paths}


class OpenApiTests(test_resource.PageCase, FitsCase):
    """Routes, and the keys of every answer."""

    def test_routes(self) -> None:
        """All, and no other."""
        document = self.document("/openapi.json")
        self.patch(resource, "openapi_document", None)  # it is made once
        self.assertEqual(self.document("/openapi.json"), document)
        routes = {rule.rule for rule in AdminApp.app.url_map.iter_rules()}
        self.assertEqual(set(document["paths"]), routes)
        self.assertEqual(set(self.document("/")["pages"]) | {"/"}, routes)

    def test_answers(self) -> None:
        """Of a member that serves, and of one that does not."""
        self.node.stored = {index: b"body" for index in range(5, 100)}
        self.node.seen = (SeenEvent(number=1, at_s=5.0, level="info", event="a", facts="b=1"),)
        document = self.document("/openapi.json")
        gets = {path: page for path, page in document["paths"].items() if "get" in page}
        seen: set[tuple[str, str]] = set()
        for facts in ({}, {"role": "candidate", "leader_id": None, "holes": (
            Hole(first_index=7, last_index=8, position=0, end_position=9),)}):
            self.node.picture = picture(**facts)
            self.pages_fit({"paths": gets}, self.ask, seen)
        self.assertEqual(seen | self.refusals(gets), {
            (path, code) for path, page in gets.items() for code in page["get"]["responses"]
        })

    def test_actions(self) -> None:
        """Every answer of those that the pages give; the others are the guard's."""
        paths, seen = self.document("/openapi.json")["paths"], set()
        for path, facts, code in (
            ("/transfer?to=n1", {}, ResponseCode.SUCCESS), ("/transfer?to=n9", {}, None),
            ("/transfer?to=n1", {"role": "follower"}, None), ("/transfer?to=n1", {}, ResponseCode.TIMEOUT),
            ("/log-level?level=warn", {}, None), ("/log-level", {}, None),
            ("/skip?index=7", {}, ResponseCode.SUCCESS), ("/skip?index=x", {}, None),
            ("/skip?index=7", {}, ResponseCode.UNEXPECTED_ARGUMENT),
            ("/flush", {"flushed_index": 100}, None), ("/flush?junk=1", {}, None),
            ("/flush", {"flushed_index": 98}, None),
            ("/snapshot", {"machine": MACHINE}, ResponseCode.SUCCESS), ("/snapshot?junk=1", {}, None),
            ("/snapshot", {"machine": attrs.evolve(MACHINE, is_writing=True)}, None),
            ("/snapshot", {}, ResponseCode.TIMEOUT),
        ):
            self.node.picture = picture(**facts)
            done = picture(machine=attrs.evolve(MACHINE, snapshots=9))
            self.node.with_snapshot = done if code is ResponseCode.SUCCESS else None
            self.node.snapshot_problem = "no" if code is ResponseCode.TIMEOUT else ""
            self.node.transfer_code = self.node.skip_code = code or ResponseCode.SUCCESS
            asked = self.treq.request("POST", f"http://admin.test{path}")
            self.pump()
            response = self.successResultOf(asked)
            action = path.partition("?")[0]
            schema = paths[action]["post"]["responses"][str(response.code)]["content"]["application/json"]
            self.fits(self.successResultOf(response.json()), schema["schema"], path)
            seen.add((action, str(response.code)))
        reported = {(path, code) for path, page in paths.items()
                for code in page.get("post", {"responses": ()})["responses"]}
        no_log = ("/log-level", "409")  # twistd writes it
        self.assertEqual({one for one in reported - seen if one[1] not in ("401", "403", "414")}, {no_log})
        for path in ("/transfer", "/log-level", "/flush", "/skip", "/snapshot"):
            self.assertEqual(paths[path]["post"]["security"], [{"token": []}])


class ServicesTests(FitsCase):
    """Brokers and name servers."""

    def check(self, pages: Any, picture: Callable[..., Any], source: Any, clock: Clock) -> dict[str, Any]:
        """All routes, no other, and every answer. @return: the description."""
        stub = StubTreq(pages.app.resource())

        def ask(path: str) -> Any:
            clock.advance(KEPT_S)
            return self.successResultOf(stub.get(f"http://admin.test{path}"))

        document: dict[str, Any] = self.successResultOf(treq.json_content(ask("/openapi.json")))
        self.assertEqual(set(document["paths"]), {rule.rule for rule in pages.app.url_map.iter_rules()})
        seen: set[tuple[str, str]] = set()
        gets = {path: page for path, page in document["paths"].items() if "get" in page}
        for problem in ("", "it stops"):
            source.picture = picture(problem=problem)
            self.pages_fit({"paths": gets}, ask, seen)
        self.assertEqual(seen | self.refusals(gets), {
            (path, code) for path, page in gets.items() for code in page["get"]["responses"]
        })
        return document

    def test_broker(self) -> None:
        """A broker."""
        source, clock = test_broker.FakeBroker(), Clock()
        settings = (Setting(name="topics_max", value=50, origin="file"),)
        pages = BrokerPages(source, clock.seconds, settings, wall_s=lambda: 1_700_000_000.0)
        document = self.check(pages, test_broker.picture, source, clock)
        self.assertEqual(document["info"]["title"], "Administration of a dledger broker")
        self.assertIn("text/html", document["paths"]["/live"]["get"]["responses"]["200"]["content"])
        self.check_actions(pages, document["paths"], source)

    def check_actions(self, pages: BrokerPages, paths: Any, source: test_broker.FakeBroker) -> None:
        """Every answer of the pages that change something; the others are the guard's."""
        node, seen = FakeNode(), set()
        raft = BrokerPages(
            source, Clock().seconds, wall_s=lambda: 0.0, member=node.status, transfer=node.transfer
        )
        for of, path, problem in (
            (pages, "/flush", ""), (pages, "/flush?x=1", ""), (raft, "/flush", ""),
            (pages, "/flush", "it stops"), (pages, "/resolve?how=try-again", ""), (pages, "/resolve", ""),
            (raft, "/resolve?how=try-again", ""), (pages, "/resolve?how=try-again", "it stops"),
            (raft, "/transfer?to=n1", ""), (raft, "/transfer", ""), (pages, "/transfer?to=n1", ""),
        ):
            source.picture = test_broker.picture(problem=problem)
            stub = StubTreq(of.app.resource())
            response = self.successResultOf(stub.request("POST", f"http://admin.test{path}"))
            action = path.partition("?")[0]
            schema = paths[action]["post"]["responses"][str(response.code)]["content"]["application/json"]
            self.fits(self.successResultOf(response.json()), schema["schema"], path)
            seen.add((action, str(response.code)))
        self.assertEqual(seen, {
            (path, code) for path, page in paths.items()
            for code in page.get("post", {"responses": ()})["responses"] if code not in ("401", "403", "414")
        })

    def test_name_server(self) -> None:
        """A name server."""
        source = test_name_server.FakeNameServer()
        document = self.check(NameServerPages(source, Clock()), test_name_server.picture, source, Clock())
        self.assertEqual(document["paths"]["/brokers"]["get"]["summary"], "the brokers that live")
