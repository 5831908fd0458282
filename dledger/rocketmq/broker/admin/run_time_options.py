# -*- test-case-name: tests.broker.admin.test_run_time_options -*-
"""
Options that an administrator changes while the broker runs: C{mqadmin updateBrokerConfig}.

Rule 1: a change counts at once, and after the next start, too: it is kept beside the topics.
Rule 2: a change of the configuration itself is younger, and counts instead: the kept one is forgotten.

Source: AdminBrokerProcessor.updateBrokerConfig, Configuration.update (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.logger import Logger

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.options.config import (
    BrokerConfig,
    change_options,
    option_value,
    run_time_options,
)
from dledger.rocketmq.broker.options.system_topics import add_system_topics
from dledger.rocketmq.metadata.changed_options import ChangedOptions, OptionValue
from dledger.rocketmq.metadata.files import Metadata
from dledger.values.option_values import read_properties

#: Most bytes of the request.
UPDATE_BYTES_MAX = 64 * 1024
#: Options that RocketMQ does not let a client change.
BLACK_LIST = frozenset(("configBlackList", "brokerConfigPath", "rocketmqHome"))

_log = Logger()


def change_by_request(
    config: BrokerConfig, metadata: Metadata, body: bytes, address: str, now_ms: int
) -> bool:
    """
    Change options of a broker that runs: all of them, or none. The caller saves the metadata.

    @param body: lines C{name=value}. @param address: of the administrator, for the log.
    @return: whether name servers must hear of it.
    @raise Refused: an option is unknown, has no such value, or does not change while the broker runs.
    """
    if len(body) > UPDATE_BYTES_MAX:
        raise Refused(Code.SYSTEM_ERROR, f"{len(body)} bytes of options, at most {UPDATE_BYTES_MAX} are read")
    try:
        values = read_properties(body.decode("utf-8", "replace"))
        if not BLACK_LIST.isdisjoint(values):
            raise Refused(Code.NO_PERMISSION, "Can not update config in black list.")
        before = change_options(config, values)
    except (ValueError, TypeError) as error:
        raise Refused(Code.SYSTEM_ERROR, str(error.args[0] if error.args else error)) from None
    for name, old in before.items():
        now = option_value(config, name)
        assert isinstance(now, OptionValue) and isinstance(old, OptionValue), name
        metadata.changed_options.put(name, now, old)
        _log.info("option {name}={value}, by {address}; it was {old}",
                  name=name, value=now, old=old, address=address)
    if config.role.is_slave:
        return False  # a slave has its master's topics, and name servers hear of them from the master
    if "auto_create_topic_enable" in before:
        add_system_topics(metadata, config, now_ms)
    if "broker_permission" in before:
        metadata.topics.renew(now_ms)
    return not before.keys().isdisjoint({"auto_create_topic_enable", "broker_permission"})


def change_by_configuration(
    config: BrokerConfig, metadata: Metadata, values: Mapping[str, object], now_ms: int
) -> frozenset[str]:
    """
    Take options of the configuration, which was read again. They are younger than changes by request, which
    are forgotten. The caller saves the metadata.

    @param values: those of L{run_time_options} that are another now, by our names.
    @return: their names.
    @raise ValueError: they do not fit together with the others; nothing has changed.
    """
    before = change_options(config, values)
    for name in values:
        if name in metadata.changed_options.entries:
            metadata.changed_options.forget(name)
    if not config.role.is_slave and "auto_create_topic_enable" in before:
        add_system_topics(metadata, config, now_ms)
    if not config.role.is_slave and "broker_permission" in before:
        metadata.topics.renew(now_ms)
    return frozenset(values)


def restore_options(config: BrokerConfig, changed: ChangedOptions) -> None:
    """Apply the changes that were kept."""
    for name, one in list(changed.entries.items()):
        try:
            configured = option_value(config, name) if name in run_time_options(config) else None
            if configured == one.configured:
                change_options(config, {name: one.value})
        except (KeyError, ValueError, TypeError) as error:
            _log.warn("option {name}={value} is kept from an earlier run, and does not count: {reason}",
                      name=name, value=one.value, reason=str(error))
            continue
        if configured == one.configured:
            _log.info(
                "option {name}={value} was changed while the broker ran; the configuration has {configured}",
                name=name, value=one.value, configured=configured,
            )
            continue
        changed.forget(name)
        _log.warn(
            "option {name}={value} was changed while the broker ran; it is forgotten: the configuration had "
            "{before}, and has {configured} now", name=name, value=one.value, before=one.configured,
            configured=configured,
        )
