"""What happens before a run: plan it, check the machine, place it on Ray, fetch what it needs."""

from ._fetch import FetchError, NoNetworkError, download_command, fetch_item
from ._placement import Placement, PlacementError, place
from ._plan import Plan, make_plan
from ._seats import Seat, seats
from ._text import render_plan

__all__ = [
    "FetchError",
    "NoNetworkError",
    "Placement",
    "PlacementError",
    "Plan",
    "Seat",
    "download_command",
    "fetch_item",
    "make_plan",
    "place",
    "render_plan",
    "seats",
]
