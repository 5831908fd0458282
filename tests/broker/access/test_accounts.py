# -*- test-case-name: tests.broker.access.test_accounts -*-
"""Files of accounts: RocketMQ's own example, and every slip."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.access.accounts import (
    FILE_BYTES_MAX,
    AccessRight,
    Accounts,
    read_accounts,
    read_credentials,
)

#: The file of RocketMQ's distribution.
EXAMPLE = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""
_PUB, _SUB = AccessRight.PUB, AccessRight.SUB


class FileCase(SynchronousTestCase):
    """Files of this test."""

    def write(self, text: str | bytes, name: str = "plain_acl.yml") -> str:
        """A file. @return: its path."""
        self.directory = Path(self.mktemp())
        self.directory.mkdir(parents=True)
        path = self.directory / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def read(self, text: str) -> Accounts:
        """The accounts of a file."""
        return read_accounts(self.write(text))


class AccountsTests(FileCase):
    """The file of accounts."""

    def test_example(self) -> None:
        """As RocketMQ reads it."""
        accounts = self.read(EXAMPLE)
        self.assertTrue(accounts.is_white("10.10.103.7"))
        self.assertFalse(accounts.is_white("10.10.104.7"))
        first, second = accounts.by_key["RocketMQ"], accounts.by_key["rocketmq2"]
        self.assertEqual((first.secret_key, first.is_admin), ("12345678", False))
        for resource, may_publish, may_subscribe in (
            ("topicA", False, False), ("topicB", True, True), ("topicC", False, True),
            ("other", False, False),
            ("%RETRY%groupA", False, False), ("%RETRY%groupB", True, True), ("%RETRY%groupC", False, True),
            ("%RETRY%other", False, True), ("groupB", False, False),
        ):
            self.assertEqual((first.may(resource, _PUB), first.may(resource, _SUB)),
                             (may_publish, may_subscribe), resource)
            self.assertTrue(second.may(resource, _PUB) and second.may(resource, _SUB))
        self.assertFalse(first.is_white("192.168.1.1"))
        self.assertTrue(second.is_white("192.168.1.1"))
        self.assertNotIn("12345678", repr(accounts))

    def test_administrator_with_permissions(self) -> None:
        """Who lists permissions for one has these only."""
        accounts = self.read("accounts:\n- {accessKey: abcdefg, secretKey: abcdefg, admin: true, "
                             "topicPerms: [a=PUB]}\n")
        account = accounts.by_key["abcdefg"]
        self.assertEqual((account.may("a", _PUB), account.may("a", _SUB), account.may("b", _PUB)),
                         (True, False, False))

    def test_nothing_listed(self) -> None:
        """An account without permissions has the defaults, which are none; it is not an administrator."""
        accounts = self.read("accounts:\n- {accessKey: abcdefg, secretKey: abcdefg}\n"
                             "- {accessKey: another, secretKey: abcdefg, defaultGroupPerm: SUB}\n")
        for name, may_group in (("abcdefg", False), ("another", True)):
            account = accounts.by_key[name]
            self.assertEqual((account.may("a", _PUB), account.may("a", _SUB), account.may("%RETRY%g", _SUB)),
                             (False, False, may_group), name)

    def test_directory(self) -> None:
        """All files of it, and no others."""
        self.write("accounts: [{accessKey: first-key, secretKey: abcdefg}]", "a.yml")
        (self.directory / "b.yml").write_text("globalWhiteRemoteAddresses: ['10.0.0.9']\n"
                                              "accounts: [{accessKey: second-key, secretKey: abcdefg}]")
        (self.directory / "c.yml.bak").write_text("accounts: [{accessKey: third-key, secretKey: abcdefg}]")
        accounts = read_accounts(str(self.directory))
        self.assertEqual(sorted(accounts.by_key), ["first-key", "second-key"])
        self.assertTrue(accounts.is_white("10.0.0.9"))
        (self.directory / "d.yml").write_text("accounts: [{accessKey: first-key, secretKey: abcdefg}]")
        error = self.assertRaises(ValueError, read_accounts, str(self.directory))
        self.assertIn("d.yml: accessKey 'first-key' is given twice", str(error))

    def test_empty_lists(self) -> None:
        """No account: nobody may do anything."""
        self.assertEqual(dict(self.read("accounts:\n").by_key), {})

    def test_slips(self) -> None:
        """Each is named; none lets anybody in or out in silence."""
        account = "accounts: [{accessKey: abcdefg, secretKey: abcdefg, %s}]"
        for text, words in (
            ("", "the file must have lines of name: value"), ("- a", "the file must have lines"),
            ("acounts: []", "the file has 'acounts': allowed are globalWhiteRemoteAddresses, accounts"),
            ("accounts: {}", "accounts must be a list"), ("accounts: [a]", "an account must have lines"),
            ("accounts: [{secretKey: abcdefg}]", "accessKey must have at least 7 characters"),
            ("accounts: [{accessKey: abcdefg}]", "account 'abcdefg': secretKey must have at least 7"),
            ("accounts: [{accessKey: abcdef, secretKey: abcdefg}]", "accessKey must have at least 7"),
            (account % "admin: yes please", "admin='yes please': true or false"),
            (account % "defaultTopicPerm: PUBLISH", "defaultTopicPerm='PUBLISH': allowed are DENY, PUB, SUB"),
            (account % "defaultGroupPerm: [SUB]", "defaultGroupPerm=an array of 1: allowed are"),
            (account % "topicPerms: [a]", "topicPerms: 'a' is not name=PERM"),
            (account % "topicPerms: ['=PUB']", "topicPerms: '=PUB' is not name=PERM"),
            ("accounts: [{accessKey: true, secretKey: abcdefg}]", "accessKey must have at least 7"),
            ("accounts: [{accessKey: [abcdefg], secretKey: abcdefg}]", "accessKey must have at least 7"),
            (account % "admin: [true]", "admin=an array of 1: true or false"),
            (account % "admin: ~", "admin=None: true or false"),
            (account % "topicPerms: [a=PUB, a=DENY]", "topicPerms: 'a' is given twice"),
            (account % "topicPerms: ['%RETRY%a=PUB'], groupPerms: [a=SUB]", "groupPerms: 'a' is given twice"),
            ("accounts: []\naccounts: []", "line 2: 'accounts' is given twice"),
            (account % "topicPerms: [a=ALL]", "topicPerms, a='ALL': allowed are"),
            (account % "groupPerms: a=PUB", "groupPerms must be a list"),
            (account % "topicPerm: [a=PUB]", "an account has 'topicPerm': allowed are accessKey"),
            (account % "whiteRemoteAddress: somewhere", "address 'somewhere': allowed are *"),
            ("globalWhiteRemoteAddresses: [1]", "address '1': allowed are *"),
            ("accounts: [", "no YAML"), ("a: !!python/object:os.system {}", "line 1: "), ("\0", "no YAML"),
            ("[" * 20000, "line 1: more than 16 lists"),
        ):
            error = self.assertRaises(ValueError, self.read, text)
            self.assertIn(words, str(error))
            self.assertIn("plain_acl.yml: ", str(error))
            self.assertLess(len(str(error)), 1000)

    def test_files(self) -> None:
        """Missing, too large, a directory without one, not text."""
        path = self.write(b"#" * (FILE_BYTES_MAX + 1))
        self.assertIn("more than 1048576 bytes", str(self.assertRaises(ValueError, read_accounts, path)))
        path = self.write(b"accounts: \xff\xfe")
        self.assertIn("no YAML", str(self.assertRaises(ValueError, read_accounts, path)))
        for path, words in (("/nowhere/acl.yml", "No such file"), (str(self.directory), "")):
            error = self.assertRaises(ValueError, read_accounts, path)
            self.assertIn(words, str(error))
        os.makedirs("nothing", exist_ok=True)
        self.assertIn("no file ends in .yml", str(self.assertRaises(ValueError, read_accounts, "nothing")))


class CredentialsTests(FileCase):
    """The keys of a client, as mqadmin has them."""

    def test_sound(self) -> None:
        """mqadmin's own example."""
        found = read_credentials(self.write("accessKey: rocketmq2\nsecretKey: 12345678\n", "tools.yml"))
        self.assertEqual((found.access_key, found.secret_key), ("rocketmq2", "12345678"))

    def test_slips(self) -> None:
        """Missing lines, short keys, no file."""
        for text, words in (("accessKey: rocketmq2", "secretKey must have"), ("", "the file must have lines"),
                            ("accessKey: a\nsecretKey: b", "accessKey must have at least 7 characters"),
                            ("user: x", "the file has 'user': allowed are accessKey, secretKey")):
            error = self.assertRaises(ValueError, read_credentials, self.write(text, "tools.yml"))
            self.assertIn(words, str(error))
        self.assertIn("No such file", str(self.assertRaises(ValueError, read_credentials, "/nowhere/t.yml")))
