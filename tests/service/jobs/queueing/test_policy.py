"""Who starts next: quotas, fair share between projects, the reservation and who may pass it; by properties too."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.jobs.queueing.claims import NOTHING, Claim, Quotas, Size
from service.jobs.queueing.policy import Decision, decide
from service.jobs.queueing.rules import Holdings, Rules
from service.jobs.queueing.turns import Turns
from service.projects.project import ProjectQuota
from trainers import Resources

TOTAL = Resources(8, 4)


def claim(name: str, cpus: float, gpus: float = 0, project: str = "a", user: str = "ann", **more: object) -> Claim:
    return Claim(name, user, 0, Resources(cpus, gpus), project=project, **more)  # type: ignore[arg-type]


def rest(held: list[Claim]) -> Resources:
    return TOTAL - sum((one.needs for one in held), NOTHING)


def look(line: list[Claim], held: list[Claim], rules: Rules | None = None, turns: Turns | None = None) -> Decision:
    by_rank = sorted(line, key=lambda one: one.rank)
    return decide(by_rank, held, (TOTAL, rest(held)), rules or Rules(), turns)


def names(claims: list[Claim]) -> str:
    return "".join(one.job_id for one in claims)


# -- quotas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "told"),
    [
        ({"jobs": 1}, "project a runs 1 of its 1 job"),
        ({"jobs": 2}, None),
        ({"cpus": 4.0}, "project a has given out 2 of its 4 CPUs, and the job needs 3"),
        ({"cpus": 5.0}, None),
        ({"gpus": 1.0}, "project a has given out 1 of its 1 GPUs, and the job needs 1"),
        ({"gpus": 2.0}, None),
        (
            {"disk_bytes": 2_000_000_000},
            "the runs of project a hold 3.0 GB, and 2.0 GB are its quota; delete some of them",
        ),
        ({"disk_bytes": 3_000_000_000}, None),
    ],
)
def test_a_quota_is_named_with_what_is_used_of_it(quota: dict[str, float], told: str | None) -> None:
    rules = Rules(quotas={"a": ProjectQuota(**quota)}, disk_bytes={"a": 3_000_000_000})
    found = look([claim("x", 3, 1), claim("y", 1, project="b")], [claim("1", 2, 1)], rules)
    assert names(found.starts) == ("yx" if told is None else "y"), "it holds up no other project"
    if told is not None:
        assert found.refused["x"][0] == ("ProjectQuota", told)


def test_behind_a_job_that_its_quota_holds_back_its_project_waits() -> None:
    rules = Rules(quotas={"a": ProjectQuota(cpus=4.0)})
    found = look([claim("x", 3), claim("y", 1), claim("z", 1, project="b")], [claim("1", 2)], rules)
    assert names(found.starts) == "z"
    assert found.refused["y"] == found.refused["x"], "otherwise small jobs would pass it for ever"
    assert found.refused["y"][1] == "x"


def test_a_job_without_gpus_is_not_held_back_by_a_quota_of_gpus() -> None:
    rules = Rules(quotas={"a": ProjectQuota(gpus=1.0)})
    assert names(look([claim("x", 3)], [claim("1", 1, 2)], rules).starts) == "x"


def test_workers_that_a_job_gets_back_count_still() -> None:
    shrunk = Claim("1", "ann", 0, Resources(1, 0), Size(1, 4, 1, Resources(1, 0)), "a")
    found = look([claim("x", 2)], [shrunk], Rules(quotas={"a": ProjectQuota(cpus=5.0)}))
    assert found.refused["x"][0].why == "project a has given out 4 of its 5 CPUs, and the job needs 2"


def test_a_limit_of_a_user_holds_up_no_other_of_the_project() -> None:
    line = [claim("x", 1), claim("y", 1, user="bob"), claim("z", 1, project="b")]
    found = look(line, [claim("1", 1)], Rules(Quotas(running_jobs=1)))
    assert names(found.starts) == "y"
    assert found.refused["z"][0].reason == "UserLimit"


# -- fair share -----------------------------------------------------------------------------------------------------


def test_the_project_that_uses_less_of_its_share_goes_first() -> None:
    line = [claim("p", 4), claim("q", 4), claim("x", 4, project="b")]
    assert names(look(line, [claim("1", 2)]).order) == "xpq"
    assert names(look(line, []).order) == "pxq", "and where both use as much, the one who came first"
    assert names(look(line, [claim("1", 2)], Rules(shares={"a": 8.0})).order) == "xpq"
    held = [claim("1", 2), claim("2", 1, project="b")]
    assert names(look(line, held, Rules(shares={"a": 4.0})).order) == "pxq", "2/8 for a share of 4 is less than 1/8"


def test_of_cpus_and_gpus_the_larger_share_counts() -> None:
    held = [claim("1", 3), claim("2", 1, 2, project="b")]  # 3/8 of the CPUs, and 2/4 of the GPUs
    assert names(look([claim("p", 1, project="b"), claim("x", 1)], held).order) == "xp"


def test_within_a_project_it_is_priority_and_then_time() -> None:
    line = [claim("p", 8), claim("q", 8), replace(claim("r", 8), priority=3), claim("x", 8, project="b")]
    assert names(look(line, [claim("1", 1)]).order) == "xrpq"


def test_a_project_keeps_its_turn_until_its_job_has_started() -> None:
    held = [claim("1", 4, project="b"), claim("2", 2)]
    line = [claim("x", 4, project="b"), claim("p", 2), claim("q", 1)]
    assert names(look(line, held).starts) == "p", "a uses less"
    found = look(line, held, turns=Turns("b"))
    assert (names(found.starts), names([found.reserved] if found.reserved else [])) == ("", "x")


def test_of_projects_that_use_as_much_the_one_whose_last_start_is_longest_ago_goes_first() -> None:
    line = [claim("p", 8), claim("x", 8, project="b"), claim("y", 8, project="c")]
    assert names(look(line, [], turns=Turns(None, {"a": 2, "b": 1, "c": 3})).order) == "xpy"
    assert names(look(line, [], turns=Turns(None, {"a": 2, "b": 1})).order) == "yxp", "c has started nothing yet"
    assert names(look(line, [], turns=Turns("c", {"a": 2, "b": 1, "c": 3})).order) == "yxp", "whose turn it is keeps it"


# -- backfill -------------------------------------------------------------------------------------------------------


def test_beside_the_reserved_job_others_take_what_it_leaves() -> None:
    held = [claim("1", 2, 4)]  # 6 CPUs are free, and no GPU
    line = [claim("g", 4, 1), claim("p", 3), claim("q", 2), claim("r", 1)]
    found = look(line, held)
    assert names([found.reserved] if found.reserved else []) == "g"
    assert names(found.beside) == "q", "g needs 4 of the 6 CPUs, once there is a GPU"
    assert found.before == []


def test_a_job_with_a_deadline_passes_where_the_deadlines_of_others_promise_the_room_later() -> None:
    held = [claim("1", 3, ends_s=100.0), claim("2", 3)]
    line = [claim("g", 4), claim("p", 1), claim("q", 1, ends_s=101.0), claim("r", 2, ends_s=99.0)]
    assert names(look(line, held).before) == "r"
    nobody_knows = [replace(one, ends_s=None) for one in held]
    assert names(look(line, nobody_knows).before) == "", "nobody knows when there will be room"


# -- whatever comes -------------------------------------------------------------------------------------------------

PROJECTS = ("a", "b", "c")


@st.composite
def claims(draw: st.DrawFn, prefix: str, most: int, fit: Resources = TOTAL) -> list[Claim]:
    found, used = [], NOTHING
    for number in range(draw(st.integers(0, most))):
        needs = Resources(draw(st.integers(0, 8)), draw(st.integers(0, 4)))
        if prefix == "h" and not (used + needs).fits(fit):
            continue
        used = used + needs
        ends_s = draw(st.none() | st.integers(1, 50).map(float))
        who = draw(st.sampled_from(("ann", "bob")))
        found.append(
            Claim(
                f"{prefix}{number:02d}", who, draw(st.integers(-1, 1)), needs,
                project=draw(st.sampled_from(PROJECTS)), ends_s=ends_s,
            )
        )  # fmt: skip
    return found


LIMIT = st.none() | st.integers(1, 6)
QUOTAS = st.builds(
    ProjectQuota, jobs=LIMIT, cpus=LIMIT.map(lambda one: one and float(one)), gpus=LIMIT.map(lambda one: one and 1.0)
)
RULES = st.builds(
    Rules,
    users=st.builds(Quotas, running_jobs=LIMIT),
    quotas=st.dictionaries(st.sampled_from(PROJECTS), QUOTAS),
    shares=st.dictionaries(st.sampled_from(PROJECTS), st.sampled_from((0.5, 1.0, 4.0))),
)
TURNS = st.builds(
    Turns, st.none() | st.sampled_from(PROJECTS), st.dictionaries(st.sampled_from(PROJECTS), st.integers(1, 9))
)


def all_started(found: Decision) -> list[Claim]:
    return [*found.starts, *found.beside, *found.before]


@given(line=claims("w", 12), held=claims("h", 6), rules=RULES, turns=TURNS)
def test_no_quota_and_no_cluster_is_ever_exceeded(
    line: list[Claim], held: list[Claim], rules: Rules, turns: Turns
) -> None:
    found = look(line, held, rules, turns)
    holdings, free = Holdings(held), rest(held)
    for one in all_started(found):
        assert rules.refuses(one, holdings) is None
        assert one.needs.fits(free)
        holdings.add(one)
        free = free - one.needs
    started = {one.job_id for one in all_started(found)}
    assert len(started) == len(all_started(found)), "and none starts twice"


@given(line=claims("w", 12), held=claims("h", 6), rules=RULES, turns=TURNS)
def test_nothing_idles_that_somebody_could_have(
    line: list[Claim], held: list[Claim], rules: Rules, turns: Turns
) -> None:
    """Whoever waits is held back by a limit, of its own or of one before it, or by the reservation, or does not fit."""
    found = look(line, held, rules, turns)
    started = {one.job_id for one in all_started(found)}
    free = rest([*held, *all_started(found)])
    for one in line:
        if one.job_id in started or one.job_id in found.refused or one is found.reserved:
            continue
        assert found.reserved is not None, "without a reservation only limits hold anybody back"
        takes_its_room = not all(
            takes == 0 or has - takes >= keeps
            for takes, has, keeps in (
                (one.needs.cpus, free.cpus, found.reserved.needs.cpus),
                (one.needs.gpus, free.gpus, found.reserved.needs.gpus),
            )
        )
        assert takes_its_room or not one.needs.fits(free)
    if found.reserved is not None:
        assert not found.reserved.needs.fits(rest([*held, *found.starts]))


@given(line=claims("w", 12), held=claims("h", 6), data=st.data())
def test_who_passes_delays_the_reserved_job_in_no_order_of_ends(
    line: list[Claim], held: list[Claim], data: st.DataObject
) -> None:
    """Those beside it: whatever ends when, it starts as early as without them. Those before it: at the latest when the
    deadlines of the others promise."""
    found = look(line, held)
    if found.reserved is None:
        return
    needs, running = found.reserved.needs, [*held, *found.starts]
    ended = data.draw(st.permutations(running))
    free = without = rest(running)
    free = free - sum((one.needs for one in found.beside), NOTHING)
    for one in ended:
        free, without = free + one.needs, without + one.needs
        assert needs.fits(free) == needs.fits(without)
    if found.before:
        promised_s = max(one.ends_s or 0.0 for one in found.before)
        by_end = sorted((one for one in running if one.ends_s is not None), key=lambda one: one.ends_s or 0.0)
        rooms = [one.ends_s for one in by_end if needs.fits(rest([r for r in running if not _ended(r, one.ends_s)]))]
        assert rooms, "nobody passes whom nothing is promised"
        assert promised_s <= (rooms[0] or 0.0)


def _ended(one: Claim, now_s: float | None) -> bool:
    return one.ends_s is not None and now_s is not None and one.ends_s <= now_s


OVERTAKEN = [
    replace(claim("w00", 0, 1), priority=1),
    claim("w01", 0, 4, "c"),
    claim("w02", 0, 4, "b"),
    claim("w03", 0, 1),
]


@given(
    line=claims("w", 8),
    rules=RULES.map(lambda one: replace(one, quotas={}, users=Quotas())),
    ends=st.lists(st.integers(0, 20), min_size=30, max_size=30),
)
@example(line=OVERTAKEN, rules=Rules(), ends=[0] * 30)
def test_nobody_starves(line: list[Claim], rules: Rules, ends: list[int]) -> None:
    """Projects b and c submit another job whenever any ends, and jobs end in any order: all of project a start. In the
    example, each of b and c has a large job that is older than that of a, and that urgent ones of its own project pass
    for ever."""
    held, waiting, turns = list[Claim](), list(line), Turns()
    left = {one.job_id for one in line if one.project == "a"}
    for number in range(400):
        found = look(waiting, held, rules, turns)
        started = all_started(found)
        for one in started:
            turns.started(one.project)
        held, waiting = [*held, *started], [one for one in waiting if one not in started]
        left -= {one.job_id for one in started}
        turns.holder = None if found.reserved is None else found.reserved.project
        if not left:
            return
        if held:
            ended = held.pop(ends[number] % len(held) if number < len(ends) else 0)
            waiting.append(replace(ended, job_id=f"x{number:03d}", project="b" if number % 2 else "c", ends_s=None))
    raise AssertionError(f"still waiting: {left}")


@given(line=claims("w", 12), held=claims("h", 6))
def test_with_one_project_and_no_limits_the_line_is_as_it_was(line: list[Claim], held: list[Claim]) -> None:
    line, held = ([replace(one, project="default") for one in some] for some in (line, held))
    found = look(line, held)
    ranked = sorted(line, key=lambda one: one.rank)
    assert found.order == ranked
    assert found.starts == ranked[: len(found.starts)]
