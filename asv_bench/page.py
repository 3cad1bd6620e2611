"""Puts generated text between the marks of a page."""

from pathlib import Path


def write_between(page: Path, name: str, text: str) -> None:
    """Replace what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->``."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{page} has no marks {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
