"""The units an answer may carry, and when two of them contradict."""

from types import MappingProxyType

_FAMILIES = """
mm millimeter millimeters millimetre millimetres|cm centimeter centimeters centimetre centimetres
dm decimeter decimeters|km kilometer kilometers kilometre kilometres|in inch inches|ft foot feet
yd yard yards|mi mile miles|m meter meters metre metres|mg milligram milligrams|g gram grams
kg kilogram kilograms|lb lbs pound pounds|oz ounce ounces|ton tons tonne tonnes
ml milliliter milliliters|l liter liters litre litres|gal gallon gallons|s sec second seconds
min minute minutes|h hr hrs hour hours|day days|week weeks|month months|year years yr yrs
deg degree degrees|rad radian radians|dollar dollars usd bucks|cent cents|euro euros|mph|kmh
newton newtons|joule joules|watt watts|volt volts|kelvin kelvins
unit units|percent pct percentage
"""
_CANONICAL = {
    word: family.split()[0]
    for family in _FAMILIES.replace("\n", "|").split("|")
    if family.strip()
    for word in family.split()
}
_FILLER = frozenset({"square", "sq", "cubic", "cu", "per", "of", "a", "an", "the", "in", "total"})
# Words that change what a number says. A text with one of them is no unit.
_LOGIC_WORDS = (
    "not no or and but if maybe either neither nor all except unless when where otherwise for "
    "with without than less more least most between wrong false true undefined none impossible "
    "choose mod modulo base times plus minus over squared cubed half twice double divided by is "
    "are answer only solution solutions"
)
_LOGIC = frozenset(_LOGIC_WORDS.split())
# Words that multiply the number before them.
SCALES = MappingProxyType(
    {
        "dozen": 12,
        "hundred": 100,
        "thousand": 10**3,
        "million": 10**6,
        "billion": 10**9,
        "trillion": 10**12,
    }
)
_SPEEDS = {"mi h": "mph", "km h": "kmh"}
_MAX_UNIT_WORDS = 4
_KNOWN = frozenset(_CANONICAL.values()) - {"unit"}


def unit_of(words: str) -> str | None:
    """Return the canonical spelling of a unit, or None if the words cannot be one."""
    plain = words.strip("() ").replace("/", " ").replace(".", " ").replace("-", " ").casefold()
    parts = plain.replace("per cent", "percent").split()
    if not 1 <= len(parts) <= _MAX_UNIT_WORDS or any(
        part in _LOGIC or part in SCALES for part in parts
    ):
        return None
    if not all(part.isalpha() for part in parts):
        return None
    unit = " ".join(_CANONICAL.get(part, part) for part in parts if part not in _FILLER) or "unit"
    return _SPEEDS.get(unit, unit)


def says_logic(words: str) -> bool:
    """Whether a text has a word that changes what a number says."""
    return not _LOGIC.isdisjoint(words.casefold().split())


def is_known_unit(word: str) -> bool:
    """Whether a single word names a unit on its own."""
    return word.casefold() in _CANONICAL


def contradict(a: str, b: str) -> bool:
    """Whether two canonical units are both known and differ, in name or in a power of both."""
    (mine, _, my_power), (theirs, _, their_power) = a.partition("^"), b.partition("^")
    if mine == theirs:
        return bool(my_power and their_power and my_power != their_power)
    return _KNOWN.issuperset(mine.split() + theirs.split()) or {mine, theirs} == {"degC", "degF"}
