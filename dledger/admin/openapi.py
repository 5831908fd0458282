# -*- test-case-name: tests.admin.test_openapi -*-
"""
Describes the pages of a member, a broker or a name server as OpenAPI 3.1, for programs.

The schemas are made from the classes whose values the pages show, so a new field of a class is in the
description at once.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping

import attrs

import dledger
from dledger.admin.actions.effects import Effects
from dledger.admin.actions.table import MEMBER_ACTIONS, WHICH, Action
from dledger.admin.browsing.entries import ShownEntries
from dledger.admin.browsing.query import COUNT_MAX, INDEX_MAX, LAST, STYLES
from dledger.admin.sites.guard import ACTION_PATHS, CONTENT_PATHS, OPEN_PATHS
from dledger.admin.sites.reports import MemberReport
from dledger.admin.sites.site import TARGET_BYTES_MAX
from dledger.admin.sites.status_document import status_kinds
from dledger.node.reporting.reports import SeenEvent
from protocols.wire.fastjson import JsonObject, as_object

_TEXT: JsonObject = {"type": "string"}
_WHOLE: JsonObject = {"type": "integer"}
_YES_NO: JsonObject = {"type": "boolean"}
_SIMPLE: Mapping[object, JsonObject] = {
    str: _TEXT, int: _WHOLE, bool: _YES_NO, float: {"type": "number"}, types.NoneType: {"type": "null"},
}


def listed_schema(items: JsonObject) -> JsonObject:
    """The schema of an array."""
    return {"type": "array", "items": items}


def status_schema(kind: type, more: Mapping[str, object]) -> JsonObject:
    """
    The schema of an object with the fields of a class, and more.

    @param more: further properties and their types.
    """
    properties = as_object(json_schema(kind)["properties"])
    return object_schema({**properties, **{name: json_schema(one) for name, one in more.items()}})


def json_schema(kind: object) -> JsonObject:
    """The schema of a value's class, or of an annotation."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if isinstance(kind, type) and attrs.has(kind):
        hints = typing.get_type_hints(kind)
        return object_schema({field.name: json_schema(hints[field.name]) for field in attrs.fields(kind)})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [json_schema(one) for one in arguments]}
    if origin in (tuple, list):
        return listed_schema(json_schema(arguments[0]))
    assert origin is not None and issubclass(origin, Mapping), kind
    return {"type": "object", "additionalProperties": json_schema(arguments[1])}


def object_schema(properties: Mapping[str, object]) -> JsonObject:
    """The schema of an object with all of these properties, and no others."""
    return {
        "type": "object", "properties": properties, "required": list(properties),
        "additionalProperties": False,
    }


#: The schema of the answer to a refused request: its only property C{error} has the reason.
_ERROR = object_schema({"error": _TEXT})


def searched_pages(kind: type, *, finds_all: bool = False) -> dict[int, JsonObject]:
    """
    The schemas of a page that takes a query, by status of the answer.

    @param kind: the class of the page's values.
    @param finds_all: the page has an answer to every valid query, and so never the status 404.
    """
    return {200: json_schema(kind), 400: _ERROR, **({} if finds_all else {404: _ERROR}), 503: _ERROR}


def _common_pages() -> dict[str, dict[int, JsonObject]]:
    """The pages that members, brokers and name servers have alike, as L{_pages}."""
    return {
        "/": {200: object_schema({"service": _TEXT, "pages": json_schema(Mapping[str, str])})},
        "/config": {200: object_schema({"options": {
            "type": "object", "additionalProperties": object_schema({"value": {}, "origin": _TEXT}),
        }})},
        "/openapi.json": {200: {"type": "object"}},
        "/metrics": {200: {}},
    }


def _pages() -> dict[str, dict[int, JsonObject]]:
    """
    The pages of a member that change nothing.

    @return: for each path, the schema of each answer by its status. An empty schema means that the answer is
        text, or HTML.
    """
    facts: JsonObject = {"leader_id": json_schema(str | None), "role": _TEXT, "term": _WHOLE}
    status: JsonObject = {
        **{name: json_schema(kind) for name, kind in status_kinds().items()},
        "is_repairing": _YES_NO, "is_healthy": _YES_NO, "problem": _TEXT, "version": _TEXT,
    }
    ready = object_schema({"status": _TEXT, "reasons": listed_schema(_TEXT), **facts})
    names = listed_schema(_TEXT)
    return {
        **_common_pages(),
        "/status": {200: object_schema(status)},
        "/cluster": {200: object_schema({
            "group": _TEXT, "leaders": names, "problems": names, "unreachable": names, "unhealthy": names,
            "members": listed_schema(json_schema(MemberReport)),
        })},
        "/healthz": {200: object_schema({"status": _TEXT, **facts}),
                     503: object_schema({"status": _TEXT, "reason": _TEXT, **facts})},
        "/readyz": {200: ready, 503: ready},
        "/events": {200: object_schema({"self_id": _TEXT, "events": listed_schema(json_schema(SeenEvent))})},
        "/live": {200: {}},
        "/browse": {200: {}},
        "/actions": {200: {}},
        "/effects": {200: json_schema(Effects), 400: _ERROR},
        "/entries": searched_pages(ShownEntries),
    }


def _actions() -> dict[str, dict[int, JsonObject]]:
    """
    The pages of a member that change something. They take POST alone.

    @return: as that of L{_pages}.
    """
    not_leader = object_schema({"error": _TEXT, "leader_id": json_schema(str | None)})
    ends = {"flushed_index": _WHOLE, "end_index": _WHOLE}
    return {
        "/transfer": {
            200: object_schema({"leader_id": _TEXT, "term": _WHOLE}),
            400: _ERROR,
            409: not_leader,
        },
        "/log-level": {
            200: object_schema({"log_level": _TEXT}), 400: _ERROR, 409: _ERROR,
        },
        "/skip": {
            200: object_schema({"index": _WHOLE, "order_index": _WHOLE}), 400: _ERROR,
            409: not_leader,
        },
        "/snapshot": {
            **dict.fromkeys((200, 202), object_schema(
                {"snapshot_index": _WHOLE, "snapshot_size": _WHOLE, "is_writing": _YES_NO}
            )),
            400: _ERROR, 409: _ERROR,
        },
        "/flush": {
            200: object_schema(ends), 400: _ERROR, 504: object_schema({"error": _TEXT, **ends}),
        },
    }


#: The media types of the pages whose answers are not JSON.
_TYPES: Mapping[str, str] = {
    "/live": "text/html", "/browse": "text/html", "/actions": "text/html", "/metrics": "text/plain",
}


def _asked(name: str, description: str, schema: JsonObject, *, is_needed: bool = False) -> JsonObject:
    """The description of one parameter of a query."""
    return {"name": name, "in": "query", "required": is_needed, "schema": schema, "description": description}


_COUNT = _asked("count", "how many are shown", {"type": "integer", "minimum": 1, "maximum": COUNT_MAX})
_TIME = _asked("time", "in ISO 8601, or seconds or milliseconds since 1970; not with from", _TEXT)
_AS = _asked("as", "how bodies are shown; by default as text, or in hexadecimal where they are none",
             {"enum": list(filter(None, STYLES))})
_FROM: JsonObject = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": INDEX_MAX}, {"const": LAST}]}
_PLACE: JsonObject = {"type": "integer", "minimum": 0}
_TOPIC = _asked("topic", "name of a topic", _TEXT)
#: The parameters of the query of each page that takes one.
_QUERIES: Mapping[str, list[JsonObject]] = {
    "/entries": [_asked("from", "first index; by default the last entries are shown", _FROM), _TIME, _COUNT,
                 _AS],
    "/topics": [_TOPIC],
    "/messages": [
        _TOPIC, _asked("queue", "number of a queue; 0 by default", _PLACE),
        _asked("from", "first offset in the queue; by default the last messages are shown", _FROM), _TIME,
        _asked("key", "a word of KEYS, or a unique key; not with from or time", _TEXT),
        _asked("position", "of one message in the log, in bytes; alone", _PLACE),
        _COUNT,
        _AS,
    ],
}
#: The answers of the guard, which checks the token before the page sees a request.
_REFUSED = {401: _ERROR, 403: _ERROR}


def _values(action: Action) -> list[JsonObject]:
    """The parameters of the query of an action."""
    return [
        _asked(one.name, one.meaning, one.schema, is_needed=one.is_needed) for one in action.values
    ]


def effect_values(actions: Mapping[str, Action]) -> list[JsonObject]:
    """The parameters of the query of the page C{effects}: the action, and the values of all actions."""
    forms = [one for one in actions.values() if one.title]
    return [
        _asked(WHICH, "the action", {"enum": [one.name for one in forms]}, is_needed=True),
        *(_asked(value.name, f"of {one.name}: {value.meaning}", value.schema)
          for one in forms for value in one.values),
    ]


def openapi_document(summaries: Mapping[str, str]) -> JsonObject:
    """
    The whole description of a member's pages.

    @param summaries: path of a page to its content, in words.
    """
    document = _described("member", _pages(), summaries)
    paths = as_object(document["paths"])
    _add_actions(paths, _actions(), summaries, MEMBER_ACTIONS)
    return document


def _add_actions(
    paths: JsonObject, pages: Mapping[str, Mapping[int, JsonObject]], summaries: Mapping[str, str],
    actions: Mapping[str, Action],
) -> None:
    """
    Add the pages that change something to a description.

    @param paths: of the description.
    @param pages: the schemas of their answers, as L{_pages} returns them.
    """
    as_object(as_object(paths["/effects"])["get"])["parameters"] = effect_values(actions)
    for path, answers in pages.items():
        responses = _responses({**answers, **_REFUSED}, {
            200: "done", 202: "begun, and not done yet", 400: "the query is wrong",
            401: "the token is missing or unknown", 403: "the server knows no token",
            409: "the server refuses it", 503: "it does not serve", 504: "not done in time",
        })
        paths[path] = {"post": {
            "summary": summaries[path], "responses": responses, "security": [{"token": []}],
            "parameters": _values(actions[path.strip("/")]),
        }}


def service_document(
    service: str, status: JsonObject, further: Mapping[str, Mapping[int, JsonObject]],
    summaries: Mapping[str, str], actions: Mapping[str, Action] | None = None,
) -> JsonObject:
    """
    The whole description of the pages of a broker or a name server.

    @param service: its kind, in words.
    @param status: the schema of its page C{/status}.
    @param further: the schemas of the pages that only this service has, as L{_pages} returns them.
    @param summaries: path of a page to its content, in words.
    @param actions: the actions of a broker; None: the service has no page that changes something.
    """
    ready = object_schema({"status": _TEXT, "reasons": listed_schema(_TEXT)})
    document = _described(service, {
        **_common_pages(),
        "/status": {200: status},
        "/healthz": {200: object_schema({"status": _TEXT}),
                     503: object_schema({"status": _TEXT, "reason": _TEXT})},
        "/readyz": {200: ready, 503: ready},
        **further,
    }, summaries)
    if actions is not None:
        _add_actions(as_object(document["paths"]), _broker_actions(), summaries, actions)
    return document


def _broker_actions() -> dict[str, dict[int, JsonObject]]:
    """The pages of a broker that change something, as L{_pages}. They take POST alone."""
    refused = {400: _ERROR, 409: _ERROR}
    return {
        "/flush": {200: object_schema({"flushed_offset": _WHOLE}), **refused, 503: _ERROR},
        "/resolve": {200: object_schema({"directory": _TEXT}), **refused, 503: _ERROR},
        "/transfer": {200: object_schema({"leader_id": _TEXT, "term": _WHOLE}), **refused},
    }


def _described(
    service: str, pages: Mapping[str, Mapping[int, JsonObject]], summaries: Mapping[str, str]
) -> JsonObject:
    paths: JsonObject = {}
    for path, answers in pages.items():
        meanings = {
            200: "the page", 400: "the query is wrong", 404: "what it asks for is not there",
            503: "it does not serve, or is not ready",
            401: "the token is missing or unknown", 403: "the server knows no token",
        }
        responses = _responses(answers, meanings, _TYPES.get(path, "application/json"))
        responses |= _responses(_refusals(path), meanings)
        paths[path] = {"get": {
            "summary": summaries.get(path, "list of pages"), "parameters": _QUERIES.get(path, []),
            "responses": responses, "security": [{}] if path in OPEN_PATHS else [{}, {"token": []}],
        }}
    info = {"title": f"Administration of a dledger {service}", "version": dledger.__version__}
    return {
        "openapi": "3.1.0", "info": info, "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _refusals(path: str) -> dict[int, JsonObject]:
    """
    The answers of the guard to requests for a page that changes nothing. The options of the server decide
    whether it ever gives them.
    """
    if path in OPEN_PATHS:
        return {}
    return _REFUSED if path in (*CONTENT_PATHS, *ACTION_PATHS) else {401: _ERROR}


def _responses(
    answers: Mapping[int, JsonObject], meanings: Mapping[int, str], kind: str = "application/json"
) -> JsonObject:
    """Also the answer to a target that is too long, which every page may give."""
    responses: JsonObject = {"414": {
        "description": f"path and query have more than {TARGET_BYTES_MAX} bytes",
        "content": {"application/json": {"schema": _ERROR}},
    }}
    for status, schema in answers.items():
        responses[str(status)] = {
            "description": meanings[status], "content": {kind: {"schema": schema or _TEXT}},
        }
    return responses
