"""Build the documentation as a site, and check its links: ``python docs/site.py FOLDER``.

It needs what ``docs/requirements.txt`` lists, and nothing of kiln. The Markdown is taken as it is.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
CONFIG = """\
[project]
site_name = "kiln"
site_description = "A build system for conda feedstocks"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = {nav}

[project.theme]
font = false
features = ["navigation.tabs", "navigation.top", "navigation.footer", "content.code.copy", "search.highlight"]
palette = [
  {{ media = "(prefers-color-scheme: light)", scheme = "default", toggle = {{ icon = "lucide/sun", name = "Dark" }} }},
  {{ media = "(prefers-color-scheme: dark)", scheme = "slate", toggle = {{ icon = "lucide/moon", name = "Light" }} }},
]

[project.markdown_extensions.tables]
[project.markdown_extensions.md_in_html]
[project.markdown_extensions.pymdownx.superfences]
[project.markdown_extensions.pymdownx.highlight]
[project.markdown_extensions.toc]
permalink = true
slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}
"""  # anchors as GitHub makes them, since the Markdown is read there too


class Links(HTMLParser):
    """The anchors and the links of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an element's anchor and its links."""
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in {"href", "src", "srcset"} and value and tag != "base":
                self.links.append(value)


def copy_pages(folder: Path) -> None:
    """Copy the Markdown, and each file of the project that it leads to."""
    for name in PAGES:
        shutil.copy2(ROOT / name, folder / name)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("*.py", "requirements.*"))
    for page in folder.rglob("*.md"):
        source = ROOT / page.relative_to(folder)
        for link in re.findall(r"\]\(([^)#:]+)[^)]*\)", page.read_text(encoding="utf-8")):
            target = (source.parent / link).resolve()
            copy = folder / target.relative_to(ROOT)
            if target.is_file() and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(target, copy)


def navigation() -> str:
    """Return the navigation: the sections of the documentation's index, with their pages in its order."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    tabs = ['{ Home = "README.md" }']
    for section in index.split("\n## ")[1:]:
        title = section.partition("\n")[0].partition(":")[0]
        pages = dict.fromkeys(re.findall(r"\]\((?!\.\.)([^)#]+\.md)\)", section))
        tabs.append(f'{{ "{title}" = [{", ".join(f"{page!r}" for page in (f"docs/{name}" for name in pages))}] }}')
    return f"[{', '.join(tabs)}, {{ More = ['docs/README.md', 'CHANGELOG.md', 'CONTRIBUTING.md'] }}]"


def faults(site: Path) -> list[str]:
    """Return the links within a site that lead nowhere, each with its page."""
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    found = []
    for page, parsed in pages.items():
        for link in parsed.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target)
            if not target.exists() or (parts.fragment and known and unquote(parts.fragment) not in known.ids):
                found.append(f"{page.relative_to(site)}: {link}")
    return sorted(set(found))


def main(words: list[str]) -> int:
    """Build the site into a folder, which is replaced, and return 1 if a link leads nowhere."""
    out = Path(words[0]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch).resolve()
        (work / "pages").mkdir()
        copy_pages(work / "pages")
        (work / "zensical.toml").write_text(CONFIG.format(nav=navigation()), encoding="utf-8")
        subprocess.run((sys.executable, "-m", "zensical", "build", "--strict"), cwd=work, check=True)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(work / "site", out)
    dead = faults(out)
    count = sum(1 for _ in out.rglob("*.html"))
    sys.stderr.write("".join(f"{line}\n" for line in dead) or f"{count} pages, no dead link\n")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
