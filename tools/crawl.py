"""Crawl the built site: links, lost pages, names of the API without a link, pages wider than a phone.

    python -m sphinx -W -b html docs SITE
    python tools/crawl.py SITE                        # links and names
    python tools/crawl.py SITE --browser chromium     # also every page at 400 px

The exit status is 1 if it finds an error. The browser only measures: any Chromium will do.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urlsplit

PHONE = 400
"""Pixels of a narrow window."""
GENERATED = (
    "_modules",
    "genindex",
    "search",
    "py-modindex",
    "tutorials/sg_execution_times",
    "sg_execution_times",
)
"""Pages that need no link to them, and whose code is no text."""
_MODULE = r"xpgrad(?:_torch|_jax|_keras|_onnx)?(?:\.(?:testing|cells|functional))?"
NAME = re.compile(rf"({_MODULE})\.(\w+)(\(.*\))?", re.S)


class Page(NamedTuple):
    """What one page holds."""

    links: tuple[str, ...]
    anchors: frozenset[str]
    bare: tuple[str, ...]
    """Inline code in the text without a link."""


class _Reader(HTMLParser):
    """Reads links, anchors, and the article's inline code outside of links, titles and blocks of code."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.bare: list[str] = []
        self._open: list[str] = []
        self._code: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.update(given[name] or "" for name in ("id", "name") if name in given)
        for name in ("href", "src"):
            if given.get(name):
                self.links.append(str(given[name]))
        if tag in ("article", "a", "pre", "h1", "h2", "h3", "h4", "dt"):
            self._open.append(tag)
        if tag == "code" and self._open == ["article"]:
            self._code = []

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            del self._open[len(self._open) - 1 - self._open[::-1].index(tag) :]
        if tag == "code" and self._code is not None:
            self.bare.append("".join(self._code))
            self._code = None

    def handle_data(self, data: str) -> None:
        if self._code is not None:
            self._code.append(data)


def read(site: Path) -> dict[str, Page]:
    """Every page of the site, by its path."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        if name.startswith("_static"):
            continue
        reader = _Reader()
        reader.feed(path.read_text(encoding="utf-8"))
        pages[name] = Page(tuple(reader.links), frozenset(reader.anchors), tuple(reader.bare))
    return pages


def _targets(name: str, page: Page) -> Iterator[tuple[str, str, str]]:
    """The links of a page to files of the site: the link as written, the file, the anchor."""
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc or link.startswith("data:"):
            continue
        path, anchor = urldefrag(link)
        path = unquote(path.partition("?")[0])
        target = (Path(name).parent / path).as_posix() if path else name
        steps: list[str] = []
        for step in target.split("/"):
            if step == ".." and steps:
                steps.pop()
            elif step not in ("", "."):
                steps.append(step)
        yield link, "/".join(steps), unquote(anchor)


def dead_links(site: Path, pages: dict[str, Page]) -> Iterator[str]:
    """Links of the site to files or anchors that it does not have."""
    for name, page in pages.items():
        for link, target, anchor in _targets(name, page):
            if not (site / target).is_file():
                yield f"{name}: {link} is no file of the site"
            elif name.startswith("_modules"):
                continue  # Sphinx names the anchors there by another module than the page's
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{name}: {link} is no anchor of {target}"


def lost_pages(pages: dict[str, Page], start: str = "index.html") -> Iterator[str]:
    """Pages that no chain of links reaches from the first page."""
    seen, waiting = {start}, [start]
    while waiting:
        name = waiting.pop()
        for _, target, _ in _targets(name, pages[name]):
            if target in pages and target not in seen:
                seen.add(target)
                waiting.append(target)
    for name in pages:
        if name not in seen and not name.startswith(GENERATED):
            yield f"{name}: no way leads here"


def names_without_link(pages: dict[str, Page]) -> Iterator[str]:
    """Public names, with their module, that a page has as code but not as a link."""
    for name, page in pages.items():
        if name.startswith((*GENERATED, "reference/generated")):
            continue
        for code in page.bare:
            found = NAME.fullmatch(code.strip())
            if found and f"reference/generated/{found[1]}.{found[2]}.html" in pages:
                yield f"{name}: {code} has no link"


def too_wide(site: Path, pages: Sequence[str], browser: str) -> Iterator[str]:
    """Pages that scroll sideways on a phone, and their tables that leave the window."""
    for start in range(0, len(pages), _TOGETHER):
        part = pages[start : start + _TOGETHER]
        for name, (width, rights) in zip(part, _measured(site, part, browser), strict=True):
            if width > PHONE:
                yield f"{name}: {width} px wide in a window of {PHONE}"
            yield from (f"{name}: a table ends at {right} px in a window of {PHONE}" for right in rights)


def _measured(site: Path, pages: Sequence[str], browser: str) -> list[tuple[int, list[int]]]:
    """The width of each page, and where tables end that leave the window."""
    addresses = [(site / name).resolve().as_uri() for name in pages]
    frames = "".join(f'<iframe width="{PHONE}" height="900" src="{url}"></iframe>' for url in addresses)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "measure.html"
        page.write_text(f"<body>{frames}{_MEASURE.replace('PHONE', str(PHONE))}</body>", encoding="utf-8")
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
            f"--user-data-dir={folder}/profile", "--dump-dom", page.as_uri(),
        ]  # fmt: skip
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"<pre>(\[.*\])</pre>", text, re.S)
    if found is None:
        raise RuntimeError(f"{browser} measured nothing; it printed {text[-300:]!r}")
    return [(width, rights) for width, rights in json.loads(html.unescape(found[1]))]


_TOGETHER = 20
"""Pages that are open at once."""
_MEASURE = """<style>iframe { border: 0; }</style><script>
window.onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument;
    const rights = [...page.querySelectorAll("article table")]
      .map(table => Math.round(table.getBoundingClientRect().right)).filter(right => right > PHONE);
    return [page.documentElement.scrollWidth, rights];
  });
  const pre = document.createElement("pre");
  pre.textContent = JSON.stringify(found);
  document.body.append(pre);
};
</script>"""


def main() -> int:
    """Crawl, and print what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path, help="the folder of the built site")
    parser.add_argument("--browser", help="a Chromium, to measure every page at 400 px")
    args = parser.parse_args()
    pages = read(args.site)
    if "index.html" not in pages:
        parser.error(f"site is {args.site}, expected a folder with index.html")
    found = [*dead_links(args.site, pages), *lost_pages(pages), *names_without_link(pages)]
    if args.browser:
        found += too_wide(
            args.site, [name for name in pages if not name.startswith("_modules")], args.browser
        )
    print("\n".join(found) or f"{len(pages)} pages: nothing found.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
