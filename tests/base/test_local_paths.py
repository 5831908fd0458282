# -*- test-case-name: tests.base.test_local_paths -*-
"""Options of services that name a place on this machine, and URLs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.options.raft_options import RaftOptions
from dledger.rocketmq.namesrv.config import NameServerConfig
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.values.ledger.config import DLedgerConfig, from_mapping
from dledger.values.local_paths import check_local_path

URLS = ("s3://bucket/log", "gs://b/x", "file:///srv/x", "abfs://c@a/x", "my-store+2://x")
PATHS = ("", "x", "./x", "/x/y", "s3:", "s3:/x", "a//b", "/s3://x", "C:\\x", "n0-h:1;n1-h:2")
#: Words in the name of an option that names a place.
_PLACE = re.compile(r"(^|_)(path|dir|file|certificate|key|authority)(_|$)")
#: Options with such a word that are none.
_OTHERS = {"mapped_file_size_for_entry_data", "mapped_file_size_for_entry_index", "file_reserved_hours",
           "min_replicas_per_file", "file_reserved_time_h", "mapped_file_size_commit_log",
           "mapped_file_size_consume_queue"}


class CheckTests(SynchronousTestCase):
    """What is a URL."""

    def test_urls(self) -> None:
        """Anything with a scheme is refused; the sentence has the option, the value, and what is allowed."""
        for url in URLS:
            error = self.assertRaises(ValueError, check_local_path, "--store", url)
            for words in (f"--store={url!r} is a URL", "path of this machine", "./data"):
                self.assertIn(words, str(error))
        for path in PATHS:
            self.assertEqual(check_local_path("--store", path), path)


class ConfigurationTests(SynchronousTestCase):
    """Members, brokers and name servers."""

    def test_every_option(self) -> None:
        """Each option of a service that names a place refuses a URL, however it is given."""
        makers: dict[type[Any], Callable[..., object]] = {
            DLedgerConfig: DLedgerConfig, NameServerConfig: NameServerConfig, RaftOptions: RaftOptions,
            BrokerConfig: BrokerConfig, StoreConfig: StoreConfig,
        }
        found = []
        for kind, make in makers.items():
            for field in attrs.fields(kind):
                is_text = field.type in ("str", str)
                if is_text and _PLACE.search(field.name) and field.name not in _OTHERS:
                    more: dict[str, Any] = {
                        StoreConfig: {"store_path_root_dir": "x"},
                        BrokerConfig: {"store": StoreConfig(store_path_root_dir="x")},
                    }.get(kind, {})
                    with self.assertRaisesRegex(ValueError, f"{field.name}='s3://b/x' is a URL"):
                        make(**{**more, field.name: "s3://b/x"})
                    found.append(field.name)
        self.assertGreater(len(found), 20)
        self.assertIn("store_path_dledger_commit_log", found)

    def test_settings(self) -> None:
        """A configuration file, and C{--set}."""
        with self.assertRaisesRegex(ValueError, "store_base_dir='s3://b/x' is a URL"):
            from_mapping({"storePathRootDir": "s3://b/x"})
