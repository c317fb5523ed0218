"""`hf-rlhf data` against a scripted server: what is written, dropped, refused and continued."""

import json
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_rlhf.config import dump_yaml
from hf_rlhf.errors import ConfigError, JudgeError, RunFolderError
from hf_rlhf.testing.scripted_server import Reply, ScriptedServer
from hf_rlhf_classic.data.preference import preference
from hf_rlhf_lab.feedback import command
from hf_rlhf_lab.feedback.command import data
from hf_rlhf_lab.feedback.synthetic_sft import unusable
from hf_rlhf_lab.feedback.texts import read_rubric

BLOCK = re.compile(r"<(\w+)-[0-9a-f]{16}>\n(.*?)\n</", re.DOTALL)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch, few_resamples):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_RLHF_CACHE", str(tmp_path / "cache"))


def blocks(request):
    return dict(BLOCK.findall(request.body["messages"][1]["content"]))


def verb(name, server, rows, **settings):
    """Run a verb on rows against a server; return its report, rows and rejects."""
    Path("in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    client = {"model": "scripted", "base_url": server.base_url, "retries": 1}
    who = {"ai_feedback": "annotator", "synthetic_sft": "writer", "rubric_grades": "grader"}[name]
    dataset = {"name": "graded_rows", "path": "in.jsonl"}
    content = {"dataset": dataset, who: {**client, **settings.pop(who, {})}, **settings}
    Path("file.yaml").write_text(dump_yaml(content))
    assert data([name, "file.yaml", "--out", "out"]) == 0
    return [json.loads(Path("out/report.json").read_text()), *written()]


def written():
    paths = (Path("out/rows.jsonl"), Path("out/rejected.jsonl"))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


@pytest.fixture(autouse=True)
def _adapter(offer):
    from datasets import Dataset, DatasetDict

    def graded_rows(path: str):
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
        return DatasetDict(train=Dataset.from_list(rows))

    offer("datasets", graded_rows=graded_rows)


PAIRS = [{"prompt": f"p{n}", "responses": ["short", "longer " * (n % 7 + 2)]} for n in range(40)]


def choice(letter, reason="because"):
    return json.dumps({"reason": reason, "choice": letter})


def longer(request):
    shown = blocks(request)
    return choice("A" if len(shown["candidate_a"]) > len(shown["candidate_b"]) else "B")


def test_pairs_are_judged_in_both_orders_and_disagreement_is_dropped():
    def judge(request):
        return choice("A") if blocks(request)["context"] in ("p3", "p4") else longer(request)

    with ScriptedServer(judge) as server:
        report, rows, rejects = verb("ai_feedback", server, PAIRS)
    assert len(server.requests) == 80
    assert len(rows) == 38
    assert all(row["chosen"].startswith("longer") for row in rows)
    assert rows[0]["reasons"] == ["because", "because"]
    assert [each["prompt"] for each in rejects] == ["p3", "p4"]
    assert report["rejected"] == {"the two orders disagree": 2}
    assert report["first"]["mean"] == pytest.approx(42 / 80)
    assert report["longer_chosen"]["mean"] == 1
    assert report["usage"]["annotator"]["requests"] == 80
    tokenizer = SimpleNamespace(chat_template=None)
    train = preference("out/rows.jsonl", tokenizer=tokenizer, test_rows=0).dataset["train"]
    assert len(train) == 38
    assert train[0]["chosen"].strip().startswith("longer")


def by_chance(share):
    """Answer by the length in a share of the pairs, and the first response or by chance else."""

    def answer(request):
        shown = blocks(request)
        number = int(shown["context"][1:])
        if number < 40 * share:
            return longer(request)
        look = random.Random(f"{number}{len(shown['candidate_a']) > len(shown['candidate_b'])}")
        return choice(look.choice("AB"))

    return answer


def contradicts(request):
    number = int(blocks(request)["context"][1:])
    first = len(blocks(request)["candidate_a"]) > len(blocks(request)["candidate_b"])
    return choice("AB"[(number + (not first and number % 5 == 0)) % 2])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda request: choice("A"), r"shown first in 100% \[100%, 100%\] of 80 answers"),
        (
            by_chance(0.3),
            r"same response in both orders in \d+% .* of 40 pairs; .*min_agreement 50%",
        ),
        (contradicts, "min_agreement"),
    ],
)
def test_an_annotator_that_answers_by_position_or_by_chance_is_refused(answer, message):
    with ScriptedServer(answer) as server, pytest.raises(JudgeError, match=message):
        verb("ai_feedback", server, PAIRS)
    assert not Path("out/rows.jsonl").exists()


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        ("I prefer the first.", "malformed"),
        (Reply('{"reason": "it', finish_reason="length"), "cut off"),
        (Reply(status=500, body=b"oops"), "not answered"),
    ],
)
def test_an_annotator_without_usable_answers_is_refused_with_the_cause(reply, cause):
    with (
        ScriptedServer(always=Reply(reply) if isinstance(reply, str) else reply) as server,
        pytest.raises(JudgeError, match=rf"20 of 20 rows \(100%\) .*20 {cause}"),
    ):
        verb("ai_feedback", server, PAIRS[:20], annotator={"retries": 0})


def test_a_malformed_answer_is_repaired_once():
    script = [Reply("A, I think."), *["ok"] * 10]
    with ScriptedServer(longer, script=script) as server:
        _, rows, _ = verb("ai_feedback", server, PAIRS[:2])
    assert len(rows) == 2
    repairs = [r for r in server.requests if len(r.body["messages"]) == 4]
    assert "no JSON object" in repairs[0].body["messages"][3]["content"]


def test_a_killed_command_continues_and_requests_nothing_twice():
    calls = []

    def until_killed(request):
        calls.append(request)
        if len(calls) == 230:  # in the second part
            return Reply(status=401, body=b'{"error": {"message": "no credit"}}')
        return longer(request)

    rows = [{"prompt": f"p{n}", "responses": ["short", f"longer {n}"]} for n in range(150)]
    with ScriptedServer(until_killed) as server, pytest.raises(JudgeError):
        verb("ai_feedback", server, rows, annotator={"max_concurrency": 1})
    with ScriptedServer(longer, port=server.port) as again:
        _, kept, _ = verb("ai_feedback", again, rows)
    assert len(kept) == 150
    assert len(again.requests) == 300 - 229


def test_a_folder_of_other_settings_is_refused():
    with ScriptedServer(longer) as server:
        verb("ai_feedback", server, PAIRS)
        with pytest.raises(RunFolderError, match="temperature"):
            verb("ai_feedback", server, PAIRS, annotator={"temperature": 0.5})
        assert data(["ai_feedback", "file.yaml", "--out", "out", "--overwrite"]) == 0


def test_responses_are_sampled_from_a_server_by_two_seeds():
    def answer(request):
        if "candidate_a" in str(request.body):
            return longer(request)
        return "one" if request.body["seed"] == 0 else "another one"

    with ScriptedServer(answer) as server:
        policy = {"model": "scripted", "base_url": server.base_url}
        _, rows, _ = verb("ai_feedback", server, [{"prompt": "p"}], policy=policy)
    assert (rows[0]["chosen"], rows[0]["rejected"]) == ("another one", "one")


def test_the_example_needs_no_server(capsys):
    assert data(["ai_feedback", "--rows", "10", "--annotator.noise", "0", "--out", "out"]) == 0
    assert "10 prompts" in capsys.readouterr().out
    from hf_rlhf_worlds.tastes import Taste, utility

    rows, _ = written()
    gains = [
        utility(Taste.parse(row["prompt"]), row["chosen"])
        - utility(Taste.parse(row["prompt"]), row["rejected"])
        for row in rows
    ]
    assert min(gains) > 0


def test_everything_wrong_with_a_file_is_reported_with_its_place():
    Path("rules.yaml").write_text(
        "principles:\n- {name: a, text: x}\n- {name: a, text: y}\n- {name: b}\nother: 1\n"
    )
    Path("file.yaml").write_text(
        "dataset: {name: tastes}\nconstitution: rules.yaml\nannotator: {name: tase_judge}\n"
        "policy: {path: p, temperature: 0}\n"
    )
    with pytest.raises(ConfigError) as caught:
        data(["ai_feedback", "file.yaml", "--polcy.x", "1"])
    message = str(caught.value)
    for part in ("rules.yaml:4 principles.2.text", "`other`", "tase_judge", "policy.temperature"):
        assert part in message
    assert "`polcy`" in message


def writer(request):
    system = request.body["messages"][0]["content"]
    if "You criticise" in system:
        prompt = blocks(request)["context"]
        return json.dumps({"critique": "It is vague.", "revise": prompt != "fine"})
    if "You rewrite" in system:
        draft = blocks(request)["candidate"]
        return {"stubborn": draft, "chatty": "Here is the revised answer: x"}.get(
            blocks(request)["context"], "concrete answer"
        )
    return "draft"


def test_drafts_are_criticised_and_revised_and_all_texts_are_kept():
    rows = [{"prompt": text} for text in ("vague", "fine", "stubborn", "chatty")]
    with ScriptedServer(writer) as server:
        report, kept, rejects = verb("synthetic_sft", server, rows)
    assert kept[0] == {
        "prompt": "vague",
        "draft": "draft",
        "critique": "It is vague.",
        "revision": "concrete answer",
        "completion": "concrete answer",
    }
    assert kept[1]["completion"] == "draft"
    assert {each["prompt"]: each["reject"] for each in rejects} == {
        "stubborn": "unchanged",
        "chatty": "leak",
    }
    assert report["usage"]["writer"]["requests"] == 4 + 4 + 3


@pytest.mark.parametrize(
    ("revision", "prompt", "reason"),
    [
        ("a b c", "p", None),
        ("word " * 11, "p", "too long"),
        ("As the constitution says, no.", "p", "leak"),
        ("The constitution of 1787.", "Which constitution?", None),
    ],
)
def test_revisions_that_are_no_responses(revision, prompt, reason):
    failure = unusable("draft", True, revision, prompt, 10)
    assert (failure.reason if failure else None) == reason


def test_both_responses_of_a_pair_are_graded_by_the_rubric(capsys):
    names = [each.name for each in read_rubric(None)]

    def grade(request):
        grades = dict.fromkeys(names, 5 if blocks(request)["candidate"] == "good" else 2)
        return json.dumps({"reason": "r", "grades": grades})

    pairs = [{"prompt": "p", "chosen": "good", "rejected": "bad"}]
    with ScriptedServer(grade) as server:
        report, rows, _ = verb("rubric_grades", server, pairs)
    assert (report["responses"], report["rows"], "prompts" in report) == (2, 2, False)
    assert "rubric_grades: 2 responses, 2 rows written" in capsys.readouterr().out
    assert [row["completion"] for row in rows] == ["good", "bad"]
    assert rows[0]["grades"] == dict.fromkeys(names, 5)
    assert [row["grade"] for row in rows] == [1.0, 0.4]


@pytest.mark.parametrize("grade", [6, True, None])
def test_a_grade_off_the_scale_is_no_grade(grade):
    names = [each.name for each in read_rubric(None)]
    reply = json.dumps({"grades": {**dict.fromkeys(names, 3), "honesty": grade}})
    with (
        ScriptedServer(always=Reply(reply)) as server,
        pytest.raises(JudgeError, match="the grade of honesty"),
    ):
        verb("rubric_grades", server, [{"prompt": "p", "completion": "c"}])


SHIPPED = sorted(Path(command.__file__).parent.parent.glob("runs/*/hh.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_the_shipped_files_name_settings_that_exist(path):
    # With a dataset and a policy that are here.
    dataset = {"name": "tastes", "form": "preference", "train_rows": 5, "test_rows": 1}
    options = ["--dataset", json.dumps(dataset)]
    if path.parent.name == "ai_feedback":
        options += ["--policy.path", "package://hf_rlhf_classic/tiny_sft"]
    assert data([path.parent.name, str(path), "--dry_run", *options]) == 0
