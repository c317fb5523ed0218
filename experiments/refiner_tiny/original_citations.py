"""Citation scores of open-instruct, as dr-tulu trains with them, beside ours, on the same answers.

`original` is written anew from what that code does
(rlresearch/dr-tulu 6188f34, open_instruct/search_rewards/utils/citation_utils.py, and the first
`<answer>` of format_utils.py): a claim is the text of one tag or of what stands between two; of its
ids one is kept; its F1 is of recall (support: 1, 0.5, 0; uncited: 1 if it needs no citation) and
precision (1 if anything in the source is relevant); the score is the mean over claims. Its further
0.4 for the share of ids that exist is left out: ours has that in precision. Both ask one judge,
`lexical`, so that they differ in how an answer is read and added up, and in nothing else.

`python experiments/refiner_tiny/original_citations.py` prints the table that the docs show.
"""

import asyncio
import re

from hf_rlhf.contracts import Question
from hf_rlhf.rewards.judges.lexical import LexicalJudge
from hf_rlhf_refiner.rewards import CitationF1
from hf_rlhf_refiner.statements import abstains, statements

FOUNDED, LED = "Alder was founded in 1925.", "Alder is led by Ada Quill."
SOURCES = {
    "S1": FOUNDED,
    "S2": LED,
    "S3": "Birch was founded in 1930.",
    "S4": "Alder has fine old stone mills in Oslo.",
}
ONE, TWO, WRONG = f"[S1]{FOUNDED}[/]", f"[S2]{LED}[/]", "[S1]Alder has 900 staff.[/]"
BOTH = "Alder was founded in 1925 and is led by Ada Quill."

ANSWERS = [
    ("two claims, each with its source", f"⟨{ONE} {TWO}⟩", ""),
    ("of these, the second is unsupported", f"⟨{ONE} {WRONG}⟩", ""),
    ("both with the other's source", f"⟨[S2]{FOUNDED}[/] [S1]{LED}[/]⟩", ""),
    ("with connectives", f"⟨In short: {ONE} {TWO}⟩", ""),
    ("prose without a tag", f"⟨{FOUNDED} {LED}⟩", ""),
    ("an empty block", "⟨⟩", ""),
    ("no block", f"{ONE} {TWO}", ""),
    ("an id that is no source", f"⟨[S9]{FOUNDED}[/]⟩", ""),
    ("id in quotes", f'⟨["S1"]{FOUNDED}[/]⟩', ""),
    ("a cited and an uncited claim", f"⟨{ONE} {LED}⟩", "what is cited is right (precision 1)"),
    ("both sources in a single tag", f"⟨[S1,S2]{BOTH}[/]⟩", "it keeps the last id alone"),
    ("the same, a blank after the comma", f"⟨[S1, S2]{BOTH}[/]⟩", "it reads no id"),
    ("an idle id first", f"⟨[S3,S1]{FOUNDED}[/]⟩", "it never sees the idle id"),
    ("an id that is no source first", f"⟨[S9,S1]{FOUNDED}[/]⟩", "it never sees the invented id"),
    (
        "every source on every claim",
        f"⟨{ONE.replace('S1', 'S1,S2,S3,S4')} {TWO.replace('S2', 'S1,S2,S3,S4')}⟩",
        "right but diluted; it keeps the last id alone",
    ),
    (
        "a claim four times, an unsupported claim",
        f"⟨{ONE * 4} {WRONG}⟩",
        "it drops repeated claims",
    ),
    ("`<` in a claim", "⟨[S1]Alder was founded in 1925 (<--).[/]⟩", "it reads no claim"),
    ("a tag in a tag", f"⟨[S1]Alder [S1]{FOUNDED}[/][/]⟩", "malformed; it reads the inner tag"),
    (
        "a right answer, then a wrong answer",
        f"⟨{ONE}⟩⟨{WRONG}⟩",
        "malformed; it reads the first answer alone",
    ),
    (
        "an abstention",
        "⟨The sources do not say who leads Alder.⟩",
        "nothing is cited; its rubrics decide what it is worth",
    ),
]


def written(shorthand, tag):
    """Return an answer with the tags of a scorer."""
    text = shorthand.replace("⟨", "<answer>").replace("⟩", "</answer>").replace("[/]", f"</{tag}>")
    return re.sub(r"\[([^\[\]]*)\]", rf"<{tag} id=\1>", text)


def original(text, sources, judge):
    """Return the mean F1 over claims, as open-instruct takes it."""
    block = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    if block is None:
        return 0.0
    tag = r"<cite id=(?P<quote>[\"']?)(?P<ids>[^\"'>\s]+)(?P=quote)[^>]*>(?P<claim>[^<]+)</cite>"
    between = re.sub(tag, "\0", block[1]).split("\0")
    claims = {part.strip(): "" for part in between if part.strip()}
    for found in re.finditer(tag, block[1]):
        claims[found["claim"].strip()] = sources.get(found["ids"].split(",")[-1], "")
    scores = [claim_f1(claim, cited, judge) for claim, cited in claims.items()]
    return sum(scores) / len(scores) if scores else 0.0


def claim_f1(claim, cited, judge):
    """Return the F1 of a claim."""
    plain = re.sub("<[^<>]*>", " ", claim)
    if cited:
        support = judge.answer(Question("support", claim, context=cited)).score or 0.0
        recall, precision = support, float(support > 0)
    else:  # It asks whether a citation is needed; without a verdict it takes the answer for "no".
        verdict = judge.answer(Question("support", plain, context=plain)).score
        states = any(not abstains(statement) for statement in statements(plain))
        recall, precision = 1.0 - float(states and verdict is not None), 1.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def ours(text, sources, judge):
    """Return citation_f1's score."""
    listed = [{"id": identifier, "text": text_} for identifier, text_ in sources.items()]
    return asyncio.run(CitationF1(judge)([""], [text], sources=[listed]))[0]


def compared():
    """Yield name, the original's score, ours, and why they differ."""
    judge = LexicalJudge()
    for name, shorthand, why in ANSWERS:
        theirs = original(written(shorthand, "cite"), SOURCES, judge)
        yield name, theirs, ours(written(shorthand, "snippet"), SOURCES, judge), why


def markdown():
    """Return the table."""
    lines = ["| answer | original | ours | why |", "|---|--:|--:|---|"]
    lines += [f"| {name} | {a:.2f} | {b:.2f} | {why} |" for name, a, b, why in compared()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
