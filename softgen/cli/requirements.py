"""What the installed packages want of each other, where softgen needs the one that is wanted.

pip looks at this only while it installs, and not at what was there before: another package may then
find a CUDA compiler or a NumPy that it was not made for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

SELF = "softgen"

# The extras whose packages run kernels. An installation does not record which were asked for.
EXTRAS = ("cuda12", "cuda13", "torch")

# A distribution, and one of its extras, or "" for what it always wants.
_Part = tuple[str, str]


@dataclass(frozen=True)
class Conflict:
    """A requirement that the installed version does not meet.

    Attributes:
        owner: who requires it, with its version.
        requirement: what is required.
        installed: the version that is there.
    """

    owner: str
    requirement: Requirement
    installed: str

    def __str__(self) -> str:
        wanted = f"{self.requirement.name}{self.requirement.specifier}"
        return f"{self.owner} wants {wanted}, {self.installed} is installed"

    @property
    def fix(self) -> str:
        """What pip is given: with the extras, whose packages follow the version."""
        extras = ",".join(sorted(self.requirement.extras))
        named = self.requirement.name + (f"[{extras}]" if extras else "")
        return f"'{named}{self.requirement.specifier}'"


def conflicts(distributions: Iterable[Distribution]) -> list[Conflict]:
    """Return which requirements on the packages that softgen needs are not met.

    A package that is wanted and absent is none: what softgen lacks, `softgen doctor` says anyway.
    Raises LookupError if softgen is not among `distributions`.
    """
    installed: dict[str, Distribution] = {}
    for distribution in distributions:  # of several, Python imports the first
        name = distribution.metadata["Name"]
        if name:
            installed.setdefault(canonicalize_name(name), distribution)
    if SELF not in installed:
        raise LookupError("softgen itself is not installed")
    own: list[_Part] = [(SELF, "")]
    own += [(SELF, extra) for extra in EXTRAS if _is_used(installed, extra)]
    needed = {_name(requirement) for _, requirement in _reached(installed, own)}
    found: dict[str, Conflict] = {}
    for owner, requirement in _reached(installed, [*own, *((name, "") for name in installed)]):
        name = _name(requirement)
        if name in needed and name in installed and not _is_met(requirement, installed[name]):
            label = f"{owner} {installed[owner].version}"
            conflict = Conflict(label, requirement, installed[name].version)
            found.setdefault(str(conflict), conflict)
    return list(found.values())


def _is_used(installed: dict[str, Distribution], extra: str) -> bool:
    """Whether all that an extra of softgen's names is there: cuda12 is not, beside cuda13."""
    wanted = [r for r in _requirements(installed[SELF], extra) if "extra" in str(r.marker)]
    return all(_name(requirement) in installed for requirement in wanted)


def _reached(
    installed: dict[str, Distribution], starts: Iterable[_Part]
) -> Iterator[tuple[str, Requirement]]:
    """Yield (owner, requirement) of `starts`, and of the extras that these ask for."""
    waiting = list(starts)
    seen: set[_Part] = set()
    while waiting:
        part = waiting.pop(0)
        owner, extra = part
        if part in seen or owner not in installed:
            continue
        seen.add(part)
        for requirement in _requirements(installed[owner], extra):
            yield owner, requirement
            waiting += [(_name(requirement), wanted) for wanted in requirement.extras]


def _requirements(distribution: Distribution, extra: str) -> Iterator[Requirement]:
    """Yield what a distribution requires on this machine with `extra`."""
    for text in distribution.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # of a package that pip would refuse today
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _is_met(requirement: Requirement, distribution: Distribution) -> bool:
    try:
        version = Version(distribution.version)
    except InvalidVersion:  # nothing can be said of it
        return True
    return requirement.specifier.contains(version, prereleases=True)


def _name(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)
