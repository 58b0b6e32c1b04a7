"""`softgen doctor`: what is installed, what works, and how to get the rest."""

from __future__ import annotations

import typer

from softgen.cli import options, output
from softgen.cli.group import FAILED, failure
from softgen.version import __version__


def doctor(json: options.JsonOption = False) -> None:
    """Check this machine: versions, device, compilers, cache folder, and what is missing.

    Exits with 0 if the CPU path works, with or without a GPU, and no setting is wrong.
    """
    from dataclasses import asdict

    from softgen.cli.checks import examine, healthy

    findings = examine()
    ok = healthy(findings)
    broken = [finding.name for finding in findings if finding.required and not finding.ok]
    wrong = [finding.detail for finding in findings if finding.wrong]
    missing = [f"the CPU path needs: {', '.join(broken)}"] if broken else []
    message = "; ".join([*missing, *wrong])
    if json:
        found = [asdict(finding) for finding in findings]
        document = {"version": __version__, "ok": ok, "checks": found}
        output.document(document | ({} if ok else failure(message, "Unhealthy")))
    else:
        output.result(f"softgen {__version__}")
        output.table(
            ("check", "state", "detail"),
            ((f.name, f.state, f.detail) for f in findings),
        )
        for finding in findings:
            if finding.fix:
                output.result(f"to get {finding.name}: {finding.fix}")
        if not ok:
            output.fail(message)
    if not ok:
        raise typer.Exit(FAILED)
