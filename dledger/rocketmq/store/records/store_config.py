# -*- test-case-name: tests.broker.store.test_store_config -*-
"""
Options of a RocketMQ store, with RocketMQ's names in snake_case and its defaults.

Knows values and their limits. Touches neither disk nor network.

Source: MessageStoreConfig.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

import re

import attrs
from attrs.validators import ge, instance_of, le

from dledger.base.disk.expiry import ExpiryRules
from dledger.values.option_fields import flag_option, is_local, number_option, path_option, text_option

UNIT_SIZE = 20

#: Bytes allowed for all parts of a record except its body.
RECORD_OVERHEAD_MAX = 64 * 1024

_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_LEVEL = re.compile(r"([0-9]{1,9})([smhd])")
_LEVEL_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """
    Milliseconds of each delay level, level 1 first.

    @raise ValueError: a word is not a number with one of the units s, m, h, d.
    """
    levels = []
    for word in text.split():
        match = _LEVEL.fullmatch(word)
        if match is None:
            raise ValueError(
                f"message_delay_level: {word!r} is not a delay; write a number and a unit (s, m, h, d): 30s"
            )
        levels.append(int(match[1]) * _LEVEL_MS[match[2]])
    return tuple(levels)


#: Options of L{StoreConfig.expiry_rules}.
EXPIRY_OPTIONS = frozenset({
    "file_reserved_time_h", "delete_when", "disk_max_used_space_ratio", "disk_space_clean_forcibly_ratio",
    "disk_space_warning_level_ratio",
})


def _set_option(config: object, attribute: attrs.Attribute[object], value: object) -> object:
    """Hook of attrs: these options may change."""
    if attribute.name not in EXPIRY_OPTIONS:
        raise attrs.exceptions.FrozenAttributeError
    return attrs.setters.validate(config, attribute, value)


@attrs.define(kw_only=True, on_setattr=_set_option)
class StoreConfig:
    """
    The options of one store. Sizes are in bytes, times in the unit of their name. Those of
    L{EXPIRY_OPTIONS} may change while a store without a raft log is open.

    @ivar store_path_root_dir: holds everything except, if C{store_path_commit_log} is set, the commit log.
    @ivar store_path_commit_log: directory of the commit log; empty: C{commitlog} below that directory.
    @ivar mapped_file_size_commit_log: length of each commit log file; one for a master and its slaves.
    @ivar mapped_file_size_consume_queue: length of each consume queue file, whole units of 20 bytes.
    @ivar max_message_size: longest body of a message.
    @ivar message_delay_level: the delays of the levels 1, 2 and so on of delayed messages, with a unit each:
        C{s}, C{m}, C{h} or C{d}.
    @ivar file_reserved_time_h: hours after its last write when a commit log file may be deleted.
    @ivar delete_when: hours of the day in which old files are deleted, separated by semicolons.
    @ivar disk_max_used_space_ratio: percent of the disk in use above which old files are deleted at any hour.
    @ivar disk_space_clean_forcibly_ratio: share in use above which the oldest files are deleted at any age.
    @ivar disk_space_warning_level_ratio: share in use above which messages are refused.
    @ivar scrub_bytes_per_second: rate at which the log is read again to find damaged records; 0: never.
    @ivar message_index_enable: whether messages can be found by their keys.
    @ivar max_hash_slot_num, max_index_num: slots and entries of each file of the index by key; files of
        another size are set aside.
    """

    store_path_root_dir: str = attrs.field(validator=[instance_of(str), is_local])
    store_path_commit_log: str = path_option("")
    mapped_file_size_commit_log: int = number_option(1024**3, 4096, 2**31 - 1)
    mapped_file_size_consume_queue: int = number_option(300_000 * UNIT_SIZE, UNIT_SIZE, 2**31 - 1)
    max_message_size: int = number_option(4 * 1024**2, 1, 64 * 1024**2)
    message_delay_level: str = text_option(_LEVELS)
    file_reserved_time_h: int = number_option(72, 1)
    delete_when: str = text_option("04")
    disk_max_used_space_ratio: int = number_option(75, 10, 95)
    disk_space_clean_forcibly_ratio: float = attrs.field(
        default=0.85, validator=[instance_of(float), ge(0.1), le(1.0)]
    )
    disk_space_warning_level_ratio: float = attrs.field(
        default=0.90, validator=[instance_of(float), ge(0.1), le(1.0)]
    )
    scrub_bytes_per_second: int = number_option(4 * 1024**2, 0, 2**30)
    message_index_enable: bool = flag_option(True)
    max_hash_slot_num: int = number_option(5_000_000, 1, 100_000_000)
    max_index_num: int = number_option(20_000_000, 2, 80_000_000)

    @store_path_root_dir.validator
    def _root_is_named(self, attribute: object, value: str) -> None:
        if not value:
            raise ValueError("store_path_root_dir is empty: name the directory that holds the store")

    @mapped_file_size_consume_queue.validator
    def _whole_units(self, attribute: object, value: int) -> None:
        if value % UNIT_SIZE:
            raise ValueError(
                f"mapped_file_size_consume_queue={value} is not a multiple of {UNIT_SIZE}: "
                f"{value - value % UNIT_SIZE} and {value - value % UNIT_SIZE + UNIT_SIZE} are"
            )

    @message_delay_level.validator
    def _levels_are_delays(self, attribute: object, value: str) -> None:
        parse_delay_levels(value)

    @delete_when.validator
    def _hours(self, attribute: object, value: str) -> None:
        for hour in value.split(";"):
            if not (hour.isascii() and hour.isdecimal() and int(hour) < 24):
                raise ValueError(f"delete_when={value!r}: {hour!r} is not an hour; write hours of the day, "
                                 "0 to 23, separated by semicolons")

    @property
    def commit_log_path(self) -> str:
        """Directory of the commit log's files."""
        return self.store_path_commit_log or f"{self.store_path_root_dir}/commitlog"

    @property
    def consume_queue_path(self) -> str:
        """Directory of the consume queues: C{TOPIC/QUEUEID} below it."""
        return f"{self.store_path_root_dir}/consumequeue"

    @property
    def config_path(self) -> str:
        """Directory of the metadata."""
        return f"{self.store_path_root_dir}/config"

    @property
    def record_size_max(self) -> int:
        """The greatest size of a record that is accepted, bytes."""
        return min(self.max_message_size + RECORD_OVERHEAD_MAX, self.mapped_file_size_commit_log)

    @property
    def expiry_rules(self) -> ExpiryRules:
        """The options that concern disk space."""
        return ExpiryRules(
            full_ratio=self.disk_space_warning_level_ratio,
            full_ratio_name="disk_space_warning_level_ratio",
            reserved_hours=self.file_reserved_time_h,
            delete_hours=frozenset(int(hour) for hour in self.delete_when.split(";")),
            check_ratio=self.disk_max_used_space_ratio / 100,
            force_ratio=self.disk_space_clean_forcibly_ratio,
            retention_bytes=0,
        )

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Milliseconds of each delay level, level 1 first."""
        return parse_delay_levels(self.message_delay_level)
