"""Projects on the page: how they are made, a filter, a choice in the form, and what each uses; where there is only one,
no more than how another is made."""

import re
from collections.abc import Callable

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Route, expect

from tests.api.conftest import Service
from tests.api.page.conftest import Visit, visitors
from tests.api.page.test_everywhere import WCAG_AA


def test_with_the_default_project_alone_there_is_nothing_of_projects(
    service: Service, visit: Callable[..., Visit]
) -> None:
    job = service.client.submit({"name": "first", "workers": 1})
    one = visit()
    page = one.go("jobs")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    expect(page.get_by_label("Project", exact=True)).to_be_hidden()
    page = one.go("cluster")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    expect(page.get_by_role("heading", name="Projects")).to_be_hidden()
    expect(page.get_by_role("button", name="New project")).to_be_visible()
    expect(one.go(f"jobs/{job.id}").get_by_text("Project", exact=True)).to_have_count(0)


def test_projects_are_filtered_chosen_and_shown(service: Service, visit: Callable[..., Visit]) -> None:
    service.client.create_project(
        "vision", members=["ann", "bob"], admins=["eve"], quota={"cpus": 2, "disk_bytes": 10**10}
    )
    ours = service.client.submit({"name": "ours", "workers": 2, "project": "vision"})
    service.started(ours.id)
    service.client.submit({"name": "waits", "workers": 1, "project": "vision"})
    service.client.submit({"name": "other", "workers": 1})
    one = visit()
    page = one.go("jobs")
    expect(page.get_by_role("link", name="other")).to_be_visible()
    expect(page.get_by_text("project vision", exact=True)).to_have_count(2)
    page.get_by_label("Project", exact=True).select_option("vision")
    expect(page.get_by_role("link", name="other")).to_have_count(0)
    assert page.url.endswith("#/jobs?project=vision")
    expect(page.get_by_text("project vision has given out 2 of its 2 CPUs, and the job needs 1")).to_be_visible()
    assert Axe().run(page, options=WCAG_AA).violations_count == 0

    page = one.go("cluster")
    row = page.get_by_role("region", name="Projects").get_by_role("row").filter(has_text="vision")
    expect(row).to_contain_text("2 of 2")
    expect(row).to_contain_text("0 of 10")
    expect(row).to_contain_text("ann, bobeve")
    row.get_by_role("button", name="Delete the project vision").click()
    box = page.get_by_role("dialog")
    box.get_by_role("button", name="Delete the project").click()
    expect(box.get_by_role("alert")).to_contain_text("of project vision these have not ended")
    box.get_by_role("button", name="Close").click()
    expect(row).to_be_visible()
    assert Axe().run(page, options=WCAG_AA).violations_count == 0

    page = one.go("sweeps?project=vision")
    expect(page.get_by_label("Project", exact=True)).to_have_value("vision")
    expect(page.get_by_text("No sweeps match these filters.")).to_be_visible()
    assert any("v1/sweeps?" in url and "project=vision" in url for url in one.asked)

    page = one.go("new")
    spec = page.get_by_label("Spec, as YAML or JSON")
    page.get_by_label("Project", exact=True).select_option("vision")
    assert spec.input_value().startswith("name: first\nproject: vision\n")
    expect(page.get_by_text("Good:")).to_be_visible()
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("first")  # the page goes on to the job by itself
    assert next(service.client.list(project="vision")).name == "first"
    page = one.go("new?kind=sweep")
    page.get_by_label("Project", exact=True).select_option("vision")
    assert "\njob:\n  project: vision\n" in spec.input_value()
    page.get_by_label("Project", exact=True).select_option("default")
    assert "project" not in spec.input_value()
    spec.fill("project: vision\nworkers: 1\n")
    expect(page.get_by_label("Project", exact=True)).to_have_value("vision")


def test_an_admin_deletes_a_project_and_nobody_else_sees_how(serve: Callable[..., Service], browser: Browser) -> None:
    service = serve(is_required=True)
    root, ann = service.bearer("admin", "root"), service.bearer("user")
    assert service.http.post("/v1/projects", json={"name": "old"}, headers=root).status_code == 201
    with visitors(browser, service.url) as visit:
        for bearer in (ann, root):
            one = visit()
            one.page.add_init_script(f"localStorage.setItem('millrace-token', '{bearer['Authorization'][7:]}')")
            page = one.go("cluster")
            row = page.get_by_role("region", name="Projects").get_by_role("row").filter(has_text="old")
            expect(row).to_be_visible()
            expect(row.get_by_role("button")).to_have_count(2 if bearer is root else 0)
            expect(page.get_by_role("button", name="New project")).to_have_count(1 if bearer is root else 0)
        row.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete the project").click()
        expect(page.get_by_role("heading", name="Projects")).to_be_hidden()


def test_a_project_is_made_once_all_its_fields_are_right(service: Service, visit: Callable[..., Visit]) -> None:
    page = visit().go("cluster")
    page.get_by_role("button", name="New project").click()
    box = page.get_by_role("dialog", name="New project")
    create, trouble = box.get_by_role("button", name="Create"), box.get_by_role("alert")
    expect(box.get_by_label("Name")).to_be_focused()
    expect(box.get_by_label("Members")).to_have_value("everybody")
    assert Axe().run(page, options=WCAG_AA).violations_count == 0
    create.click()
    expect(trouble).to_contain_text("Name: ")
    box.get_by_label("Name").fill("two words")
    create.click()
    expect(trouble).to_have_text(
        "Name: Only letters, digits, dots, dashes and underscores, and a letter or a digit first."
    )
    box.get_by_label("Name").fill("default")
    box.get_by_label("Jobs").fill("0")
    create.click()
    expect(trouble).to_contain_text("Jobs that run at once: ")
    box.get_by_label("Jobs").fill("")
    create.click()
    expect(trouble).to_contain_text("there is a project 'default' already")
    box.get_by_label("Name").fill("vision-2.0")
    box.get_by_label("CPUs").fill("2.5")
    box.get_by_label("Disk").fill("0.5")
    box.get_by_label("Members").fill("ann, bob")
    box.get_by_label("Its own admins").fill("eve")
    box.get_by_label("Its own admins").press("Tab")
    page.keyboard.press("Enter")  # on the button
    row = page.get_by_role("region", name="Projects").get_by_role("row").filter(has_text="vision-2.0")
    expect(row).to_contain_text("0 of 2.5")
    expect(page.get_by_role("dialog")).to_have_count(0)
    project = service.client.project("vision-2.0")
    assert (project.share, project.members, project.admins) == (1.0, ("ann", "bob"), ("eve",))
    quota = project.quota
    assert (quota.jobs, quota.cpus, quota.gpus, quota.disk_bytes) == (None, 2.5, None, 500_000_000)


def test_a_new_project_is_as_the_form_shows_it_where_only_its_name_is_written(
    service: Service, visit: Callable[..., Visit]
) -> None:
    page = visit().go("cluster")
    page.get_by_role("button", name="New project").click()
    box = page.get_by_role("dialog")
    box.get_by_label("Name").fill("vision")
    shown = [box.get_by_label(label).input_value() for label in ("Share", "Jobs", "CPUs", "GPUs", "Disk", "Members")]
    assert shown == ["1", "", "", "", "", "everybody"]
    with page.expect_request(lambda request: request.method == "POST") as sent:
        box.get_by_label("Name").press("Enter")
    assert sent.value.post_data_json == {"name": "vision"}
    expect(page.get_by_role("region", name="Projects").get_by_role("row").filter(has_text="vision")).to_be_visible()
    project = service.client.project("vision")
    assert (project.share, project.members, project.admins) == (1.0, ("*",), ())
    assert set(project.quota.model_dump().values()) == {None}


def test_a_project_that_is_written_before_the_list_has_come_is_chosen(
    service: Service, visit: Callable[..., Visit]
) -> None:
    service.client.create_project("vision")
    one, held = visit(), list[Route]()

    def hold(route: Route) -> None:
        held.append(route)

    one.page.route("**/v1/projects", hold)
    page = one.go("new")
    page.get_by_label("Spec, as YAML or JSON").fill("project: vision\nepochs: 3\n")
    expect(page.locator(".verdict")).to_contain_text("3 epochs")
    (listed,) = held
    listed.continue_()
    expect(page.get_by_label("Project", exact=True)).to_have_value("vision")


def test_a_project_is_changed(service: Service, visit: Callable[..., Visit]) -> None:
    service.client.create_project("vision", members=["ann"], quota={"cpus": 2.0, "disk_bytes": 10**10})
    page = visit().go("cluster")
    row = page.get_by_role("region", name="Projects").get_by_role("row").filter(has_text="vision")
    row.get_by_role("button", name="Edit the project vision").click()
    box = page.get_by_role("dialog", name="Change the project vision")
    expect(box.get_by_label("Disk, GB")).to_have_value("10")
    expect(box.get_by_label("GPUs")).to_have_value("")
    assert Axe().run(page, options=WCAG_AA).violations_count == 0
    box.get_by_label("Share").fill("-1")
    box.get_by_role("button", name="Change").click()
    expect(box.get_by_role("alert")).to_contain_text("Share, where projects compete: ")
    box.get_by_label("Share").fill("2.5")
    box.get_by_label("CPUs").fill("")
    box.get_by_label("Jobs").fill("3")
    box.get_by_label("Disk").fill("0.5")
    box.get_by_label("Members").fill("everybody, eve")
    box.get_by_label("Its own admins").fill("not a name")
    box.get_by_role("button", name="Change").click()
    expect(box.get_by_role("alert")).to_contain_text(re.compile(r"^admins\[0\]: "))
    box.get_by_label("Its own admins").fill("ann, bob,")
    box.get_by_role("button", name="Change").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(row).to_contain_text("everybody, eveann, bob")
    project = service.client.project("vision")
    assert (project.share, project.members, project.admins) == (2.5, ("*", "eve"), ("ann", "bob"))
    quota = project.quota
    assert (quota.jobs, quota.cpus, quota.gpus, quota.disk_bytes) == (3, None, None, 500_000_000)
    with page.expect_request(lambda request: request.method == "PATCH") as sent:
        row.get_by_role("button", name="Edit").click()
        box.get_by_label("CPUs").fill("4")
        box.get_by_role("button", name="Change").click()
    assert sent.value.post_data_json == {"quota": {"cpus": 4}}


def test_admins_of_a_project_change_who_belongs_to_it(serve: Callable[..., Service], browser: Browser) -> None:
    service = serve(is_required=True)
    root, ann = service.bearer("admin", "root"), service.bearer("user")
    for project in ({"name": "mine", "admins": ["ann"]}, {"name": "other"}):
        assert service.http.post("/v1/projects", json=project, headers=root).status_code == 201
    with visitors(browser, service.url) as visit:
        one = visit()
        one.page.add_init_script(f"localStorage.setItem('millrace-token', '{ann['Authorization'][7:]}')")
        page = one.go("cluster")
        rows = page.get_by_role("region", name="Projects").get_by_role("row")
        expect(rows.filter(has_text="other")).to_be_visible()
        expect(page.get_by_role("region", name="Projects").get_by_role("button")).to_have_count(1)
        rows.filter(has_text="mine").get_by_role("button", name="Edit").click()
        box = page.get_by_role("dialog")
        expect(box.get_by_label("Share")).to_have_count(0)
        box.get_by_label("Members").fill("ann, bob")
        box.get_by_role("button", name="Change").click()
        expect(rows.filter(has_text="mine")).to_contain_text("ann, bob")
