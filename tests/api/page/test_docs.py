"""The API's documentation in a browser: Swagger UI from our own files, under our own policy."""

from collections.abc import Callable

from playwright.sync_api import expect

from tests.api.page.conftest import Visit


def test_swagger_ui_shows_the_routes_without_asking_anybody_else(visit: Callable[..., Visit]) -> None:
    one = visit()
    one.page.goto(f"{one.url}/docs")
    expect(one.page.get_by_role("heading", name="Millrace")).to_be_visible()
    one.page.locator("#operations-jobs-jobs-submit").click()
    expect(one.page.get_by_role("button", name="Try it out")).to_be_visible()
