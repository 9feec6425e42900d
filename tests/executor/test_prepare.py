"""From plans to what is started: which plans are executed in which folders, their configurations, and the start."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rlplan.executor import prepare as prepare_module
from rlplan.executor import session
from rlplan.executor.configuration import configuration, kv_bytes
from rlplan.executor.engines.messages import SamplingRules
from rlplan.executor.execute import execute
from rlplan.executor.groups.group_change import MoveRequest, take_request, write_request
from rlplan.executor.placement.actor_placer import NodeNews
from rlplan.executor.placement.run_placement import DoesNotFit
from rlplan.executor.prepare import Options, PlanSwitch, history_of, placement_of, prepare
from rlplan.executor.records.execution_folder import begin_folder
from rlplan.executor.records.run_record import Recorder, excluded_nodes
from rlplan.executor.records.trackers import Trackers
from rlplan.executor.session import NotStarted, Session
from rlplan.plans.schema.levers import RoundPrefix, RoundTail
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.plans.yaml.yaml_io import sha256_file

from .tiny_job import APART, make_plan, train_apart, write_job, write_plan
from .virtual_loop import played

MODEL = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip


@pytest.fixture
def job(tmp_path):
    """A job's folder, and `plan(name, change)`, which writes a plan of it that `change` has edited."""
    model, folder = tmp_path / "model", tmp_path / "job"
    for each in (model, folder):
        each.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL))
    write_job(folder, model, cluster=APART)

    def plan(name="plan", change=lambda plan: None, **sizes):
        document = train_apart(make_plan(folder, **sizes))
        change(document)
        return write_plan(document, folder / f"{name}.yaml")

    return SimpleNamespace(folder=folder, plan=plan, out=tmp_path / "out")


def test_one_plan_runs_in_its_folder_and_several_each_in_their_own(job):
    one, two = job.plan("one"), job.plan("two")
    (alone,) = prepare([one], job.out, False)
    assert (alone.name, alone.run_dir, alone.plan_path) == ("one", job.out, one) and not job.out.exists()
    both = prepare([one, two], job.out, False)
    assert [each.run_dir for each in both] == [job.out / "one", job.out / "two"]
    assert (alone.pool.cores, alone.train_pool is alone.pool, alone.plan.job.name) == (1, False, "tiny")
    placement = placement_of(both)
    assert placement.trainers.keys() == {"one", "two"} and placement.nodes_in_use().keys() == {0, 1}
    with pytest.raises(InputError, match="two plans have the same file name"):
        prepare([one, job.folder / "more" / "one.yaml"], job.out, False)
    with pytest.raises(InputError, match="holds no run to resume"):
        prepare([one], job.out, True)


def test_each_fault_of_each_plan_is_told_at_once(job, monkeypatch):
    def change(plan):
        plan["job"]["rounds"]["long"]["train"]["dp"] = 2

    plans = job.plan("one", change), job.plan("two", change)
    with pytest.raises(InputError) as caught:
        prepare(plans, job.out, True)
    said = "\n".join(caught.value.lines())
    assert "one.yaml:" in said and "two.yaml:" in said and said.count("holds no run to resume") == 2

    def none(plans, pools):
        raise DoesNotFit("3 engines need 3 devices")

    executions = prepare([job.plan("plan")], job.out, False)
    monkeypatch.setattr(prepare_module, "run_placement", none)
    with pytest.raises(InputError, match=r"plan.yaml: 3 engines need 3 devices; solve again for this cluster"):
        placement_of(executions)


def test_a_run_begins_with_anothers_history_if_it_drafts(job, monkeypatch):
    monkeypatch.setattr(prepare_module, "saved_history", lambda run: run / "step-000003")
    plain = prepare([job.plan("plain")], job.out, False)

    def change(plan):
        plan["job"]["rounds"]["long"]["rollout"]["drafts"] = {"source": "history", "tokens": 4, "up_to_sequences": 8}

    drafted = prepare([job.plan("drafted", change)], job.out, False)
    assert history_of(Path("other"), drafted, False) == Path("other/step-000003")
    with pytest.raises(InputError, match="--resume goes on with what the run itself remembers"):
        history_of(Path("other"), drafted, True)
    with pytest.raises(InputError, match=r"plain.yaml: none of its rounds decodes with drafts"):
        history_of(Path("other"), plain, False)


def test_a_plans_decisions_are_those_of_its_parts(job):
    def change(plan):
        long = plan["job"]["rounds"]["long"]
        long["rollout"]["max_num_seqs"] = 48
        long["rollout"]["prefix"] = {"block_tokens": 16, "tokens_per_sample": 40}
        long["train"]["micro_batch_tokens"] = 512
        plan["job"]["reward"]["deadline_s"] = 4.0

    executions = prepare([job.plan("one", change), job.plan("two")], job.out, False)
    first, plans = executions[0], [each.plan.job for each in executions]
    found = configuration(plans, first.checked.job, first.checked.paths, first.pool, first.train_pool)
    fleet, trainer, run = found.fleet, found.trainers[0], found.runs[0]
    assert (fleet.max_num_seqs, fleet.max_model_len, fleet.device, fleet.draft_tokens) == (48, 56, "cpu", 0)
    assert fleet.kv_memory_bytes_per_accelerator == 100_000_000 and fleet.model_path.endswith("model")
    assert found.rewards == {"function": (1, 5.0)} and found.judge is None
    assert (trainer.ranks, trainer.threads, trainer.samples_per_prompt, trainer.temperature) == (1, 1, 2, 1.0)
    assert (trainer.divisors, trainer.update.micro_batch_tokens, trainer.dtype) == ((8, 240, 48), 256, "float32")
    assert (run.mode, run.checksum_every, run.streams) == ("exact", 2, False)
    short, long = run.of_round("short"), run.of_round("long")
    assert run.of_round("another") is short
    assert (short.rollout.max_num_seqs, long.rollout.max_num_seqs) == (32, 48)
    assert (short.rollout.prefix, long.rollout.prefix) == (None, RoundPrefix(block_tokens=16, tokens_per_sample=40))
    assert run.update_of("long").micro_batch_tokens == 512 and run.update_of("another") == run.update_of("short")
    assert (run.spec.short_prompts, run.spec.cutoff_tokens, run.spec.max_tokens) == (7, 30, 48)
    assert short.layouts == (short.rollout.layout,) and (short.change, long.change) == (None, None)
    # 2 (K and V) x 2 layers x 2 heads of 32 x 4 bytes: 1024 of each token, and half as many on each of two ranks.
    assert fleet.kv_bytes == {1: 1024 * 1024}

    def with_kv(kind, **rollout):
        return kind.model_copy(update={"rollout": kind.rollout.model_copy(update=rollout)})

    of_two = with_kv(short, tp=2, kv_tokens=512)
    assert kv_bytes([short, with_kv(long, kv_tokens=2048), of_two], fleet.model_path, "float32") == {
        1: 2048 * 1024, 2: 512 * 512,
    }  # fmt: skip
    assert kv_bytes([short, with_kv(long, kv_tokens=None)], fleet.model_path, "float32") == {}, "as all engines of TP 1"
    tail = long.model_copy(update={"tail": RoundTail(engines=1, tp=2, at_finished=0.5)})
    assert [(layout.tp, layout.engines) for layout in tail.layouts] == [(1, 1), (2, 1)]
    assert kv_bytes([tail], fleet.model_path, "float32") == {1: 1024 * 1024}, "a tail's engines have all that is free"


def test_a_reward_function_that_cannot_be_called_is_refused_at_its_line(job):
    plan = job.plan("plan")
    (job.folder / "my_reward.py").write_text("def score(args, sample):\n    return 1.0\n")
    with pytest.raises(InputError, match=r"reward.function: 'my_reward:score' takes \(args, sample\)") as caught:
        prepare([plan], job.out, False)
    assert caught.value.path.endswith("job.yaml") and caught.value.line is not None


class Parts:
    """What an execution starts, each part of which notes in `log` what is done with it."""

    def __init__(self, monkeypatch, fails=None):
        self.log, self.fails, self.made = [], fails, {}
        names = (
            "start_ray", "Fleet", "device_ledger", "DeviceTurns", "ActorPlacer", "check_shared", "load_prompts",
            "load_tokenizer", "try_functions", "RoundRunner", "TrainingRun", "TrainerGroup", "take_turns", "Leaving",
            "MemberPhases", "membership",
        )  # fmt: skip
        for name in names:
            monkeypatch.setattr(session, name, getattr(self, name, None) or self.part(name))
        of_job = lambda *arguments, **options: self.part("rewards")(*arguments, **options)  # noqa: E731
        monkeypatch.setattr(session, "RewardSum", SimpleNamespace(of_job=of_job))
        monkeypatch.setattr(session, "store_lack", lambda tokens: None)

    def part(self, name):
        def make(*arguments, **options):
            async def does(what):
                self.log.append(f"{name}.{what}")
                if what == self.fails:
                    raise RuntimeError(f"{what} fails")

            part = SimpleNamespace(
                arguments=arguments, options=options, name=f"{name}-0", bounded=False, engines=[], nodes=[],
                excluded=options.get("excluded"), spare=lambda hear: self.log.append(f"{name}.spare"),
                start=lambda *a, **o: does("start"), open=lambda own: does(f"open own={own}"),
                notes=lambda: ["no cgroups"], only=lambda names: (name, names), all_engines=lambda: [part],
                event=lambda event, **fields: self.log.append((event, fields)), checkpoints=SimpleNamespace(notes=[]),
                drafts=SimpleNamespace(inherit=lambda path, ids: self.log.append(("inherit", path)), store=None),
            )  # fmt: skip
            part.close = (lambda: self.log.append(f"{name}.close")) if name == "ActorPlacer" else lambda: does("close")
            self.made[name] = part
            return part

        return make

    def start_ray(self, tokens):
        return True

    def load_tokenizer(self, path):
        return SimpleNamespace(decode=lambda tokens, skip_special_tokens: "text")

    def load_prompts(self, path, tokenizer, max_prompt_tokens, reward, template):
        return {name: SimpleNamespace(text="", answer=None, sources=()) for name in ("p0", "p1")}

    async def check_shared(self, folder, nodes):
        self.log.append(("shared", folder))

    def membership(self, permits):
        parts = self

        class Membership:
            async def __aenter__(self):
                parts.log.append("joins")

            async def __aexit__(self, *_):
                parts.log.append("leaves")

        return Membership()

    async def take_turns(self, runs, options, watcher, drain, speed, plans):
        self.log.append(("turns", options.steps))
        tell = self.made["ActorPlacer"].options["tell"]
        tell(NodeNews("node_lost", 1, "10.0.0.1"))
        tell(NodeNews("node_back", 1, "10.0.0.2"))
        return True


class Watcher:
    def __init__(self, log):
        self.phase = lambda text: log.append(text)
        self.note = lambda text: log.append(f"note: {text}")


def executed(job, parts, monkeypatch, member=None, **options):
    monkeypatch.setattr(asyncio, "run", played)
    executions = prepare([job.plan("one"), job.plan("two")], job.out, False)
    monkeypatch.setattr(session, "begin_folder", lambda run, plan, resume: parts.log.append(("begin", run.name)))
    return execute(executions, Options(steps=7, **options), Watcher(parts.log), member)


def test_an_execution_starts_all_parts_and_ends_them_in_order(job, monkeypatch):
    parts = Parts(monkeypatch)
    assert executed(job, parts, monkeypatch, history=job.folder / "step-000003", stall_s=9.0) is True
    words = [entry for entry in parts.log if isinstance(entry, str)]
    assert words == [
        "starting Ray", "Fleet.spare", "reserving devices", "ActorPlacer.open own=True",
        "starting reward workers, trainers and engines Fleet-0", "rewards.start", "DeviceTurns.start",
        "TrainingRun.start", "TrainingRun.start", "note: no cgroups", "joins", "note: node 10.0.0.1: lost",
        "note: node 10.0.0.2: in its place, or back", "stopping", "TrainingRun.close", "TrainingRun.close",
        "rewards.close", "Fleet.close", "ActorPlacer.close", "leaves",
    ]  # fmt: skip
    events = [entry for entry in parts.log if isinstance(entry, tuple)]
    assert events == [
        *[("inherit", job.folder / "step-000003")] * 2, ("shared", job.out / "one"), ("shared", job.out / "two"),
        ("begin", "one"), ("begin", "two"), *[("sandbox_lacks", {"reason": "no cgroups"})] * 2, ("turns", 7),
        *[("node_lost", {"node": 1, "address": "10.0.0.1"})] * 2,
        *[("node_back", {"node": 1, "address": "10.0.0.2"})] * 2,
    ]  # fmt: skip
    made = parts.made
    assert (
        made["RoundRunner"].options == {"temperature": 1.0, "rules": SamplingRules(), "stall_s": 9.0}
        and made["Fleet"].options["placer"]
    )
    assert made["RoundRunner"].arguments[3]([1]) == "text" and made["TrainerGroup"].arguments[0] == "two"
    assert made["TrainingRun"].options["prompt_ids"] == ["p0", "p1"] and made["TrainingRun"].options["permits"] is None
    train_pool, where = made["device_ledger"].arguments[3:5]
    assert train_pool.cores == 1 and where["trainer two"] == ["core 0 of node 1"]
    assert made["device_ledger"].options == {"shared": False} and made["ActorPlacer"].options["given"] == ()


def test_an_excluded_node_is_told_and_carried_into_a_resumed_run(job, monkeypatch):
    parts, address, ended = Parts(monkeypatch), "10.0.0.1", []
    engine = SimpleNamespace(name="rollout-tp1-0", leave_node=ended.append)

    async def opened(own):
        placer = parts.made["ActorPlacer"]
        placer.runs_on = lambda name, number: (name, number) == (engine.name, 1)
        parts.made["Fleet"].all_engines = lambda: [engine]
        placer.options["tell"](NodeNews("node_excluded", 1, address, "2 failures there"))

    make = parts.part
    monkeypatch.setattr(
        session, "ActorPlacer", lambda *given, **options: vars(made := make("ActorPlacer")(*given, **options)).update(
            open=opened) or made
    )  # fmt: skip
    executed(job, parts, monkeypatch)
    told = ("node_excluded", {"node": 1, "address": address, "reason": "2 failures there"})
    assert parts.log.count(told) == 2 and parts.log.index(told) > parts.log.index("TrainingRun.start")
    assert ended == [f"its node {address} is excluded"]

    for number in (1, 2):
        recorder = Recorder(job.out, Trackers((), job.out, "run", [].append))
        recorder.event("node_excluded", 0.0, node=number, address=f"10.0.0.{number}", reason="2 failures there")
        recorder.close()
    assert excluded_nodes(job.out) == dict.fromkeys((address, "10.0.0.2"), "2 failures there")
    recorder = Recorder(job.out, Trackers((), job.out, "run", [].append))
    recorder.event("node_readmitted", 1.0, address=address)
    recorder.close()
    assert [*excluded_nodes(job.out)] == ["10.0.0.2"] and excluded_nodes(job.out / "none") == {}


def test_nodes_that_come_in_are_compared_and_those_that_lack_are_told(job, monkeypatch):
    parts, compared = Parts(monkeypatch), []

    async def same_models(model, nodes):
        compared.append((Path(model).name, nodes))

    async def opened(own):
        options = parts.made["ActorPlacer"].options
        await options["fits"](["one", "another"])
        options["tell"](NodeNews("node_lost", 1, "10.0.0.1", "excluded, and no other has room in its place"))

    make = parts.part
    monkeypatch.setattr(session, "same_models", same_models)
    monkeypatch.setattr(
        session, "ActorPlacer", lambda *given, **options: vars(made := make("ActorPlacer")(*given, **options)).update(
            open=opened) or made
    )  # fmt: skip
    executed(job, parts, monkeypatch, unsafe_versions=True)
    assert compared == [(compared[0][0], ["one", "another"]), (compared[0][0], [])]
    assert "note: node 10.0.0.1: excluded, and no other has room in its place" in parts.log


@pytest.mark.parametrize("damage", ['"addr', '"address":"10.0.0.1"}'], ids=["torn", "lacks its reason"])
def test_a_damaged_line_of_an_excluded_node_is_named_at_resume(tmp_path, damage):
    line = '{"event":"node_excluded","t_s":1.0,'
    (tmp_path / "trace.jsonl").write_text(f'{{"event":"step","t_s":0.0}}\n{line}{damage}\n')
    with pytest.raises(InputError, match=r"not a trace event .*; restore the file or cut it here") as caught:
        excluded_nodes(tmp_path)
    assert (caught.value.path, caught.value.line) == (str(tmp_path / "trace.jsonl"), 2)


def test_prompts_that_are_held_out_are_evaluated_and_not_trained(job, monkeypatch):
    parts, file = Parts(monkeypatch), job.folder / "job.yaml"
    told = yaml.safe_load(file.read_text())
    told["data"]["held_out"], told["evaluate"] = 1, {"every_steps": 2, "rewards": ["function"]}
    file.write_text(yaml.safe_dump(told, sort_keys=False))
    prompt = SimpleNamespace(text="", answer=None, tokens=(1,), sources=())
    monkeypatch.setattr(session, "load_prompts", lambda *_, **__: {"p0": prompt, "p1": prompt})
    executed(job, parts, monkeypatch)
    options = parts.made["TrainingRun"].options
    ((trained,), evaluated) = options["prompt_ids"], options["evaluator"]._prompts
    assert {trained, *evaluated} == {"p0", "p1"} and len(evaluated) == 1
    assert options["evaluator"].runner.arguments[1] == ("rewards", ("function",))
    assert "note: data.held_out: 1 of 2 prompts are not trained on" in parts.log


def test_a_member_of_a_group_has_its_nodes_and_turns(job, monkeypatch):
    parts = Parts(monkeypatch)
    member = SimpleNamespace(permits="permits", leased=("n1", "n2"), engine_units=lambda placement: "units")
    assert executed(job, parts, monkeypatch, member)
    assert parts.made["ActorPlacer"].options["given"] == ("n1", "n2")
    assert parts.made["device_ledger"].options == {"shared": True}
    group = parts.made["MemberPhases"]
    assert group.arguments[0] == "permits" and group.arguments[2] == "units"
    assert parts.made["TrainingRun"].options["permits"] is group


def test_an_execution_that_fails_to_start_ends_what_was_started(job, monkeypatch):
    parts = Parts(monkeypatch, fails="start")
    with pytest.raises(RuntimeError, match="start fails"):
        executed(job, parts, monkeypatch)
    closed = ["TrainingRun.close", "TrainingRun.close", "rewards.close", "Fleet.close", "ActorPlacer.close"]
    assert [entry for entry in parts.log if str(entry).endswith(".close")] == closed and "leaves" not in parts.log


# -- another plan while the run goes on --------------------------------------------------------------------------------


def cutoff_20(plan):
    plan["job"]["rounds"]["short"]["cutoff_tokens"] = 20


def trained_otherwise(plan):
    plan["job"]["rounds"]["long"]["train"]["micro_batch_tokens"] = 512


@pytest.fixture
def going(job, monkeypatch):
    """A session of a run at its first checkpoint, and `asked(plan)`, what it does about a request for a plan."""
    parts = Parts(monkeypatch)
    first = job.plan("first")
    begin_folder(job.out, first.read_bytes(), resume=False)
    (job.out / "checkpoints" / "step-000003").mkdir(parents=True)
    (job.out / "trace.jsonl").write_text('{"event":"run","t_s":0.0,"name":"first"}\n')
    watcher = Watcher(parts.log)
    watcher.plan_changed = lambda name, plan: parts.log.append(("changed", name))
    going = Session(prepare([first], job.out, True), Options(steps=7, resume=True), watcher, None, 0.0)
    run = parts.made["TrainingRun"]
    run.name = "first"
    run.take_plan = lambda planned, *_: parts.log.append(("takes", planned.rounds.short.cutoff_tokens))
    run.tell_change = lambda change, plan: parts.log.append(("told", plan, list(change.changes)))

    def asked(plan, sha256=None):
        write_request(job.out, MoveRequest("r1", str(plan), sha256 or sha256_file(plan)))
        parts.log.clear()
        return played(going.between_steps(run)), parts.log

    return asked


def test_a_plan_that_changes_rounds_alone_is_taken_in_place(job, going):
    switch, log = going(job.plan("second", cutoff_20))
    assert switch is None
    assert log == [
        ("takes", 20), ("told", "../job/second.yaml", ["rounds.short.cutoff_tokens"]), ("changed", "first"),
    ]  # fmt: skip


@pytest.mark.parametrize("change", [trained_otherwise, lambda plan: plan["job"]["loss"].update(tokens=200)])
def test_a_plan_that_needs_other_parts_is_left_to_another_session(job, going, change):
    switch, log = going(job.plan("third", change))
    assert switch is not None, log
    assert switch.request_id == "r1" and switch.execution.plan_path.name == "third.yaml"
    assert switch.execution.name == "first" and not [each for each in log if isinstance(each, tuple)]


@pytest.mark.parametrize(
    ("plan", "sha256", "reason"),
    [
        ("first", None, "it is the plan in force"),
        ("second", "0" * 64, "changed after it was applied; apply it again"),
        ("fourth", None, "never split; write at least"),
        ("none", "0" * 64, "no such"),
    ],
)
def test_a_plan_that_cannot_be_taken_is_refused(job, going, plan, sha256, reason):
    def unfit(document):
        document["job"]["rounds"]["long"]["train"]["micro_batch_tokens"] = 8

    job.plan("second", cutoff_20), job.plan("fourth", unfit)
    switch, log = going(job.folder / f"{plan}.yaml", sha256)
    assert switch is None
    note, (event, fields) = log
    assert note.startswith("note: ") and reason in note and event == "plan_refused" and fields["id"] == "r1"


class Sessions:
    """Sessions one after another: each returns what `ends` has for it, or raises it."""

    def __init__(self, job, monkeypatch, *ends):
        self.calls, self.changed, self.ends, self.job = [], [], list(ends), job
        monkeypatch.setattr(session, "run_session", self.run_session)

    async def run_session(self, executions, options, watcher, member, began_s, refusal):
        self.calls.append((executions[0].plan_path.name, options.resume, refusal and refusal.reason))
        if not self.job.out.joinpath("plan.yaml").exists():
            begin_folder(self.job.out, executions[0].text, resume=False)
            (self.job.out / "checkpoints" / "step-000003").mkdir(parents=True)
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return (
            end if isinstance(end, bool) else PlanSwitch(*(prepare([each], self.job.out, True)[0] for each in end), "r")
        )

    def execute(self, first):
        (before,) = prepare([first], self.job.out, False)
        watcher = SimpleNamespace(plan_changed=lambda name, plan: self.changed.append(plan.job.rounds.long.train))
        return execute([before], Options(steps=7), watcher)


def test_a_plan_that_cannot_be_started_leaves_the_one_in_force(job, monkeypatch):
    first, taken, second = job.plan("first"), job.plan("taken", cutoff_20), job.plan("second", trained_otherwise)
    # The plan `taken` was taken in place meanwhile.
    sessions = Sessions(job, monkeypatch, (second, taken), NotStarted(RunFailed("no node has room")), True)
    assert sessions.execute(first) is True
    assert sessions.calls == [
        ("first.yaml", False, None), ("second.yaml", True, None), ("taken.yaml", True, "no node has room"),
    ]  # fmt: skip
    assert [train.micro_batch_tokens for train in sessions.changed] == [512, 256]


def test_a_run_that_fails_by_its_new_plan_has_failed(job, monkeypatch):
    first, second = job.plan("first"), job.plan("second", trained_otherwise)
    sessions = Sessions(job, monkeypatch, (second, first), RunFailed("training is lost"))
    with pytest.raises(RunFailed, match="training is lost"):
        sessions.execute(first)
    assert len(sessions.calls) == 2


def test_a_start_that_fails_has_failed(job, monkeypatch):
    sessions = Sessions(job, monkeypatch, NotStarted(RunFailed("no node has room")))
    with pytest.raises(RunFailed, match="no node has room"):
        sessions.execute(job.plan("first"))


def test_requests_that_nobody_waits_for_are_dropped(job, monkeypatch):
    first = job.plan("first")
    job.out.mkdir()
    write_request(job.out, MoveRequest("old", str(first), sha256_file(first)))
    assert Sessions(job, monkeypatch, True).execute(first) is True
    assert take_request(job.out) is None


def test_runs_that_take_turns_and_members_refuse_plans(job, monkeypatch):
    parts = Parts(monkeypatch)
    watcher = Watcher(parts.log)
    going = Session(prepare([job.plan("one"), job.plan("two")], job.out, False), Options(steps=7), watcher, None, 0.0)
    (job.out / "two").mkdir(parents=True)
    write_request(job.out / "two", MoveRequest("r1", "three.yaml", "0" * 64))
    run = parts.made["TrainingRun"]
    run.name = "two"
    assert played(going.between_steps(run)) is None
    assert parts.log[-1][0] == "plan_refused" and "takes turns with others" in parts.log[-1][1]["reason"]
