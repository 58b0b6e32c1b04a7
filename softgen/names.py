"""One answer to a name that softgen does not know: what it was, a likely slip, and the choices."""

from __future__ import annotations

from collections.abc import Iterable

# "float23" is 0.71 from float32, "sm80" 0.89 from sm_80; below this a guess is no help.
LIKENESS = 0.6


def unknown(kind: str, given: str, known: Iterable[str], more: str = "", meant: str = "") -> str:
    """Return the message for the unknown name `given`, of which `known` are the choices.

    Args:
        kind: what it should name, for example "strategy".
        given: the name as it was given.
        known: the accepted names.
        more: what else is accepted, after the names.
        meant: the name that was probably meant; by default the known one that is most like it.
    """
    names = list(known)
    hint = f" did you mean {meant!r}?" if meant else likely(given, names)
    return f"unknown {kind} {given!r};{hint} softgen knows: {', '.join(names)}{more}"


def likely(given: str, known: Iterable[str]) -> str:
    """Return " did you mean 'warp'?" for the known name that is most like `given`, or nothing."""
    import difflib  # milliseconds, which a process that fails anyway may spend

    lower = {name.lower(): name for name in known}
    # Only short names are compared: the time goes with the square of the length.
    near = difflib.get_close_matches(given[:80].lower(), lower, n=1, cutoff=LIKENESS)
    return f" did you mean {lower[near[0]]!r}?" if near else ""
