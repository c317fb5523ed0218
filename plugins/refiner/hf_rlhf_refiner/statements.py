"""Split text into statements and detect statements and abstentions."""

import re
from collections.abc import Container, Iterator

from hf_rlhf.rewards import STOPWORDS

# Not after a single letter: "e.g.", "U.S.", "J. Smith".
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[^\W\d_]\.)\s+|(?<=[。！？])")
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
    re.compile(
        rf"\b{_SOURCE_WORD}\b.{{0,20}}?\b(?:{_TELL}s? nothing|(?:is|are|remain) silent)\b"
        rf"|\bnothing in\b.{{0,20}}?\b{_SOURCE_WORD}\b.{{0,20}}?\b{_TELL}"
    ),
    re.compile(rf"(?:\b(?:no|none of the)|(?:\bnot|n['’]t) (?:\w+ )?enough) {_SOURCE_WORD}\b"),
    re.compile(
        rf"\bnot\b.{{0,20}}?\b(?:{_TELL}\w*|found|known|available)\b.{{0,40}}?\b{_SOURCE_WORD}\b"
    ),
    re.compile(
        r"\b(?:cannot|can ?not|can['’]t|could not|couldn['’]t|unable to"
        r"|(?:not |im)possible to)\b.{0,40}?"
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
_NOT_KNOWN = re.compile(r"\bdo(?:es)? ?(?:not|n['’]t) know\b")
_LIST_NUMBER = re.compile(r"\(?\d{1,2}[.)]")
_ADDS_MORE = re.compile(
    r"""\b(?:but|however|although|though|yet|nevertheless|still|because|whereas
    |(?:now|given|seeing)\ that
    |(?:since|as|after|before|while|once|until)\ (?:it|he|she|they|this|these|there))\b|[;:—]""",
    re.VERBOSE,
)
# Possible starts of a sentence: a list or emphasis sign, a one-word heading, "However,".
_OPENING = re.compile(r"[\s*_#>•–-]*(?:(?:however|but|yet|still)\b,?|[^\W\d_]+:)?[\s*_]*")
_CONNECTIVES = frozenset(
    """also however moreover furthermore additionally besides further finally lastly first firstly
    second secondly third thirdly next thus therefore hence accordingly consequently overall short
    sum summary conclusion brief meanwhile similarly likewise instead conversely specifically
    notably namely example instance addition contrast result fact yes no not key findings finding
    answer overview background details note notes sources source""".split()  # noqa: SIM905 - shorter so
)
_AUXILIARY = (
    r"(?:is|are|was|were|be|been|has|have|had|does|did|will|would|can|could|may|might|shall|should"
    r"|became|becomes)\b"
)
_ASSERTS = re.compile(rf"^(?:it|he|she|they|we|this|these|those|there)\b|\b{_AUXILIARY}")
_INTERROGATIVE = re.compile(r"^(?:who|whom|whose|when|where|what|which|how|why|whether|if)\b")
_RELATIVE = re.compile(rf"^(?:who|which|whose|where)\s+(?:\w+\s+)?{_AUXILIARY}")
_REMARK = re.compile(rf"\b(\w++)\s+(?:who|which|where)\s+{_AUXILIARY}")
_BEFORE_QUESTION = re.compile(
    rf"{_TELL}\w*|determine\w*|find|found|know\w*|sure|about|of|on|to|as|in|or|nor|and|not|information"
    r"|evidence"
)
_BRACKETS = re.compile(r"\(([^()]*)\)?|\[([^][]*)\]?|\{([^{}]*)\}?")
_JOINT = re.compile(r"(,\s*(?:and|or|nor|so)\b|,|\b(?:and|or|nor|so)\b|\s[-–/=|→]+\s)")
_LEAD = re.compile(
    r"^(?:based|according|from|given|in|on|for|of|as|to|after|regarding|about|concerning|with"
    r"|unfortunately|among|within|across)\b"
)
_ACRONYM_LETTERS = 3


def count_words(text: str) -> int:
    """Count words; in Chinese and Japanese, which have no word spaces, count characters."""
    return len(_WORD.findall(text))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences and lines of `text` with collapsed white space, without empty strings."""
    for line in text.splitlines():
        for sentence in _SENTENCE_END.split(line):
            collapsed = " ".join(sentence.split())
            if collapsed:
                yield collapsed


def statements(text: str, known: Container[str] = ()) -> Iterator[str]:
    """Yield the sentences that state something: three words, or a digit that numbers no list.

    Shorter sentences and lines are counted together; otherwise prose could be written two words to
    a line. Together they need three words, or a name or other content word outside `known`.
    Connectives ("In short:"), one-word headings ("Leadership:") and "Unknown." have none.
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
    if count_words(together) >= _FACTUAL_WORDS or any(_adds(scrap, known) for scrap in short):
        yield together


def _adds(scrap: str, known: Container[str]) -> bool:
    """Whether a sentence of at most two words states something."""
    words = re.findall(r"[^\W_]+", scrap.casefold())
    if len(words) == 1 and scrap.endswith(":") or _is_silent(scrap.casefold()):
        return False
    return any(
        len(word) > 1 and word not in known and word not in _CONNECTIVES and word not in STOPWORDS
        for word in words
    )


def asks_for_silence(criterion: str) -> bool:
    """Whether a criterion may be met by saying or showing that the sources lack the answer."""
    lowered = criterion.casefold()
    return any(pattern.search(lowered) for pattern in (*_ABSTENTION, *_SILENCE))


def abstains(sentence: str, known: Container[str] | None = None) -> bool:
    """Whether a sentence only says that the sources do not contain the answer.

    Disqualifying additions: a clause ("but …", "because …", "…, it is …", "…, which is …"), an
    apposition, words in brackets, and a name or number outside `known` (None allows any).
    """
    if count_words(sentence) > _ABSTENTION_WORDS:
        return False
    lowered = sentence.casefold()
    after = _OPENING.sub("", lowered, count=1)
    if _ADDS_MORE.search(after) or not any(p.search(lowered) for p in _ABSTENTION):
        return False
    if known is not None and not all(name in known for name in _names(sentence)):
        return False
    inside = ["".join(filter(None, parts)) for parts in _BRACKETS.findall(lowered)]
    if not all(_is_reference(text, known or ()) for text in inside):
        return False
    return _is_one_clause(" ".join(_BRACKETS.sub(" ", lowered).split()))


def _names(sentence: str) -> set[str]:
    """Return the numbers and capitalised words except the first word and short acronyms (CEO)."""
    words = re.findall(r"[^\W_]+", sentence)
    return {
        word.casefold()
        for position, word in enumerate(words)
        if any(map(str.isdigit, word))
        or (
            position
            and word[0].isupper()
            and word.casefold() not in STOPWORDS
            and not (word.isupper() and len(word) <= _ACRONYM_LETTERS)
            and not re.fullmatch(_SOURCE_WORD, word.casefold())
        )
    }


def _is_reference(inside: str, known: Container[str]) -> bool:
    """Whether bracketed text repeats the question, cites a source, or abstains."""
    words = re.findall(r"[^\W_]+", inside)
    return _is_silent(inside) or all(word in known or word in STOPWORDS for word in words)


def _is_silent(part: str) -> bool:
    return any(pattern.search(part) for pattern in (*_ABSTENTION, *_SILENCE[:2], _NOT_KNOWN))


def _is_one_clause(lowered: str) -> bool:
    """Whether an abstention without brackets has only itself and a list of the requested facts.

    It is split at commas and conjunctions. A part may abstain itself, introduce it ("In short"),
    ask ("when it was founded"), or mention something without asserting it.
    """
    pieces = _JOINT.split(lowered.rstrip(" .!?"))
    parts = [("", pieces[0].strip())]
    parts += [(j.strip(), p.strip()) for j, p in zip(pieces[1::2], pieces[2::2], strict=True)]
    listed = any(joint.rstrip("-–/=|→,") for joint, _ in parts)
    begun = False
    for joint, part in parts:
        if not part:
            continue
        if _is_silent(part):
            begun = True
            if any(not _BEFORE_QUESTION.fullmatch(word) for word in _REMARK.findall(part)):
                return False
        elif not begun:
            if _ASSERTS.search(part) or not (_LEAD.search(part) or count_words(part) < 3):
                return False
        elif _INTERROGATIVE.search(part):
            if _RELATIVE.search(part) and joint == ",":
                return False
        elif _ASSERTS.search(part) or not listed:
            return False
    return True
