"""What ``spola verify`` says: checks with a result each. A check that could not be made says why,
and fails nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Check", "Report"]


@dataclass(frozen=True, slots=True)
class Check:
    """``ok`` None: not made. ``detail`` is one line: what was compared, or what is wrong."""

    name: str
    ok: bool | None
    detail: str


@dataclass(slots=True)
class Report:
    """Checks in the order they were made."""

    checks: list[Check] = field(default_factory=list)

    def add(self, name: str, problems: list[str], done: str) -> None:
        """One check: failed with the first of ``problems`` and their number, or passed with ``done``."""
        if not problems:
            self.checks.append(Check(name, True, done))
            return
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        self.checks.append(Check(name, False, problems[0] + more))

    def skip(self, name: str, why: str) -> None:
        self.checks.append(Check(name, None, why))

    @property
    def ok(self) -> bool:
        return all(check.ok is not False for check in self.checks)
