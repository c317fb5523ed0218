"""The docs cannot rot: components have their heading, links lead somewhere, commands exist."""

import re
import tomllib
from pathlib import Path

import pytest

from hf_rlhf.cli import BUILT_IN
from hf_rlhf.config.registry import KINDS, offered, package

ROOT = Path(__file__).parents[1]
# Without the pages that `make docs` writes: they name every component.
SITE = sorted(page for page in ROOT.glob("docs/**/*.md") if page.parent.name != "settings")
PAGES = [*sorted(ROOT.glob("*.md")), *SITE]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize(
    "name",
    sorted({point.name for kind in KINDS for point in offered(kind)}),
)
def test_each_component_has_a_place_in_the_docs(name):
    places = re.findall(r"^#+ .*$|^\| [^|]*", TEXT, re.M)
    assert any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", place) for place in places)


@pytest.mark.parametrize("verb", sorted(BUILT_IN))
def test_each_verb_is_in_the_docs(verb):
    assert f"hf-rlhf {verb}" in TEXT


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


NAMED_FILE = re.compile(
    r"(?<![\w/.-])((?:benchmarks|examples|experiments|hf_rlhf|launch_configs|model_cards|plugins|tests|tools)"
    r"/[\w./*-]+\.(?:py|md|yaml|jinja|png|json))"
)
HISTORY = ("CHANGELOG.md", "decisions")


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not {page.name, page.parent.name} & set(HISTORY)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_files_named_in_the_docs_exist(page):
    text = page.read_text(encoding="utf-8")
    assert not [name for name in NAMED_FILE.findall(text) if not list(ROOT.glob(name))]


def test_no_page_of_the_site_is_longer_than_200_lines():
    lines = {page: page.read_text(encoding="utf-8").count("\n") for page in SITE}
    assert [str(page) for page, count in lines.items() if count > 200] == []


def prose(page: Path) -> str:
    """Return a page without its code and the targets of its links."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.sub(r"\]\([^)]*\)", "]", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_have_at_most_120_characters_and_sentences_40_words(page):
    lines = prose(page).splitlines()
    assert [line for line in lines if len(line) > 120 and not line.lstrip().startswith("|")] == []
    if page.parent.name != "decisions":  # records stay as they were written
        parts = re.split(r"\n\s*\n|\n(?=\s*[-*] |\s*\d+\. |#)|\|", prose(page))
        sentences = (each for part in parts for each in re.split(r"(?<=[.!?])[\s*)”]+", part))
        assert [each for each in sentences if len(each.split()) > 40] == []


def test_every_package_of_the_core_has_an_api_page():
    packages = {stub.parent.name for stub in ROOT.glob("hf_rlhf/*/__init__.pyi")}
    pages = {page.stem for page in ROOT.glob("docs/reference/api/*.md")}
    assert packages
    assert packages <= pages


def test_every_package_with_components_of_a_run_has_a_page_of_settings():
    # `make docs` writes the pages, and its strict build refuses one that is in no navigation.
    site = (ROOT / "mkdocs.yml").read_text()
    manifests = [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]
    here = {tomllib.loads(path.read_text())["project"]["name"] for path in manifests}
    kinds = ("datasets", "rewards", "judges")
    packages = here & {package(point)[0] for kind in kinds for point in offered(kind)}
    assert packages
    assert [name for name in packages if f"reference/settings/{name}.md" not in site] == []
