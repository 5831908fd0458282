# -*- test-case-name: tests.browser.test_dashboard -*-
"""The dashboard of a real member in Chromium, while its group loses its leader."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

from axe_selenium_python import Axe
from selenium import webdriver
from selenium.webdriver.common.by import By
from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.serving.tokens import new_token
from tests.processes.children import free_ports, wait_until
from tests.processes.members import Group, Member
from tests.processes.test_operator import Dashboard

#: Where Debian has the driver; C{DLEDGER_CHROMEDRIVER} names another.
DRIVER = os.environ.get("DLEDGER_CHROMEDRIVER", "/usr/bin/chromedriver")
#: A folder for pictures of the page; none are taken without it.
PICTURES = os.environ.get("DLEDGER_PICTURES", "")
SECONDS = 60.0


def chromium() -> webdriver.Chrome:
    """A browser without a window."""
    options = webdriver.ChromeOptions()
    # (In a container there is no user to keep apart from the page's processes.)
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--window-size=1200,1500"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


class BrowserCase(SynchronousTestCase):
    """
    A page in a browser.

    @ivar browser: quits with the test.
    """

    browser: webdriver.Chrome

    def text(self, name: str) -> str:
        """The text of the element with this id, as a person sees it: none while it is hidden."""
        text: str = self.browser.execute_script(
            "const one = document.getElementById(arguments[0]); return one ? one.innerText : '';", name
        )
        return text

    def rows(self, name: str) -> list[list[str]]:
        """The cells of the table with this name."""
        rows: list[list[str]] = self.browser.execute_script(
            "return [...document.querySelectorAll(`section[aria-labelledby=${arguments[0]}-title] tbody tr`)]"
            ".map((row) => [...row.cells].map((cell) => cell.innerText));", name,
        )
        return rows

    def until(self, condition: Any, what: str) -> None:
        """Wait for it; the browser looks every two seconds."""
        wait_until(condition, seconds=SECONDS, what=what, every=0.2)

    def picture(self, name: str) -> None:
        """For the documents, on request."""
        if PICTURES:
            self.browser.execute_script("scrollTo(0, 0)")
            self.browser.save_screenshot(f"{PICTURES}/{name}.png")

    def violations(self) -> list[str]:
        """What axe says of the page as it is."""
        axe = Axe(self.browser)
        axe.inject()
        found = axe.run()["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found]

    def errors(self) -> list[str]:
        """The complaints of the page's scripts and policy."""
        return [line["message"] for line in self.browser.get_log("browser") if line["level"] == "SEVERE"]

    def is_within(self) -> bool:
        """Whether nothing runs out of the window."""
        fits: bool = self.browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        return fits


class DashboardTests(BrowserCase):
    """Three members and a writer; the page is that of a follower."""

    def setUp(self) -> None:
        """Start them, and open the page."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.held = Path(held.name)
        self.group = Group(self.held)
        self.ports = dict(zip(self.group.peers, free_ports(3), strict=True))
        for peer_id, port in self.ports.items():
            self.group.members[peer_id] = Member(
                peer_id, self.group.peers, Path(held.name) / peer_id,
                extra=("--admin", f"tcp:{port}:interface=127.0.0.1"),
            )
        self.addCleanup(self.group.kill)
        self.group.start()
        self.leader_id = self.group.leader()
        self.shown_id = next(one for one in self.group.peers if one != self.leader_id)
        self.browser = chromium()
        self.addCleanup(self.browser.quit)
        self.browser.get(f"http://127.0.0.1:{self.ports[self.shown_id]}/")

    def start_writer(self) -> None:
        """Append until the test ends, whatever happens to the leader."""
        is_over = threading.Event()

        def write() -> None:
            with dledger.connect(self.group.peers_text) as log:
                while not is_over.wait(0.005):
                    try:
                        log.append(b"x" * 100)
                    except dledger.AppendError:
                        continue

        writer = threading.Thread(target=write, daemon=True)
        writer.start()

        def stop() -> None:
            is_over.set()
            writer.join(timeout=120)

        self.addCleanup(stop)

    def row(self, member_id: str) -> list[str]:
        """The cells of a member's row."""
        return next((row for row in self.rows("members") if row[0] == member_id), [])

    def test_failover(self) -> None:
        """The page shows the group, the loss of its leader, the next one, and in the end that it is old."""
        self.start_writer()
        self.until(lambda: self.text("state") == "All members serve.", "all serve")
        self.until(lambda: self.row(self.leader_id)[1:2] == ["leader"], "the leader is shown")
        self.until(lambda: "Entries" in self.text("plots"), "curves")
        self.until(lambda: int(self.row(self.leader_id)[4].replace(",", "")) > 5, "entries")
        self.assertEqual(self.violations(), [])
        self.check_scales()
        self.picture("member")
        self.group.members[self.leader_id].kill()
        self.until(lambda: f"{self.leader_id}: " in self.text("state"), "the loss is shown")
        self.assertIn("PROBLEM", self.browser.title)
        others = [one for one in self.group.peers if one != self.leader_id]
        self.until(lambda: "leader" in [self.row(one)[1] for one in others], "the next leader")
        self.until(lambda: self.text("elections-title") != "" and "leader_id=" in self.text("live"), "events")
        self.picture("member-failover")
        self.small_and_dark()
        self.assertEqual(self.text("stale"), "")
        self.assertEqual(self.errors(), [])
        self.group.members[self.shown_id].kill()
        self.until(lambda: self.text("stale").startswith("No answer for "), "the page says that it is old")

    def small_and_dark(self) -> None:
        """On a phone at night: nothing runs out of the window, and everything can be read."""
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        self.browser.set_window_size(420, 900)
        self.assertTrue(self.is_within())
        self.assertEqual(self.violations(), [])
        self.check_scales()
        self.picture("phone")

    def check_scales(self) -> None:
        """Each curve shows its top with the unit, zero, and its span; its label says the same."""
        charts = self.browser.execute_script(
            "return [...document.querySelectorAll('figure')].map((one) => ({"
            " texts: [...one.querySelectorAll('figcaption, span')].map((part) => part.innerText),"
            " label: one.querySelector('svg').getAttribute('aria-label'),"
            " points: [...one.querySelectorAll('polyline')].map((part) => part.getAttribute('points'))"
            " .join(' '),"
            " fits: one.scrollWidth <= one.clientWidth && one.querySelector('svg').clientWidth > 80 }))"
        )
        self.assertGreater(len(charts), 2)
        for one in charts:
            title, top, zero, ago, now = one["texts"]
            self.assertRegex(top, r"^[1-9][0-9,.]* \w")
            self.assertEqual((zero, now, one["fits"]), ("0", "now", True), one)
            self.assertRegex(ago, r"^[1-9][0-9]* (s|min) ago$")
            said = rf"now .+; at most .+ in the last {ago[:-4]}\. The scale is from 0 to {re.escape(top)}\.$"
            self.assertRegex(one["label"], said)
            self.assertTrue(one["label"].startswith(title.split("\n")[0]), one)
            heights = [float(pair.split(",")[1]) for pair in one["points"].split()]
            self.assertTrue(all(1 <= height <= 39 for height in heights), one)

    def test_group(self) -> None:
        """The page of the whole group: readers, disks, and what to do about a member that is gone."""
        with dledger.connect(self.group.peers_text) as log, log.reader("<b>orders") as reader:
            log.append(b"x")
            next(iter(reader))
            reader.commit()
        dashboard = Dashboard(self.group.peers_text, self.held / "dashboard.log")
        self.addCleanup(dashboard.kill)
        dashboard.start()
        self.until(dashboard.url, "the address")
        self.browser.get(dashboard.url())
        self.until(lambda: self.rows("readers") and "All members serve." in self.text("state"), "it is well")
        self.assertEqual(self.rows("readers")[0][0], "<b>orders")
        self.assertEqual([row[0] for row in self.rows("disks")], [*self.group.peers])
        self.until(lambda: "Lag of the last reader" in self.text("plots"), "curves")
        self.check_scales()
        self.assertEqual(self.violations(), [])
        self.start_writer()
        self.group.members[self.shown_id].kill()
        self.until(lambda: f"{self.shown_id}: it does not answer" in self.text("state"), "the loss is shown")
        self.assertEqual(self.rows("found")[0][:2], ["wrong", self.shown_id])
        self.until(lambda: re.search("[2-9][0-9] s ago", self.text("plots")), "curves with a span")
        self.picture("dashboard")
        self.small_and_dark()
        self.assertEqual(self.errors(), [])

    def test_without_script(self) -> None:
        """The tables are in the page itself."""
        self.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        self.browser.refresh()
        words = self.browser.find_element(By.TAG_NAME, "main").text
        for one in self.group.peers:
            self.assertIn(one, words)
        self.assertIn("Last events of this member", words)


class BrowseTests(BrowserCase):
    """The entries of a member whose pages know a token."""

    def setUp(self) -> None:
        """Start it, with 50 entries that have times and headers."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        (port,), self.browser = free_ports(1), chromium()
        self.addCleanup(self.browser.quit)
        self.token, line = new_token("ops")
        tokens = Path(held.name) / "tokens"
        tokens.write_text(line)
        group = Group(Path(held.name), size=1)
        group.members["n0"] = Member(
            "n0", group.peers, Path(held.name) / "n0", options={"admin_token_file": tokens},
            extra=("--admin", f"tcp:{port}:interface=127.0.0.1"),
        )
        self.addCleanup(group.kill)
        group.start()
        group.leader()
        with dledger.connect(group.peers_text, envelope=True) as log:
            for number in range(50):
                log.append(f"order {number} <i>".encode(), headers={"kind": b"order"})
        self.url = f"http://127.0.0.1:{port}"

    def bodies(self) -> list[str]:
        """The last column."""
        return [row[-1] for row in self.rows("entries")]

    def press(self, words: str) -> None:
        """Follow the link with these words."""
        self.browser.find_element(By.LINK_TEXT, words).click()

    def test_actions(self) -> None:
        """What an action would do is shown first, to the holder of a token; then it is done, once."""
        self.browser.get(f"{self.url}/")
        self.press("actions")
        self.assertEqual(self.violations(), [])
        self.browser.find_element(By.CSS_SELECTOR, "section[aria-labelledby=flush-title] button").click()
        self.until(lambda: "holders of a token" in self.text("stale"), "the page asks for a token")
        self.browser.find_element(By.ID, "token").send_keys(self.token)
        self.browser.find_element(By.CSS_SELECTOR, "#ask button").click()
        self.until(lambda: "Nothing has been done yet" in self.text("state"), "what it would do")
        self.assertIn("n0 puts on stable storage", self.text("live"))
        self.assertEqual(self.violations(), [])
        self.picture("actions")
        self.browser.find_element(By.CSS_SELECTOR, "#do button").click()
        self.until(lambda: self.text("state").startswith("Done: "), "it is done")
        self.assertEqual(self.browser.find_elements(By.ID, "do"), [])
        self.browser.find_element(By.ID, "skip-index").send_keys("7")
        self.browser.find_element(By.CSS_SELECTOR, "section[aria-labelledby=skip-title] button").click()
        self.until(lambda: "would be refused now" in self.text("state"), "why it would not be done")
        self.assertEqual(self.browser.find_elements(By.ID, "do"), [])
        self.browser.find_element(By.CSS_SELECTOR, "section[aria-labelledby=snapshot-title] button").click()
        self.until(lambda: "runs no state machine" in self.text("state"), "there is nothing to take")
        self.assertEqual([one for one in self.errors() if "401" not in one], [])

    def test_browse(self) -> None:
        """The token opens the entries; links and the form turn pages, and so does the browser's way back."""
        self.browser.get(f"{self.url}/")
        self.press("browse")
        field = self.browser.find_element(By.ID, "entries-from")
        field.send_keys("10")
        self.browser.find_element(By.CSS_SELECTOR, "form.search button").click()
        self.until(lambda: "holders of a token" in self.text("stale"), "the page asks for a token")
        self.assertEqual(self.bodies(), [])
        self.assertEqual([one for one in self.errors() if "401" not in one], [])
        self.browser.find_element(By.ID, "token").send_keys(self.token)
        self.browser.find_element(By.CSS_SELECTOR, "#ask button").click()
        self.until(lambda: len(self.bodies()) == 20, "entries")
        first = [row[0] for row in self.rows("entries")]
        self.assertEqual(first, [str(index) for index in range(10, 30)])
        self.assertIn("kind: order", self.rows("entries")[0][5])
        self.assertEqual(self.violations(), [])
        self.picture("browse")
        self.press("later")
        self.until(lambda: self.rows("entries")[0][0] == "30", "the next page")
        self.browser.back()
        self.until(lambda: self.rows("entries")[0][0] == "10", "the page before")
        self.press("last")
        self.until(lambda: self.bodies()[-1:] == ["order 49 <i>"], "the last page")
        self.browser.set_window_size(420, 900)
        self.assertTrue(self.is_within())
        self.assertEqual(self.violations(), [])
        self.assertEqual(self.errors(), [])
