"""What a role says on the cards of its adapters, and what of it is not true of a reward model."""

from hf_rlhf_roles.plan import _card
from hf_rlhf_roles.role import read_role, shipped
from hf_rlhf_roles.workspace import Step


def card(role, stage, shared=()):
    return _card(read_role(shipped()[role]), Step(role, stage, "rows.jsonl"), shared)


def test_a_reward_model_is_for_scoring():
    policy, reward = card("writer", "dpo"), card("writer", "reward")
    assert policy["intended_use"].startswith("Drafting briefs")
    assert policy["known_notes"]
    assert reward["intended_use"].startswith("Scoring answers of the role `writer`")
    assert reward["known_notes"] == [], "they are of the answers that the role writes"
    assert reward["tags"] == policy["tags"]
    assert reward["title"] == "Writer (reward)"


def test_an_isolated_reward_model_says_so_where_it_is():
    (note,) = card("data_insight", "reward")["known_notes"]
    assert note == "Trained only on rows of this role."
    (note,) = card("data_insight", "reward", ["writer/sft"])["known_notes"]
    assert (
        note == "Rows of its data were also used for writer/sft, as --allow_shared_data permitted."
    )
