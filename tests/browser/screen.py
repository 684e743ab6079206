"""A window of the browser: opens views, and notes everything that goes wrong in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage

NOTE_VIOLATIONS: Final = """
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (event) =>
    window.violations.push(event.violatedDirective + " " + event.blockedURI + " " + event.sample));
"""
# the contrast of each visible text to what is behind it
CONTRAST: Final = """
() => {
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (at) => {
    for (; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const it of document.querySelectorAll("body *")) {
    const own = [...it.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !it.offsetParent || it.tagName === "OPTION") continue;
    const [a, b] = [light(parse(getComputedStyle(it).color)), light(behind(it))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = `${it.tagName}.${it.className} ${it.textContent.slice(0, 30)}`;
    if (ratio < 4.5) poor.push(`${name} ${ratio.toFixed(2)}`);
  }
  return poor;
}
"""
_NOT_OURS: Final = "net::ERR_NETWORK_CHANGED"
"""Chromium drops all connections when an interface of the machine comes or goes."""


class Screen:
    """One window."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        given = {"viewport": {"width": 1180, "height": 720}, "color_scheme": "light", **options}
        self.context = browser.new_context(**given)
        self.page = self.context.new_page()
        self.page.set_default_timeout(90_000)
        self.page.add_init_script(NOTE_VIOLATIONS)
        self.wrong: list[str] = []
        self.expected: tuple[str, ...] = ()
        self.hosts: set[str] = set()
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and _NOT_OURS not in message.text:
            self.wrong.append(message.text)

    def open(self, url: str, view: str = "/nodes", *, is_live: bool = True) -> None:
        """Show a view, from a fresh load of the page."""
        from playwright.sync_api import Error

        for _ in range(5):
            try:
                self.page.goto("about:blank")
                self.page.goto(f"{url}#{view}")
                self.page.wait_for_function(
                    "(word) => document.querySelector('#live').textContent.includes(word)"
                    " && document.querySelector('#summary').childElementCount > 0",
                    arg="live" if is_live else "",
                    timeout=30_000,
                )
            except Error as e:  # a connection was dropped while the page was loaded
                print(e)
                continue
            return
        raise AssertionError(f"{url} does not come up: {self.wrong}")

    def text(self, selector: str = "main") -> str:
        """What a person reads there."""
        return str(self.page.locator(selector).inner_text())

    def wait_for(self, words: str, selector: str = "body") -> None:
        """Until these words are shown."""
        self.page.wait_for_function(
            "([selector, words]) => document.querySelector(selector)?.innerText.includes(words)",
            arg=[selector, words],
        )

    def elements(self) -> int:
        """How many elements the document has."""
        return int(self.page.evaluate("document.querySelectorAll('*').length"))

    def poor_contrasts(self) -> list[str]:
        """Texts whose contrast is too low to read."""
        found: list[str] = self.page.evaluate(CONTRAST)
        return found

    def picture(self, path: Path) -> None:
        """What is seen, as a small file."""
        self.page.wait_for_timeout(400)  # bars move to their length
        self.page.screenshot(path=path)

    def check(self) -> None:
        """Nothing went wrong, nothing was loaded from elsewhere."""
        wrong = [it for it in self.wrong if not any(words in it for words in self.expected)]
        assert wrong == []
        assert self.page.evaluate("window.violations ?? []") == []
        assert {host.partition(":")[0] for host in self.hosts} <= {"localhost", "127.0.0.1"}

    def close(self) -> None:
        self.context.close()
