# -*- test-case-name: tests.core.test_config -*-
"""Configuration: refused at once, with a sentence that says what to do."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.values.ledger.config import ALIASES, DLedgerConfig, from_mapping
from dledger.values.option_fields import options_of

THREE = "n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"


class ConfigCase(SynchronousTestCase):
    """Helpers."""

    def assertRefused(self, *words: str, **options: object) -> None:
        """The options are refused, in a sentence with all of C{words}."""
        error = self.assertRaises(ValueError, DLedgerConfig, **options)
        for word in words:
            self.assertIn(word, str(error))


class DLedgerConfigTests(ConfigCase):
    """What is accepted and what is not."""

    def test_defaults_are_a_group_of_one(self) -> None:
        """A member that learns nothing works alone."""
        config = DLedgerConfig()
        self.assertEqual((config.self_id, config.peers), ("n0", {"n0": "127.0.0.1:20911"}))
        self.assertFalse(config.is_sync)
        self.assertEqual(config.self_path, "./dledger-data/dledger-n0")

    def test_the_largest_body_has_a_bound(self) -> None:
        """Java's encode buffer bounds it, and one data file with its blank."""
        self.assertEqual(DLedgerConfig().body_bytes_max, 4 * 1024 * 1024 - 48)
        self.assertEqual(DLedgerConfig(mapped_file_size_for_entry_data=1024).body_bytes_max, 1024 - 8 - 48)

    def test_self_must_be_a_peer(self) -> None:
        """The sentence names the ids that there are, and the option to correct."""
        self.assertRefused("'n9'", "['n0', 'n1', 'n2']", "--node-id", self_id="n9", peers=THREE)

    def test_ids_must_have_plain_characters(self) -> None:
        """An id is part of a path and of the peers' spelling."""
        for bad in ("", "a-b", "a;b", "a/b", "a b"):
            self.assertRefused("self_id", self_id=bad, peers={bad: "h:1"})

    def test_the_vote_window_must_be_open(self) -> None:
        """Equal waits would split every vote."""
        self.assertRefused("must exceed", min_vote_interval_ms=400, max_vote_interval_ms=400)

    def test_data_file_size(self) -> None:
        """No larger than Java can open, no smaller than is of use."""
        self.assertRefused("1 GiB", mapped_file_size_for_entry_data=1024**3 + 1)
        self.assertRefused("mapped_file_size_for_entry_data", mapped_file_size_for_entry_data=1023)

    def test_index_file_size(self) -> None:
        """Whole units only."""
        self.assertRefused("multiple of 32", mapped_file_size_for_entry_index=33)

    def test_hours_are_read_as_java_writes_them(self) -> None:
        """Java's semicolon-separated hours."""
        self.assertEqual(DLedgerConfig(delete_when="04;16").delete_when, "04;16")
        for bad in ("24", "", "4,5", "-1"):
            self.assertRefused("delete_when", "00 to 23", delete_when=bad)

    def test_preferred_leaders_are_peers(self) -> None:
        """A preferred leader that does not exist is a typo."""
        config = DLedgerConfig(peers=THREE, preferred_leader_ids="n1;n2")
        self.assertEqual(config.preferred_leader_ids, ("n1", "n2"))
        self.assertRefused("'n7'", peers=THREE, preferred_leader_ids=("n7",))

    def test_tls_options_must_fit_each_other(self) -> None:
        """All three files or none; exceptions from TLS need TLS, and are addresses and members."""
        files = {"tls_certificate": "a", "tls_key": "b", "tls_authority": "c"}
        config = DLedgerConfig(
            peers=THREE, tls_plain_hosts="10.0.0.0/24;::1", tls_plain_members="n1;n2", **files
        )
        self.assertEqual(config.tls_plain_hosts, ("10.0.0.0/24", "::1"))
        self.assertRefused("missing: tls_key", tls_certificate="a", tls_authority="c")
        self.assertRefused("'n7'", peers=THREE, tls_plain_members="n7", **files)
        for bad in ("localhost", "10.0.0.1/24", "10.0.0.0/33", "*"):
            self.assertRefused(f"tls_plain_hosts: '{bad}' is neither", tls_plain_hosts=bad, **files)
        for alone in ({"tls_plain_hosts": "10.0.0.1"}, {"tls_plain_members": "n1"}):
            self.assertRefused("this member has no TLS: give tls_certificate", peers=THREE, **alone)

    def test_change_hosts_are_addresses_or_networks(self) -> None:
        """Addresses, networks, or all; without TLS."""
        config = DLedgerConfig(change_hosts="10.0.0.0/24;*")
        self.assertEqual(config.change_hosts, ("10.0.0.0/24", "*"))
        for bad in ("localhost", "10.0.0.1/24"):
            self.assertRefused(f"change_hosts: '{bad}' is neither", change_hosts=bad)

    def test_choices_must_be_on_their_list(self) -> None:
        """Names that are chosen from a list."""
        for name in ("flush_disk_type", "wire"):
            self.assertRefused(name, **{name: "sometimes"})

    def test_counts_are_whole_and_not_negative(self) -> None:
        """Every number is checked for its type and its lower bound."""
        for field in attrs.fields(DLedgerConfig):
            if type(field.default) is int:
                with self.assertRaises((ValueError, TypeError), msg=field.name):
                    DLedgerConfig(**{field.name: min(field.default, 0) - 1})
                with self.assertRaises((ValueError, TypeError), msg=field.name):
                    DLedgerConfig(**{field.name: "7"})

    def test_ratios_must_be_shares_of_the_disk(self) -> None:
        """A share of the disk is more than nothing and at most all of it."""
        for name in ("disk_space_ratio_to_check_expired", "disk_space_ratio_to_force_clean",
                     "disk_full_ratio"):
            self.assertEqual(getattr(DLedgerConfig(**{name: 1.0}), name), 1.0)
            for bad in (0.0, 1.01, 90.0, -0.5):
                self.assertRefused(name, **{name: bad})

    def test_a_configuration_cannot_be_changed(self) -> None:
        """A member is informed once."""
        with self.assertRaises(attrs.exceptions.FrozenInstanceError):
            DLedgerConfig().group = "other"  # type: ignore[misc]


class FromMappingTests(SynchronousTestCase):
    """Names and values from files and command lines."""

    def test_three_spellings_of_a_name_are_read(self) -> None:
        """Ours, Java's and RocketMQ's."""
        for names in (
            {"group": "g", "peers": THREE, "self_id": "n1", "max_heart_beat_leak": 50},
            {"group": "g", "peers": THREE, "selfId": "n1", "maxHeartBeatLeak": "50"},
            {"dLegerGroup": "g", "dLegerPeers": THREE, "dLegerSelfId": "n1", "maxHeartBeatLeak": 50},
        ):
            config = from_mapping(names)
            self.assertEqual((config.group, config.self_id, config.max_heart_beat_leak), ("g", "n1", 50))
            self.assertEqual(len(config.peers), 3)

    def test_every_field_in_camel_case(self) -> None:
        """Java's camel case of every name of ours is understood."""
        for name in attrs.fields_dict(DLedgerConfig).keys() - {"ignored"}:
            first, *rest = name.split("_")
            camel = first + "".join(part.capitalize() for part in rest)
            default = getattr(DLedgerConfig(), name)
            found = from_mapping({camel: default})
            self.assertEqual(getattr(found, name), default, camel)
            self.assertEqual(found.ignored, () if name in options_of(DLedgerConfig) else (camel,))

    def test_a_fixed_value_is_ignored(self) -> None:
        """Whatever it is: Java's files have many; the names are kept for a line in the log."""
        config = from_mapping({"maxPushTimeOutMs": "x", "storeType": "MEMORY", "group": "g"})
        self.assertEqual((config, config.ignored), (DLedgerConfig(group="g", ignored=config.ignored),
                                                    ("maxPushTimeOutMs", "storeType")))
        self.assertRaises(ValueError, from_mapping, {"ignored": "x"})

    def test_aliases_lead_somewhere(self) -> None:
        """No alias of an option that does not exist."""
        for alias, target in ALIASES.items():
            self.assertIn(target, attrs.fields_dict(DLedgerConfig), alias)

    def test_an_unknown_name_gets_a_suggestion(self) -> None:
        """The nearest known name is offered."""
        error = self.assertRaises(ValueError, from_mapping, {"maxHeartBeatLeaks": 1})
        self.assertIn("'maxHeartBeatLeaks'", str(error))
        self.assertIn("'max_heart_beat_leak'", str(error))
        self.assertNotIn("mean", str(self.assertRaises(ValueError, from_mapping, {"zzzzzz": 1})))

    def test_an_option_given_twice_is_refused(self) -> None:
        """Two spellings of one option are one too many."""
        error = self.assertRaises(ValueError, from_mapping, {"self_id": "n0", "selfId": "n0"})
        self.assertIn("twice", str(error))

    def test_flush_modes_have_the_names_of_rocketmq(self) -> None:
        """RocketMQ's names of the two ways to flush."""
        self.assertTrue(from_mapping({"flushDiskType": "SYNC_FLUSH"}).is_sync)
        self.assertFalse(from_mapping({"flushDiskType": "ASYNC_FLUSH"}).is_sync)
        self.assertTrue(from_mapping({"flush_disk_type": "Sync"}).is_sync)

    def test_numbers_and_truths_as_text(self) -> None:
        """Text is converted to the type of the option; a wrong one is refused by name."""
        config = from_mapping(
            {"max_heart_beat_leak": "30", "tracing": "False", "disk_full_ratio": "0.95", "never_lead": "true"}
        )
        self.assertEqual((config.max_heart_beat_leak, config.disk_full_ratio), (30, 0.95))
        self.assertEqual((config.tracing, config.never_lead), (False, True))
        for name, value in (("max_heart_beat_leak", "soon"), ("tracing", "yes"), ("disk_full_ratio", "much")):
            self.assertIn(name, str(self.assertRaises(ValueError, from_mapping, {name: value})))
