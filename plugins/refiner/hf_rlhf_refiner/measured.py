"""Compute the static rubrics by counting, for judges that compare words and cannot read prose.

They use names, that is capitalised words, and so have no effect on scripts without capitals.
"""

import re
from collections.abc import Mapping

from hf_rlhf.rewards import STOPWORDS
from hf_rlhf_refiner.answer import Answer, Claim
from hf_rlhf_refiner.statements import sentences

_WORD = re.compile(r"[^\W_]+")


def citation_discipline(answer: Answer) -> float:
    """Return the share of statements whose ids all exist; 1 for an answer that only abstains."""
    stated = len(answer.claims) + len(answer.uncited)
    if not stated:
        return 1.0 if answer.abstentions else 0.0
    return sum(not claim.hallucinated for claim in answer.claims) / stated


def off_query_padding(answer: Answer, question: str, sources: Mapping[str, str]) -> float:
    """Return the share of statements that are off topic or repeat a claim.

    If the question contains a name, a statement must contain it too or cite a source that does;
    otherwise it must share a content word with the question.
    """
    known = _always_capitalised([question, *sources.values()])
    asked_names = _names(question, known)
    asked_words = _words(question)
    stated = [(claim.text, claim.valid) for claim in answer.claims]
    stated += [(sentence, ()) for sentence in answer.uncited]
    padding = len(answer.repeats)
    for text, ids in stated:
        if asked_names:
            about = _words(" ".join([text, *(sources[identifier] for identifier in ids)]))
            padding += not asked_names & about
        else:
            padding += bool(asked_words) and not asked_words & _words(text)
    return min(padding / len(stated), 1.0) if stated else 0.0


def wrong_entity(answer: Answer, question: str, sources: Mapping[str, str]) -> float:
    """Return the share of claims with a name that is in neither their sources nor the question."""
    known = _always_capitalised([question, *sources.values()])
    words = _words(question)

    def confabulates(claim: Claim) -> bool:
        provided = _words(" ".join(sources[identifier] for identifier in claim.valid))
        return bool(_names(claim.text, known) - provided - words)

    claims = answer.claims
    return sum(map(confabulates, claims)) / len(claims) if claims else 0.0


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)} - STOPWORDS


def _names(text: str, known: set[str]) -> set[str]:
    """Return capitalised words; a sentence's first word only if it never occurs in lower case."""
    names = set()
    for sentence in sentences(text):
        for position, word in enumerate(_WORD.findall(sentence)):
            folded = word.casefold()
            if word[0].isupper() and folded not in STOPWORDS and (position or folded in known):
                names.add(folded)
    return names


def _always_capitalised(texts: list[str]) -> set[str]:
    words = [word for text in texts for word in _WORD.findall(text)]
    small = {word for word in words if not word[0].isupper()}
    return {word.casefold() for word in words if word[0].isupper()} - small
