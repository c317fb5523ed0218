"""The terms of a text for the lexical judge: words and numbers, denials, relations and roles."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

_NEGATORS = """not no never without neither nor cannot n't whether if unless false untrue
    wrong"""
_STOPWORDS = """a an the this that these those it its he she they him his her their we our you
    your i who whom which what there here and or but so as than then also too very both each of in
    on at by for from to into with about over under between during is are was were be been being am
    has have had do does did can could may might will would shall should must longer 's"""
NEGATORS, STOPWORDS = frozenset(_NEGATORS.split()), frozenset(_STOPWORDS.split())
_TOKEN = re.compile(r"n['’]t\b|\d+(?:[.,]\d+)*|[^\W\d_]+?(?=n['’]t\b)|[^\W\d_]+|['’]s\b")
_DENIAL = re.compile(
    r"""\bnot\s+(?:true|correct|right|accurate|real|so|the\s+case)\b
    |\b(?:incorrect|mistaken)\b(?=[^\w]*$|\s+(?:that|to\ say)\b)
    |\b(?:is|was|are|were|be|as|called|just|only)\s+(?:an?\s+)?(?:\w+\s+)?
     (?:myth|hoax|lie|fiction|misconception|fallacy|rumou?r)\b
    |\b(?:myth|hoax|lie|fiction|misconception|fallacy|rumou?r)\s+that\b
    |\b(?:den(?:y|ies|ied)|doubt(?:s|ed)?|disput(?:e|es|ed)|refut(?:e|es|ed))\s+that\b""",
    re.IGNORECASE | re.VERBOSE,
)
_RELATION = re.compile(
    r"""\b(?i:(?:(?P<no>no|not)\s+)?(?:
      (?P<over>over|above|exceed(?:s|ed|ing)?|at\ least|(?:more|greater|higher|larger|later)\ than)
    | (?P<under>under|below|up\ to|at\ most|(?:less|fewer|lower|smaller|earlier)\ than)
    | (?P<after>after|since) | (?P<before>before|until|till)
    | (?P<from>from) | (?P<to>to|into)
    ))\s+(?:(?i:the|about|around|nearly|roughly|some)\s+)?[$€£]?(?P<value>\d+(?:[.,]\d+)*|[A-Z]\w*)""",
    re.VERBOSE,
)
_OPPOSITES = {"over": "under", "after": "before", "from": "to"}
_OPPOSITES |= {second: first for first, second in _OPPOSITES.items()}
_BE = re.compile(r"\b(?:is|are|was|were|be|been|being)\b|^\W*\w+(?=\s+by\b)", re.IGNORECASE)
_BY = re.compile(r"\bby\b(?!\s+[\d$€£])", re.IGNORECASE)
_GENITIVE = re.compile(r"['’]s\b")


@dataclass(frozen=True)
class Term:
    """One word or number, as it is compared."""

    text: str
    is_number: bool = False
    is_name: bool = False
    is_joined: bool = field(default=False, compare=False)
    """Whether nothing but "and" or "or" stands between it and the term before."""


def read_terms(text: str, denies: frozenset[str] | None = None) -> tuple[tuple[Term, ...], bool]:
    """Return the terms of a text, and whether it denies one of `denies` (by default, any).

    A negator denies the next term; the last one, with no term behind it, what stands before.
    """
    terms: list[Term] = []
    negated = False
    denied = False
    joined = False
    for token in _tokens(text):
        word = token.casefold()
        if word in NEGATORS:
            negated, joined = True, False
        elif word in STOPWORDS:
            joined &= word in ("and", "or")
        else:
            term = _term(token, word, joined)
            denied |= negated and (denies is None or term.text in denies)
            negated, joined = False, True
            terms.append(term)
    denied |= negated and any(denies is None or term.text in denies for term in terms)
    return tuple(terms), denied


def only_denies(text: str) -> bool:
    """Whether a text only denies: "False.", "That is not true."."""
    words = [token.casefold() for token in _tokens(text)]
    return any(word in NEGATORS for word in words) and all(
        word in NEGATORS or word in STOPWORDS for word in words
    )


def _tokens(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", text).replace("’", "'")
    return _TOKEN.findall(_DENIAL.sub(" false ", plain))


@dataclass(frozen=True)
class _Form:
    """The form of a text that shows who does what: its relations, and what reverses its order."""

    relations: frozenset[tuple[str, str]]
    """Values with what stands before them: ("900", "over"), ("oslo", "from")."""
    passive: bool
    genitive: bool


@lru_cache(maxsize=64)
def _form(text: str) -> _Form:
    relations = set()
    for match in _RELATION.finditer(unicodedata.normalize("NFKC", text)):
        parts = match.groupdict()
        value, negated = parts.pop("value"), parts.pop("no")
        relation = next(name for name, phrase in parts.items() if phrase)
        number_or_name = _term(value, value.casefold()).text
        relations.add((number_or_name, _OPPOSITES[relation] if negated else relation))
    verb = _BE.search(text)
    passive = bool(verb and _BY.search(text, verb.end()))
    return _Form(frozenset(relations), passive, bool(_GENITIVE.search(text)))


def is_opposed(text: str, sentence: str) -> bool:
    """Whether a value stands in one relation in the one text and in its opposite in the other."""
    there = _form(sentence).relations
    return any(
        (value, _OPPOSITES[relation]) in there and (value, relation) not in there
        for value, relation in _form(text).relations
    )


def is_swapped(terms: Sequence[Term], text: str, stretch: Sequence[Term], sentence: str) -> bool:
    """Whether names, or numbers, have each other's roles in two texts that are otherwise equal.

    `terms` were read from `text`, `stretch` from a part of `sentence`. The passive ("by") and the
    genitive ("'s") reverse the order; "from" and "to" show roles whatever the order. A word is
    a name if either text writes it with a capital.
    """
    here, there = _form(text), _form(sentence)
    settled = {value for value, _ in here.relations & there.relations}
    names = {term.text for term in (*terms, *stretch) if term.is_name}
    wanted = {term.text for term in terms}
    ours = _roles(terms, names, settled)
    theirs = _roles([term for term in stretch if term.text in wanted], names, settled)
    if [kind for kind, _ in ours] != [kind for kind, _ in theirs]:
        return False
    passive = here.passive != there.passive
    for role_kind in ("name", "number"):
        left = [values for kind, values in ours if kind == role_kind]
        right = [values for kind, values in theirs if kind == role_kind]
        if sorted(left) == sorted(right) and left != right:
            return role_kind == "number" or passive == (here.genitive != there.genitive)
    return passive and sum(kind == "name" for kind, _ in ours) == 2


def _roles(
    terms: Sequence[Term], names: set[str], settled: set[str]
) -> list[tuple[str, tuple[str, ...]]]:
    """Return each term once: names and numbers by role, those joined in one, others as they are."""
    roles: list[tuple[str, tuple[str, ...]]] = []
    done = set(settled)
    for term in terms:
        text = term.text
        if text in done:
            continue
        done.add(text)
        kind = "number" if term.is_number else "name" if text in names else text
        if term.is_joined and roles and roles[-1][0] == kind:
            roles[-1] = (kind, tuple(sorted((*roles[-1][1], text))))
        else:
            roles.append((kind, (text,)))
    return roles


def _term(token: str, word: str, joined: bool = False) -> Term:
    if token[0].isdigit():
        number = re.sub(r",(?=\d{3}\b)", "", token)
        plain = number.rstrip("0").rstrip(".") if number.count(".") == 1 else number
        return Term(plain, is_number=True, is_joined=joined)
    return Term(_singular(word), is_name=token[0].isupper(), is_joined=joined)


def _singular(word: str) -> str:
    """Fold an English plural (Harman's S-stemmer, 1991)."""
    if word.endswith("ies") and not word.endswith(("eies", "aies")) and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("us", "ss", "is")) and len(word) > 3:
        return word[:-1]
    return word
