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
    expect(one.page.locator(".errors-wrapper")).to_have_count(0)


def test_swagger_ui_is_given_the_schema_in_the_words_of_openapi_3_0(visit: Callable[..., Visit]) -> None:
    one = visit()
    given = [
        {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
        {"anyOf": [{"$ref": "#/components/schemas/ClipSpec"}, {"type": "null"}], "default": None},
        {"const": "downpour", "default": "downpour", "type": "string"},
        {"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}], "minItems": 2},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    ]
    one.page.goto(f"{one.url}/docs")
    expect(one.page.get_by_text("OAS 3.0")).to_be_visible()
    assert one.module("docs.js", "m.downgraded(a[0])", given) == [
        {"anyOf": [{"type": "integer"}, {"type": "string"}], "nullable": True},
        {"allOf": [{"$ref": "#/components/schemas/ClipSpec"}], "nullable": True, "default": None},
        {"enum": ["downpour"], "default": "downpour", "type": "string"},
        {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "string"}]}, "minItems": 2},
        {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1},
    ]
