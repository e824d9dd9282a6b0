"""Screenshots of every view of the page in every state: in the light, in the dark and on a phone.

    python -m tests.api.page.gallery FOLDER

They are for somebody with fresh eyes, who looks at them one by one; `index.html` shows them side by side. Service and
browser are those of the tests in this folder: real, on runs that nobody trains.
"""

import html
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route
from playwright.sync_api import Error as BrowserError

from service import Role
from tests.api.conftest import Service, serving
from tests.api.page.conftest import Visit, chromium, find_chromium
from tests.api.page.scene import Scene, job_states
from tests.api.page.sweep import shown, tuned, without_baseline

LOOKS = ("light", "dark", "phone")
SCREENS: dict[str, dict[str, Any]] = {
    "desk": {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"},
    "phone": {"viewport": {"width": 375, "height": 812}, "is_mobile": True, "has_touch": True},
}
SETTLED_MS = 250
"""So long after what it waited for a view has drawn its charts."""
PATIENCE_MS = 20_000
WRONG_SPEC = "name: first\nalgorithm: downpor\nbatch: many\nworkers: 0\nepochs: 3\n"

Act = Callable[[Page], object]


@dataclass(frozen=True)
class View:
    """One picture: a view, and what is done there before it is taken."""

    name: str
    path: str
    act: Act = lambda _: None
    ready: str = "h1"
    """What is there when the view is."""


def press(name: str) -> Act:
    """Press a button of the view, which opens a dialog."""

    def act(page: Page) -> None:
        page.locator("main").get_by_role("button", name=name, exact=True).click()
        page.get_by_role("dialog").wait_for()

    return act


def views_of(scene: Scene) -> list[View]:
    """Those of a service with something of everything."""
    running, ended = f"jobs/{scene.jobs['RUNNING']}", f"jobs/{scene.jobs['SUCCEEDED']}"
    several = ",".join(scene.jobs[state] for state in ("RUNNING", "SUCCEEDED", "PAUSED", "FAILED"))
    return [
        View("jobs", "jobs"),
        View("jobs-sweep-open", "jobs", open_sweep),
        View("jobs-columns", "jobs", lambda page: page.get_by_text("Columns", exact=True).first.click()),
        *(View(f"job-{state.lower()}", f"jobs/{job}") for state, job in scene.jobs.items()),
        View("job-language-model", f"jobs/{scene.of_text}"),
        View("job-scale", running, press("Scale")),
        View("job-fork", running, press("Fork")),
        View("job-trace", running, press("Trace")),
        View("job-cancel", running, press("Cancel")),
        View("job-edit", running, press("Edit")),
        View("job-register", ended, press("Register")),
        View("job-unknown", "jobs/nosuchjob"),
        View("sweeps", "sweeps"),
        View("sweep", "sweeps/sweep-1", ready=".heat"),
        View("sweep-without-baseline", "sweeps/sweep-3", ready=".answer"),
        View("sweep-tuned", "sweeps/sweep-2", ready=".parallel"),
        View("compare", f"compare?jobs={several}", ready="canvas"),
        View("compare-sweep", "compare?sweep=sweep-1"),
        View("compare-nothing", "compare"),
        View("models", "models", ready="tbody tr"),
        View("models-of-a-name", "models?name=digits", ready="tbody tr"),
        View("cluster", "cluster", ready=".amount"),
        View("cluster-new-project", "cluster", press("New project")),
        View("cluster-edit-project", "cluster", press("Edit the project vision")),
        View("plan", "plan"),
        View("plan-made", "plan", plan, ready=".plan, form"),
        View("plan-simulated", "plan", plan_simulated, ready="form"),
        View("plan-wrong", "plan", plan_wrong, ready="form"),
        View("new", "new"),
        View("new-sweep", "new?kind=sweep"),
        View("new-errors", "new", lambda page: page.get_by_label("Spec, as YAML or JSON").fill(WRONG_SPEC)),
        View("not-found", "nowhere"),
        View("help", "jobs", lambda page: page.locator("#help").click()),
        View("service-gone", "jobs", lose_service),
    ]


EMPTY = [
    *(View(f"empty-{name}", name) for name in ("jobs", "sweeps", "compare", "models", "cluster")),
    View("jobs-none-like-that", "jobs?state=FAILED&label=no%3Dwhere"),
]


def open_sweep(page: Page) -> None:
    """Show the trials of the first sweep in the list."""
    page.locator(".opener").first.click()


def plan(page: Page) -> None:
    """Ask for one."""
    page.get_by_label("workers", exact=True).fill("1..16")
    page.get_by_label("other algorithms").check()
    page.get_by_role("button", name="Plan").click()
    page.locator("canvas").first.wait_for()


def plan_simulated(page: Page) -> None:
    """Ask for one with a simulation, of groups that wait for their slowest."""
    editor = page.get_by_label("Spec, as YAML or JSON")
    mixed = editor.input_value().replace("name: downpour", "name: mixed, group: 4").replace("workers: 2", "workers: 16")
    editor.fill(mixed)
    page.get_by_label("workers", exact=True).fill("4,8,16")
    page.get_by_label("simulate it").check()
    page.get_by_role("button", name="Plan").click()
    page.locator(".gantt").first.wait_for()


def plan_wrong(page: Page) -> None:
    """Ask for one of a cluster that there is not."""
    page.get_by_label("cluster").fill("cray")
    page.get_by_role("button", name="Plan").click()
    page.get_by_role("listitem").filter(has_text="no cluster has this name").wait_for()


def lose_service(page: Page) -> None:
    """It answers nothing any more."""
    page.route("**/v1/**", lambda route: route.abort())
    page.locator("#trouble").filter(has_text="does not answer").wait_for()
    page.unroute("**/v1/**")  # for the views after it


def answer_for_sweeps(one: Visit) -> None:
    """Three sweeps, in the service's place: to run them would take Ray."""
    found = [shown(seeds=1), tuned(), without_baseline()]
    one.answer("**/v1/sweeps?page_size*", {"sweeps": [sweep for sweep, _ in found], "next_page_token": None})
    one.page.route("**/v1/jobs?label=sweep*", answer_for_trials)
    line = {"name": "loss", "x": "epoch", "points": [[i / 10, 1 / i] for i in range(1, 20)], "total": 19}
    one.answer("**/v1/metrics?*0000000000*", {"lines": [line] * 12 + [None]})
    for sweep, report in found:
        one.answer(f"**/v1/sweeps/{sweep['id']}", sweep)
        one.answer(f"**/v1/sweeps/{sweep['id']}/report*", report)


def answer_for_trials(route: Route) -> None:
    """Ended jobs, as trials of the sweep that is opened in the list of jobs."""
    found = route.fetch(url=f"{route.request.url.partition('?')[0]}?state=SUCCEEDED").json()
    for number, job in enumerate(found["jobs"]):
        job |= {"id": f"{number:012d}", "name": f"trial {number}", "labels": {"sweep": "sweep-1"}}
    route.fulfill(json=found)


class Photographer:
    """Takes the pictures: in the light and in the dark at one visit of a view, and at another one on a phone."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser = browser
        self.folder = folder
        self.complaints: list[str] = []

    def take(self, service: Service, views: list[View], with_sweeps: bool = False) -> None:
        """Visit these views of a service."""
        for screen, looks in SCREENS.items():
            context = self.browser.new_context(**looks)
            one = Visit(context.new_page(), service.url)
            one.page.set_default_timeout(PATIENCE_MS)
            if with_sweeps:
                answer_for_sweeps(one)
            for view in views:
                self._visit(one, view, screen)
            context.close()

    def _visit(self, one: Visit, view: View, screen: str) -> None:
        page = one.page
        try:
            page.goto("about:blank")
            one.go(view.path)
            page.locator(view.ready).first.wait_for()
            page.wait_for_timeout(SETTLED_MS)
            view.act(page)
        except BrowserError as error:  # the picture shows how far it came
            self.complaints.append(f"{view.name}, {screen}: {error}")
        page.wait_for_timeout(SETTLED_MS)
        whole = page.locator("dialog").count() == 0
        for look in ("light", "dark") if screen == "desk" else ("phone",):
            page.emulate_media(color_scheme="dark" if look == "dark" else "light")
            page.screenshot(path=self.folder / f"{view.name}-{look}.png", full_page=whole)
        page.emulate_media(color_scheme="light")
        self.complaints += [f"{view.name}, {screen}: {told}" for told in one.complaints]
        one.complaints.clear()


def write_index(folder: Path, names: list[str]) -> None:
    """All pictures, a view a row."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f'<td><a href="{name}-{look}.png"><img src="{name}-{look}.png"></a></td>' for look in LOOKS)
        + "</tr>"
        for name in names
    )
    style = "img { max-width: 100%; max-height: 32rem; border: 1px solid } td, th { vertical-align: top; width: 30% }"
    head = f'<!doctype html><meta charset="utf-8"><title>The page</title><style>{style}</style>'
    looks = "".join(f"<th>{look}</th>" for look in LOOKS)
    (folder / "index.html").write_text(f"{head}<table><tr><th></th>{looks}</tr>{rows}</table>")


def main(folder: Path) -> int:
    """Take all pictures; the exit status is 1 if a view could not be reached or complained."""
    program = find_chromium()
    if program is None:
        print("needs Chromium: the Debian package `chromium`", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("full", "empty", "guarded"):
            (place / name).mkdir()
        full, empty, guarded = (stack.enter_context(serving(place / name)) for name in ("full", "empty", "guarded"))
        service, alone, closed = full(), empty(), guarded(is_required=True)
        closed.tokens.create("ann", Role.user)
        scene = job_states(service)
        views, signed_out = views_of(scene), [View("signed-out", "jobs", ready="dialog")]
        browser = stack.enter_context(chromium(program))
        taker = Photographer(browser, folder)
        taker.take(service, views, with_sweeps=True)
        taker.take(alone, EMPTY)
        taker.take(closed, signed_out)
    write_index(folder, [view.name for view in (*views, *EMPTY, *signed_out)])
    for complaint in taker.complaints:
        print(complaint, file=sys.stderr)
    return 1 if taker.complaints else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.api.page.gallery FOLDER")
    sys.exit(main(Path(sys.argv[1])))
