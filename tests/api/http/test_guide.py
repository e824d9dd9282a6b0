"""The guide at /guide and the API's documentation at /docs: our own files, and nothing from elsewhere."""

import base64
import hashlib
import re
from pathlib import Path

from tests.api.conftest import Service

INLINE = "window.theme = 'set before anything is drawn'"


def test_without_a_guide_the_answer_says_how_to_build_one(service: Service) -> None:
    for path in ("/guide/", "/guide/index.html"):
        problem = service.http.get(path)
        assert problem.status_code == 404
        assert "make docs" in problem.json()["remedy"]


def test_a_built_guide_is_served_with_the_scripts_that_it_has(service: Service, tmp_path: Path) -> None:
    (tmp_path / "site" / "assets").mkdir(parents=True)
    (tmp_path / "site" / "index.html").write_text(f'<script>{INLINE}</script><script src="assets/a.js"></script>')
    (tmp_path / "site" / "assets" / "a.js").write_text("1")
    page = service.http.get("/guide", follow_redirects=True)
    assert (page.status_code, page.url.path) == (200, "/guide/")
    policy = page.headers["content-security-policy"]
    digest = base64.b64encode(hashlib.sha256(INLINE.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in policy
    assert "http" not in policy
    script = service.http.get("/guide/assets/a.js")
    assert (script.status_code, script.headers["x-content-type-options"]) == (200, "nosniff")
    assert service.http.get("/guide/nothing.html").status_code == 404
    assert service.http.get("/guide/%2e%2e/jobs.db").status_code == 404
    (tmp_path / "site" / "index.html").write_text("<script>2</script>")
    assert digest not in service.http.get("/guide/").headers["content-security-policy"]


def test_the_documentation_of_the_api_asks_nobody_else(service: Service) -> None:
    page = service.http.get("/docs")
    assert page.status_code == 200
    assert "script-src 'self';" in page.headers["content-security-policy"]
    assert not re.search(r"https?://", page.text)
    assert not re.search(r"<script(?![^>]*\bsrc=)", page.text)
    for path in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert service.http.get(f"/{path}").status_code == 200, path
    assert service.http.get("/docs/redoc.standalone.js").status_code == 404
