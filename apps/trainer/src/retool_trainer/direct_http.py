"""HTTP to servers of the run's own, past any proxy."""

from __future__ import annotations

import urllib.request

# A cluster's http_proxy is for the world outside; it knows nothing of the run's servers.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
