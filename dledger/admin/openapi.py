# -*- test-case-name: tests.admin.test_openapi -*-
"""
The description of a member's pages for programs, as OpenAPI 3.1. It is made from the classes whose values the
pages show, so a new field is in it at once.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping

import attrs

import dledger
from dledger.admin.cluster import MemberReport
from dledger.node.reports import SeenEvent
from dledger.node.status import NodeStatus
from protocols.wire.fastjson import JsonObject

_TEXT: JsonObject = {"type": "string"}
_WHOLE: JsonObject = {"type": "integer"}
_YES_NO: JsonObject = {"type": "boolean"}
_SIMPLE: Mapping[object, JsonObject] = {
    str: _TEXT, int: _WHOLE, bool: _YES_NO, float: {"type": "number"}, types.NoneType: {"type": "null"},
}


def _listed(items: JsonObject) -> JsonObject:
    return {"type": "array", "items": items}


def json_schema(kind: object) -> JsonObject:
    """The schema of a value's class, or of an annotation."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if isinstance(kind, type) and attrs.has(kind):
        hints = typing.get_type_hints(kind)
        return _object({field.name: json_schema(hints[field.name]) for field in attrs.fields(kind)})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [json_schema(one) for one in arguments]}
    if origin is tuple:
        return _listed(json_schema(arguments[0]))
    assert origin is not None and issubclass(origin, Mapping), kind
    return {"type": "object", "additionalProperties": json_schema(arguments[1])}


def _object(properties: JsonObject) -> JsonObject:
    return {
        "type": "object", "properties": properties, "required": list(properties),
        "additionalProperties": False,
    }


def _pages() -> dict[str, dict[int, JsonObject]]:
    """Path to the schema of each answer by its status; an empty one is text."""
    facts: JsonObject = {"leader_id": json_schema(str | None), "role": _TEXT, "term": _WHOLE}
    status = json_schema(NodeStatus)["properties"] | {
        "is_repairing": _YES_NO, "is_healthy": _YES_NO, "problem": _TEXT, "version": _TEXT,
    }
    ready = _object({"status": _TEXT, "reasons": _listed(_TEXT), **facts})
    names = _listed(_TEXT)
    return {
        "/": {200: _object({"service": _TEXT, "pages": json_schema(Mapping[str, str])})},
        "/status": {200: _object(status)},
        "/cluster": {200: _object({
            "group": _TEXT, "leaders": names, "problems": names, "unreachable": names, "unhealthy": names,
            "members": _listed(json_schema(MemberReport)),
        })},
        "/healthz": {200: _object({"status": _TEXT, **facts}),
                     503: _object({"status": _TEXT, "reason": _TEXT, **facts})},
        "/readyz": {200: ready, 503: ready},
        "/events": {200: _object({"self_id": _TEXT, "events": _listed(json_schema(SeenEvent))})},
        "/config": {200: _object({"options": {
            "type": "object", "additionalProperties": _object({"value": {}, "origin": _TEXT}),
        }})},
        "/openapi.json": {200: {"type": "object"}},
        "/metrics": {200: {}},
    }


def openapi_document(summaries: Mapping[str, str]) -> JsonObject:
    """
    The whole description.

    @param summaries: path of a page to its content, in words.
    """
    paths: JsonObject = {}
    for path, answers in _pages().items():
        responses: JsonObject = {}
        for status, schema in answers.items():
            kind = "application/json" if schema else "text/plain"
            responses[str(status)] = {
                "description": "the page" if status == 200 else "it does not serve, or is not ready",
                "content": {kind: {"schema": schema or _TEXT}},
            }
        paths[path] = {"get": {"summary": summaries.get(path, "list of pages"), "responses": responses}}
    info = {"title": "Administration of a dledger member", "version": dledger.__version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths}
