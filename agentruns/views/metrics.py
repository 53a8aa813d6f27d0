"""`path("metrics", agentruns.views.metrics.metrics)`: for Prometheus, from inside the network.

Not part of `agentruns.urls`: who may scrape is for the project to say, by its proxy or by wrapping
the view.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from .. import metrics as instruments
from ..exposition import expose


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The metrics of this web process, and of the queue."""
    if not instruments.enabled:
        return HttpResponse(
            "prometheus_client is not installed: pip install 'django-agentruns[metrics]'\n",
            status=501,
            content_type="text/plain",
        )
    content_type, body = expose()
    return HttpResponse(body, content_type=content_type)
