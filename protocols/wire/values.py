# -*- test-case-name: tests.wire.test_values -*-
"""
Values that are made for each append: messages, inputs and effects.

Rule: nobody changes one. The type checker watches over that, not the program: objects of C{attrs.frozen} set
each field by a call, which took a twentieth of the steps of one append (C{benchmarks.guard}).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

__all__ = ["value_class"]

if TYPE_CHECKING:
    from attrs import frozen as value_class
else:

    def value_class(cls: type | None = None, **options: object) -> object:
        """
        As C{attrs.frozen}, for the type checker and in all but one thing: a field that is set at run time
        changes.

        @param options: as of C{attrs.frozen}.
        """
        options.setdefault("unsafe_hash", True)
        return attrs.define(cls, **options)
