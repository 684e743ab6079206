"""The election, step by step on clocks that the test moves."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

import pytest

from hami_node.errors import Conflict, KubeError
from hami_node.extender.leading.leader import MAX_FOREIGN_DURATION_S, Leader, LeaseTimes
from hami_node.simulate.store import Json
from tests.fakes.clock import FakeClock, RealClock
from tests.fakes.leases import NAME, NAMESPACE, Hooks, StoreLeases
from tests.seeds import seeds

TIMES = LeaseTimes(duration_s=8.0, renew_deadline_s=6.0, retry_s=1.5)


@dataclass
class Recorder:
    """The calls of `on_change`."""

    changes: list[bool] = field(default_factory=list)


def replica(
    leases: StoreLeases, identity: str, clock: FakeClock, recorder: Recorder | None = None
) -> Leader:
    return Leader(
        leases,
        namespace=NAMESPACE,
        name=NAME,
        identity=identity,
        clock=clock,
        times=TIMES,
        on_change=(recorder or Recorder()).changes.append,
        jitter=lambda: 0.5,
    )


@pytest.fixture
def leases() -> StoreLeases:
    return StoreLeases()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def foreign(**changes: object) -> dict[str, object]:
    spec: dict[str, object] = {
        "holderIdentity": "other",
        "leaseDurationSeconds": 8,
        "acquireTime": "2027-01-01T00:00:00.000000Z",
        "renewTime": "2027-01-01T00:00:00.000000Z",
        "leaseTransitions": 3,
        **changes,
    }
    return {key: value for key, value in spec.items() if value is not ...}


# -- taking ----------------------------------------------------------------------------------------


def test_missing_lease_is_created(leases: StoreLeases, clock: FakeClock) -> None:
    recorder = Recorder()
    leader = replica(leases, "a", clock, recorder)
    assert not leader.is_leading()
    leader.step()
    assert leader.is_leading()
    assert (leader.holder(), recorder.changes) == ("a", [True])
    spec = leases.spec()
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("a", 8)
    assert spec["leaseTransitions"] == 0
    for key in ("acquireTime", "renewTime"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", spec[key])


def test_renewal_keeps_acquire_time_and_asks_once(leases: StoreLeases, clock: FakeClock) -> None:
    leader = replica(leases, "a", clock)
    leader.step()
    first = leases.spec()
    leases.calls.clear()
    for _ in range(5):
        clock.advance(TIMES.retry_s)
        leader.step()
    renewed = leases.spec()
    assert leases.calls == ["update"] * 5
    assert renewed["acquireTime"] == first["acquireTime"]
    assert renewed["renewTime"] > first["renewTime"]
    assert renewed["leaseTransitions"] == 0


def test_labels_and_unknown_fields_of_the_lease_are_kept(
    leases: StoreLeases, clock: FakeClock
) -> None:
    spec = {**foreign(holderIdentity=""), "strategy": "OldestEmulationVersion"}
    meta = {"name": NAME, "namespace": NAMESPACE, "labels": {"app": "x"}}
    leases.store.create("leases", NAMESPACE, {"metadata": meta, "spec": spec})
    replica(leases, "a", clock).step()
    stored = leases.store.read("leases", NAMESPACE, NAME)
    assert stored["metadata"]["labels"] == {"app": "x"}
    assert stored["spec"]["strategy"] == "OldestEmulationVersion"


def test_foreign_lease_is_taken_only_after_it_did_not_change_for_its_duration(
    leases: StoreLeases, clock: FakeClock
) -> None:
    leases.put(foreign(leaseDurationSeconds=5))
    leader = replica(leases, "a", clock)
    waited_s = 0.0
    while not leader.is_leading():
        wait_s = leader.step()
        if leader.is_leading():
            break
        assert 0 < wait_s <= 1.2 * TIMES.retry_s
        assert leader.holder() == "other"
        clock.advance(wait_s)
        waited_s += wait_s
    assert 5 <= waited_s < 5 + TIMES.retry_s
    assert leases.spec()["leaseTransitions"] == 4


def test_renewed_foreign_lease_is_never_taken_however_wrong_its_clock(
    leases: StoreLeases, clock: FakeClock
) -> None:
    leader = replica(leases, "a", clock)
    for number in range(60):
        leases.put(foreign(renewTime=f"1999-01-01T00:00:{number:02}.000000Z"))
        leader.step()
        clock.advance(7.9)
        leader.step()
        assert not leader.is_leading()


@pytest.mark.parametrize(
    ("spec", "left_s"),
    [
        (None, 0.0),
        ({}, 0.0),
        (foreign(holderIdentity=...), 0.0),
        (foreign(holderIdentity=None), 0.0),
        (foreign(holderIdentity=""), 0.0),
        (foreign(holderIdentity=7), 8.0),
        (foreign(holderIdentity={"a": 1}), 8.0),
        (foreign(leaseDurationSeconds=...), TIMES.duration_s),
        (foreign(leaseDurationSeconds="8"), TIMES.duration_s),
        (foreign(leaseDurationSeconds=True), TIMES.duration_s),
        (foreign(leaseDurationSeconds=-1), TIMES.duration_s),
        (foreign(leaseDurationSeconds=0), TIMES.duration_s),
        (foreign(leaseDurationSeconds=10**9), MAX_FOREIGN_DURATION_S),
        (foreign(leaseTransitions="x"), 8.0),
        (foreign(leaseTransitions=2**31 - 1), 8.0),
        (foreign(renewTime=..., acquireTime=...), 8.0),
    ],
    ids=repr,
)
def test_malformed_lease_is_taken_when_its_time_is_over(
    spec: object, left_s: float, leases: StoreLeases, clock: FakeClock
) -> None:
    leases.put(spec)
    leader = replica(leases, "a", clock)
    leader.step()
    if left_s:
        assert not leader.is_leading()
        clock.advance(left_s - 0.01)
        leader.step()
        assert not leader.is_leading()
        clock.advance(0.02)
        leader.step()
    assert leader.is_leading()
    taken = leases.spec()
    assert taken["holderIdentity"] == "a"
    assert 0 <= taken["leaseTransitions"] < 2**31


def test_lease_without_a_version_is_not_overwritten(
    leases: StoreLeases, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Versionless(StoreLeases):
        def read_lease(self, namespace: str, name: str) -> Json:
            return {**super().read_lease(namespace, name), "metadata": "?"}

    odd = Versionless(leases.store)
    odd.put({})
    leader = replica(odd, "a", clock)
    leader.step()
    assert not leader.is_leading()
    assert odd.calls == ["get"]
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == ["lease_not_renewed"]


# -- losing ----------------------------------------------------------------------------------------


def test_paused_replica_stops_believing_by_the_clock_alone(
    leases: StoreLeases, clock: FakeClock
) -> None:
    leader = replica(leases, "a", clock)
    leader.step()
    clock.advance(TIMES.renew_deadline_s - 0.01)
    assert leader.is_leading()
    clock.advance(0.02)
    assert not leader.is_leading()


def test_outage_ends_leadership_before_another_can_take_over(
    leases: StoreLeases, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, hooks = Recorder(), Hooks()
    first, second = (
        replica(leases.shared_by(hooks), "a", clock, recorder),
        replica(leases, "b", clock),
    )
    first.step()
    second.step()
    begin = clock.monotonic()

    def fail(_verb: str) -> None:
        raise KubeError("down", 503)

    hooks.before = fail
    ended: float | None = None
    next_first, next_second = clock.monotonic(), clock.monotonic()
    while not second.is_leading():
        if clock.monotonic() >= next_first:
            next_first = clock.monotonic() + first.step()
        if clock.monotonic() >= next_second:
            next_second = clock.monotonic() + second.step()
        assert not (first.is_leading() and second.is_leading())
        if ended is None and not first.is_leading():
            ended = clock.monotonic() - begin
        clock.advance(0.05)
    assert ended is not None
    assert ended <= TIMES.renew_deadline_s + 0.1
    assert clock.monotonic() - begin < 12
    assert recorder.changes == [True, False]
    levels = {r.message: r.levelname for r in caplog.records}
    assert levels["leader_lost"] == levels["lease_not_renewed"] == "WARNING"
    hooks.before = lambda _verb: None
    first.step()
    assert (first.is_leading(), first.holder()) == (False, "b")


def test_deleted_lease_is_made_again_by_its_holder_and_not_taken_by_others(
    leases: StoreLeases, clock: FakeClock
) -> None:
    first, second = replica(leases, "a", clock), replica(leases, "b", clock)
    first.step()
    second.step()
    leases.store.delete("leases", NAMESPACE, NAME)
    second.step()
    assert not second.is_leading()
    clock.advance(first.step())
    first.step()
    second.step()
    assert (first.is_leading(), second.holder()) == (True, "a")


def test_unexpected_errors_end_neither_loop_nor_election(
    leases: StoreLeases, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_verb: str) -> None:
        raise RuntimeError("bug")

    def refuse(_is_leading: bool) -> None:
        raise ValueError("listener")

    hooks = Hooks(before=fail)
    leader = Leader(
        leases.shared_by(hooks), namespace=NAMESPACE, name=NAME, identity="a", clock=clock,
        on_change=refuse,
    )  # fmt: skip
    assert 0 < leader.step() <= TIMES.retry_s
    leader.step()
    hooks.before = lambda _verb: None
    leader.step()
    assert leader.is_leading()
    assert [r.message for r in caplog.records if r.exc_info] == [
        "lease_not_renewed",
        "leader_change_not_handled",
    ]


# -- giving back -----------------------------------------------------------------------------------


def test_release_lets_the_other_take_over_within_two_retry_periods(
    leases: StoreLeases, clock: FakeClock
) -> None:
    recorder = Recorder()
    first, second = replica(leases, "a", clock, recorder), replica(leases, "b", clock)
    first.step()
    wait_s = second.step()
    first.release()
    assert (first.is_leading(), first.holder(), recorder.changes) == (False, "", [True, False])
    assert leases.spec()["holderIdentity"] == ""
    assert wait_s < 2 * TIMES.retry_s
    clock.advance(wait_s)
    second.step()
    assert second.is_leading()


def test_release_is_tried_again_and_leaves_the_lease_of_others_alone(
    leases: StoreLeases, clock: FakeClock
) -> None:
    hooks = Hooks()
    first, second = replica(leases.shared_by(hooks), "a", clock), replica(leases, "b", clock)
    first.step()
    failures = [KubeError("reset"), Conflict("409", 409)]

    def fail(_verb: str) -> None:
        if failures:
            raise failures.pop()

    hooks.before = fail
    first.release()
    assert leases.spec()["holderIdentity"] == ""
    first.step()
    clock.advance(TIMES.duration_s)
    second.step()
    clock.advance(TIMES.duration_s)
    second.step()
    first.release()
    assert leases.spec()["holderIdentity"] == "b"


def test_release_waits_for_what_the_next_leader_must_not_miss_and_no_longer_than_the_lease(
    leases: StoreLeases, clock: FakeClock
) -> None:
    leader, waited = replica(leases, "a", clock), list[tuple[float, str]]()

    def wait(limit_s: float) -> None:
        waited.append((limit_s, str(leases.spec()["holderIdentity"])))

    leader.await_sent = wait
    leader.step()
    clock.advance(1.0)
    assert leader.left_s() == TIMES.duration_s - 1.0
    leader.release()
    assert waited == [(TIMES.duration_s - 1.0, "a")]
    assert leases.spec()["holderIdentity"] == ""
    assert leader.left_s() == 0.0


# -- all together ----------------------------------------------------------------------------------


class TrueTime:
    """One true time; each replica's clock is wrong in its own way."""

    def __init__(self) -> None:
        self.time_s = 0.0


@dataclass
class SkewedClock(RealClock):
    """Other start and other wall time than the rest, and 1 % too fast or slow."""

    world: TrueTime
    offset_s: float
    rate: float

    def now(self) -> float:
        return 1_800_000_000.0 + self.offset_s + self.world.time_s * self.rate

    def monotonic(self) -> float:
        return 50.0 + abs(self.offset_s) + self.world.time_s * self.rate


class Contest:
    """Replicas that step, stall inside of calls, fail, conflict, stop and come back."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world, self.store = TrueTime(), StoreLeases()
        self.replicas: dict[str, Leader] = {}
        self.due: dict[str, float] = {}
        self.busy: set[str] = set()
        self.leaders: list[str] = []
        self.led_s = 0.0
        for name in "abc":
            self.join(name)

    def join(self, name: str) -> None:
        offset_s, rate = self.random.uniform(-1e6, 1e6), self.random.uniform(0.99, 1.01)
        hooks = Hooks(before=lambda _: self.trouble(name), after=lambda _: self.trouble(name))
        self.replicas[name] = Leader(
            self.store.shared_by(hooks), namespace=NAMESPACE, name=NAME, identity=name,
            clock=SkewedClock(self.world, offset_s, rate), jitter=self.random.random,
        )  # fmt: skip
        self.due[name] = self.world.time_s + self.random.uniform(0, 2)

    def trouble(self, name: str) -> None:
        dice = self.random.random()
        if dice < 0.04:
            self.run_for(self.random.uniform(0, 14))  # this one stalls, the others go on
        elif dice < 0.10:
            raise self.random.choice([KubeError("lost"), KubeError("x", 500), Conflict("c", 409)])

    def run_for(self, seconds: float) -> None:
        end = self.world.time_s + seconds
        while self.world.time_s < end:
            self.check()
            for name in self.random.sample("abc", 3):
                if name not in self.busy and self.due[name] <= self.world.time_s:
                    self.take_turn(name)
                    self.check()
            self.world.time_s += 0.1

    def take_turn(self, name: str) -> None:
        self.busy.add(name)
        dice = self.random.random()
        if dice < 0.01:
            self.replicas[name].release()
            self.due[name] = self.world.time_s + self.random.uniform(0, 10)
        elif dice < 0.02:
            self.join(name)  # killed and started again
        else:
            self.due[name] = self.replicas[name].step() + self.world.time_s
            if self.random.random() < 0.02:
                self.due[name] += self.random.uniform(0, 20)  # the process is paused
        self.busy.discard(name)

    def check(self) -> None:
        leading = [name for name, replica in self.replicas.items() if replica.is_leading()]
        assert len(leading) <= 1, f"{leading} lead at {self.world.time_s:.1f} s"
        self.led_s += 0.1 * len(leading)
        if leading and self.leaders[-1:] != leading:
            self.leaders += leading


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_never_two_lead_whatever_happens(seed: int) -> None:
    contest = Contest(seed)
    contest.run_for(1_500)
    assert len(contest.leaders) > 10
    assert set(contest.leaders) == set("abc")
    assert contest.led_s > 700


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("duration_s", "deadline_s", "retry_s"), [(6, 6, 1), (8, 9, 1), (8, 6, 6), (8, 6, 0)]
)
def test_times_with_which_two_could_lead_are_refused(
    duration_s: float, deadline_s: float, retry_s: float
) -> None:
    with pytest.raises(ValueError, match="must hold"):
        LeaseTimes(duration_s=duration_s, renew_deadline_s=deadline_s, retry_s=retry_s)


def test_empty_identity_is_refused(leases: StoreLeases, clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="nobody"):
        replica(leases, "", clock)


# -- terms -----------------------------------------------------------------------------------------


def test_renewal_after_a_pause_begins_a_new_term_though_nobody_else_led(
    leases: StoreLeases, clock: FakeClock
) -> None:
    recorder = Recorder()
    leader = replica(leases, "a", clock, recorder)
    leader.step()
    clock.advance(TIMES.renew_deadline_s)
    assert leader.term() == 0
    leader.step()
    assert (leader.term(), recorder.changes) == (2, [True, False, True])


def test_renewal_that_is_answered_too_late_leads_only_in_a_new_term(
    leases: StoreLeases, clock: FakeClock
) -> None:
    hooks, recorder = Hooks(), Recorder()
    leader = replica(leases.shared_by(hooks), "a", clock, recorder)
    leader.step()
    hooks.after = lambda _verb: clock.advance(30.0)
    clock.advance(TIMES.retry_s)
    leader.step()
    assert leader.term() == 0
    hooks.after = Hooks().after
    leader.step()
    assert (leader.term(), recorder.changes) == (2, [True, False, True])


def test_renewals_in_time_are_one_term(leases: StoreLeases, clock: FakeClock) -> None:
    leader = replica(leases, "a", clock)
    for _ in range(10):
        leader.step()
        clock.advance(TIMES.retry_s)
    assert leader.term() == 1
