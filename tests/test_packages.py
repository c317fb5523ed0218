"""The packages as a package index gets them: licence, addresses, and pages that render there."""

import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))


@pytest.mark.slow
def test_every_package_is_built_with_licence_addresses_and_a_page_that_renders(tmp_path):
    from readme_renderer.markdown import render

    repository = "https://example.org/owner/name"
    command = [sys.executable, str(ROOT / ".ci" / "build_packages.py"), "--out", str(tmp_path)]
    subprocess.run([*command, "--repository", repository], check=True)
    wheels = sorted(tmp_path.glob("*.whl"))
    assert len(wheels) == len(list(tmp_path.glob("*.tar.gz"))) == len(PLUGINS) + 1
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
            (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            page = message_from_bytes(archive.read(metadata))
        assert f"Repository, {repository}" in page.get_all("Project-URL")
        assert "Operating System :: POSIX :: Linux" in page.get_all("Classifier")
        html = render(page.get_payload(decode=True).decode())
        assert html
        assert re.findall(r'(?:href|src)="(?!https?://|#|mailto:)([^"]*)"', html) == []
        for path in re.findall(rf'"{repository}/(?:blob|raw)/main/([^"#]*)', html):
            assert (ROOT / path).exists(), f"{wheel.name} links to {path}"
