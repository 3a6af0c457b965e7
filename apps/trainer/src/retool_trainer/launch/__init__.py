"""What happens before a run: plan it, check the machine, place it on Ray, fetch what it needs."""

from ._plan import Plan, make_plan
from ._seats import Seat, seats
from ._text import render_plan

__all__ = ["Plan", "Seat", "make_plan", "render_plan", "seats"]
