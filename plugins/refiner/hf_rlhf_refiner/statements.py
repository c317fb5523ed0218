"""Cut text into statements, and say which of them state something and which abstain."""

import re
from collections.abc import Iterator

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)
_FACTUAL_WORDS = 3
_ABSTENTION_WORDS = 30
_SOURCE_WORD = (
    r"(?:sources?|snippets?|(?:search |tool )?results?|tool output|evidence|documents?|passages?"
    r"|(?:provided |available )?information|context)"
)
_TELL = (
    r"(?:say|tell|state|mention|contain|provide|report|specify|address|cover|give|include|show"
    r"|indicate|answer|reveal|disclose|support|establish|name)"
)
_ABSTENTION = (
    re.compile(
        rf"\b{_SOURCE_WORD}\b.{{0,60}}?\b(?:do|does|did) ?(?:not|n['’]t)\b.{{0,20}}?\b{_TELL}"
    ),
    re.compile(rf"\b(?:no|none of the|not enough) {_SOURCE_WORD}\b"),
    re.compile(
        rf"\bnot\b.{{0,20}}?\b(?:{_TELL}\w*|found|known|available)\b.{{0,40}}?\b{_SOURCE_WORD}\b"
    ),
    re.compile(
        r"\b(?:cannot|can ?not|can['’]t|could not|couldn['’]t|unable to)\b.{0,40}?"
        r"\b(?:determine|answer|tell|say|find|establish|confirm|verify)"
    ),
)
_SILENCE = (
    re.compile(
        r"\b(?:insufficien\w+|inconclusive|unknown|unclear|uncertain\w*|unavailable|unspecified"
        r"|undetermined|unanswer\w+|unable|lack(?:s|ed|ing)?|missing|absen(?:t|ce)|abstain\w*|declin\w+"
        r"|limitations?|limits of|gaps?)\b"
    ),
    re.compile(
        r"\b(?:no|not any|not enough|little) (?:\w+ )?(?:information|evidence|data|answer)\b"
    ),
    re.compile(
        r"^(?:the )?(?:(?:answer|response|it) )?"
        r"(?:(?:does|do|should|must) ?(?:not|n['’]t)|doesn['’]t|avoids?|refrains?|never)\b"
    ),
)
_LIST_NUMBER = re.compile(r"\(?\d{1,2}[.)]")
_ADDS_MORE = re.compile(r"\b(?:but|however|although|though|yet|nevertheless|still)\b|[;:—]")


def count_words(text: str) -> int:
    """Count words; in Chinese and Japanese, which are written without blanks, characters."""
    return len(_WORD.findall(text))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences and lines of `text`, blanks collapsed, empty ones left out."""
    for line in text.splitlines():
        for sentence in _SENTENCE_END.split(line):
            collapsed = " ".join(sentence.split())
            if collapsed:
                yield collapsed


def statements(text: str) -> Iterator[str]:
    """Yield the sentences that state something: three words, or a digit that numbers no list.

    Connectives state nothing. Shorter sentences and lines are counted together, or prose could be
    written two words to a line.
    """
    short: list[str] = []
    for sentence in sentences(text):
        if _LIST_NUMBER.fullmatch(sentence):
            continue
        if count_words(sentence) >= _FACTUAL_WORDS or any(map(str.isdigit, sentence)):
            yield sentence
        else:
            short.append(sentence)
    together = " ".join(short)
    if count_words(together) >= _FACTUAL_WORDS:
        yield together


def asks_for_silence(criterion: str) -> bool:
    """Whether a criterion may be met by saying, or showing, that the sources do not tell."""
    lowered = criterion.casefold()
    return any(pattern.search(lowered) for pattern in (*_ABSTENTION, *_SILENCE))


def abstains(sentence: str) -> bool:
    """Whether a sentence only says that the sources do not tell; one that adds more does not."""
    if count_words(sentence) > _ABSTENTION_WORDS:
        return False
    lowered = sentence.casefold()
    if _ADDS_MORE.search(lowered):
        return False
    return any(pattern.search(lowered) for pattern in _ABSTENTION)
