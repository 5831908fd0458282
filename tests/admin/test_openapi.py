# -*- test-case-name: tests.admin.test_openapi -*-
"""The description of the pages is what the pages are."""

from __future__ import annotations

from typing import Any

from dledger.admin.resource import AdminApp
from dledger.base.holes import Hole
from dledger.node.reports import SeenEvent
from tests.admin import test_resource
from tests.admin.fakes import picture


class OpenApiTests(test_resource.PageCase):
    """Routes, and the keys of every answer."""

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

    def test_routes(self) -> None:
        """All, and no other."""
        document = self.document("/openapi.json")
        routes = {rule.rule for rule in AdminApp.app.url_map.iter_rules()}
        self.assertEqual(set(document["paths"]), routes)
        self.assertEqual(set(self.document("/")["pages"]) | {"/"}, routes)

    def test_answers(self) -> None:
        """Of a member that serves, and of one that does not."""
        self.node.seen = (SeenEvent(number=1, at_s=5.0, level="info", event="a", facts="b=1"),)
        paths = self.document("/openapi.json")["paths"]
        seen = set()
        for facts in ({}, {"role": "candidate", "leader_id": None, "holes": (
            Hole(first_index=7, last_index=8, position=0, end_position=9),)}):
            self.node.picture = picture(**facts)
            for path in sorted(paths.keys() - {"/metrics"}):
                response = self.ask(path)
                schema = paths[path]["get"]["responses"][str(response.code)]["content"]["application/json"]
                self.fits(self.successResultOf(response.json()), schema["schema"], path)
                seen.add((path, str(response.code)))
        told = {(path, code) for path, page in paths.items() for code in page["get"]["responses"]}
        self.assertEqual(told - seen, {("/metrics", "200")})
