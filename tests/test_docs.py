"""The docs cannot rot: components have their heading, links lead somewhere, commands exist."""

import re
from pathlib import Path

import pytest

from hf_rlhf.cli import BUILT_IN
from hf_rlhf.config import RunFile
from hf_rlhf.config.registry import KINDS, offered

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
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


def test_the_readme_names_the_two_commands_of_the_makefile():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for target in ("demo", "test", "test-slow"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}:", makefile, re.M)


@pytest.mark.parametrize("page", ["README.md", "docs/run-files.md"])
def test_components_named_in_run_file_examples_exist(page):
    text = (ROOT / page).read_text()
    examples = [
        block for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if "plugin:" in block
    ]
    assert examples
    known = {point.name for kind in KINDS for point in offered(kind)}
    for example in examples:
        file = RunFile.parse(example, page)
        sections = [file.values["dataset"], *file.values.get("judges", {}).values()]
        parts = [*file.values.get("rewards", []), *file.values.get("gates", [])]
        assert {item["name"] for item in [*sections, *parts]} <= known
