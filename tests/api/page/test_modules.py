"""The page's modules by themselves: figures, curves, and how many lines come onto one axis."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.api.conftest import Service
from tests.api.page.conftest import Visit, visitors
from tests.api.page.runs import step
from trainers.events import State

NOTHING = "\N{EN DASH}"


@pytest.fixture(scope="module")
def one(browser: Browser, shared: Service) -> Iterator[Visit]:
    with visitors(browser, shared.url) as enter:
        found = enter()
        expect(found.go().get_by_role("heading", level=1)).to_be_visible()
        yield found


def test_the_page_knows_the_states_that_there_are(one: Visit) -> None:
    assert set(one.module("lib/states.js", "m.STATES")) == {state.value for state in State}
    assert set(one.module("lib/states.js", "m.ENDED")) == {state.value for state in State if state.is_terminal}


def test_figures_as_people_read_them(one: Visit) -> None:
    asked = [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (3599, "1 h 0 min"),
        (7500, "2 h 5 min"),
        (200_000, "2 d 7 h"),
    ]
    assert one.module("lib/format.js", "a[0].map(m.duration)", [value for value, _ in asked]) == [
        text for _, text in asked
    ]
    assert (
        one.module("lib/format.js", "[m.duration, m.percent, m.figure, m.count].map((f) => f(null))") == [NOTHING] * 4
    )
    values = [0, 0.034217, 19.12449, 28740, 12345678, 0.0000123]
    assert one.module("lib/format.js", "a[0].map(m.figure)", values) == [
        "0", "0.03422", "19.12", "28740", "1.23e+7", "1.23e-5",
    ]  # fmt: skip


def test_what_was_trained_again_shows_once(one: Visit) -> None:
    xs, ys = [1, 2, 3, 4, 2.5, 3.5, 5], [10, 20, 30, 40, 25, 35, 50]
    assert one.module("lib/metric_series.js", "m.rising(a[0], a[1])", xs, ys) == [
        [1, 2, 2.5, 3.5, 5],
        [10, 20, 25, 35, 50],
    ]
    assert one.module("lib/metric_series.js", "m.rising(a[0], a[1])", [1, 2, 2], [1, 2, 3]) == [[1, 2], [1, 3]]


def test_staleness_is_that_of_the_updates_since_the_last_report(one: Visit) -> None:
    told = [{"0": 4}, {"0": 4, "3": 2}, {"0": 6, "3": 4, "5": 0}, {"0": 6, "3": 4}, {}]
    code = """(() => { const c = new m.Curves();
        a[0].forEach((data, i) => c.add({ seq: i, time: i, type: 'step', data }));
        return [c.steps.staleness, c.steps.stalest]; })()"""
    events = [step(i, i) | {"staleness": staleness} for i, staleness in enumerate(told)]
    assert one.module("lib/metric_series.js", code, events) == [[0, 3, 1.5, None, None], [0, 3, 3, None, None]]


def test_a_spike_among_ten_thousand_points_stays(one: Visit) -> None:
    ys = [0.5] * 10_000
    ys[7_531], ys[2_222] = 9.0, -4.0
    lines = [[list(range(10_000)), ys], [[0, 5_000], [1, None]], [[], []]]
    x, first, second, third = one.module("lib/metric_series.js", "m.aligned(a[0], 300)", lines)
    assert len(x) == len(first) == 600
    assert x == sorted(x)
    assert (x[0], x[-1]) == (0, 9_999)
    assert (max(first), min(first)) == (9.0, -4.0)
    assert abs(x[first.index(9.0)] - 7_531) < 10_000 / 300
    assert abs(x[first.index(-4.0)] - 2_222) < 10_000 / 300
    assert {y for y in second if y is not None} == {1}
    assert set(third) == {None}
    assert one.module("lib/metric_series.js", "m.aligned(a[0])", [[[], []]]) == [[], []]
    assert one.module("lib/metric_series.js", "m.aligned(a[0], 2)", [[[3], [7]]])[1] == [7, 7, None, None]


def test_a_stream_goes_on_where_it_broke_and_repeats_nothing(one: Visit) -> None:
    """Cut in the middle of an event, and told again from further back than asked."""
    event = 'id: {0}\nevent: log\ndata: {{"seq":{0},"time":1,"type":"log","data":{{"message":"é{0}"}}}}\n\n'
    end = 'id: 6\nevent: state\ndata: {"seq":6,"time":1,"type":"state","data":{"state":"FAILED"}}\n\n'
    first, second, third = (event.format(i) for i in (1, 2, 3))
    bodies = ["retry: 1000\n\n" + first + second[:40], ": ping\n\n" + first + second + third, "", third + end]
    asked: list[str] = []

    def answer(route: object) -> None:
        asked.append(route.request.headers["last-event-id"])  # type: ignore[attr-defined]
        route.fulfill(content_type="text/event-stream; charset=utf-8", body=bodies[len(asked) - 1])  # type: ignore[attr-defined]

    one.page.route("**/v1/x/events", answer)
    code = """(async () => { const found = [];
        for await (const batch of m.events('v1/x/events', 0, new AbortController().signal)) found.push(...batch);
        return found.map((event) => [event.seq, event.data.message ?? event.data.state]); })()"""
    assert one.module("lib/http.js", f"await {code}") == [[1, "é1"], [2, "é2"], [3, "é3"], [6, "FAILED"]]
    assert asked == ["0", "1", "3", "3"]


def test_curves_are_smoothed_and_keep_their_beginning(one: Visit) -> None:
    line = [[1, 2, 3, 4], [1, None, 3, 3]]
    assert one.module("lib/comparing.js", "m.smoothed(a[0], 0)", line) == line
    # weighted sums over the sums of the weights: (0.5, then 0.25 + 1.5, then 0.875 + 1.5) / (0.5, 0.75, 0.875)
    _, ys = one.module("lib/comparing.js", "m.smoothed(a[0], 0.5)", line)
    assert ys == [1, None, pytest.approx(1.75 / 0.75), pytest.approx(2.375 / 0.875)]


def test_a_group_has_its_mean_and_its_range_where_somebody_has_a_value(one: Visit) -> None:
    lines = [[0, None, 4, None], [2, 4, None, None]]
    found = one.module("lib/comparing.js", "m.spread(a[0])", lines)
    assert found == {"mean": [1, 3, 4, None], "low": [0, 2, 4, None], "high": [2, 4, 4, None]}


def test_specs_differ_in_their_leaves(one: Visit) -> None:
    specs = [
        {"name": "a", "lr": 0.1, "data": {"batch": 32, "size": [1, 2]}, "clip": None},
        {"name": "b", "lr": 0.1, "data": {"batch": 64, "size": [1, 2]}, "clip": {"norm": 1}},
        None,
    ]
    told = one.module("lib/comparing.js", "[...m.differences(a[0])]", specs)
    assert dict(told) == {
        "data.batch": ["32", "64", ""], "clip": ["null", NOTHING, ""], "clip.norm": [NOTHING, "1", ""],
    }  # fmt: skip


def test_a_spreadsheet_computes_nothing_that_a_user_wrote(one: Visit) -> None:
    rows = [["name", "loss"], ['a "b", c', 0.5], ["=1+1", -2], [None, 1e-7]]
    assert one.module("lib/comparing.js", "m.csv(a[0])", rows) == (
        'name,loss\r\n"a ""b"", c",0.5\r\n\'=1+1,-2\r\n,1e-7\r\n'
    )


def test_a_logarithmic_axis_has_no_place_for_zero(one: Visit) -> None:
    line = [[0, 1, 2, 3], [5, 0, None, 7]]
    assert one.module("lib/comparing.js", "m.positive(a[0], { logX: true, logY: true })", line) == [[2, 3], [None, 7]]


def test_pointers_and_reports_as_people_read_them(one: Visit) -> None:
    pointers = {"": "", "/workers/count": "workers.count", "/axes/batch/0": "axes.batch[0]", "/a~1b/c~0d": "a/b.c~d"}
    assert one.module("lib/format.js", "a[0].map(m.pathOf)", [*pointers]) == [*pointers.values()]
    assert one.module("lib/format.js", "m.sentences(a[0])", "a holds (3 seeds); b breaks; c.") == [
        "A holds (3 seeds).",
        "B breaks.",
        "C.",
    ]
