"""The OpenAPI document of these routes."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.renderers import OpenApiJsonRenderer2
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView

from ..wire import AlwaysTheFirst


@extend_schema(exclude=True)
class SchemaView(SpectacularAPIView):
    renderer_classes = [OpenApiJsonRenderer2]
    content_negotiation_class = AlwaysTheFirst
    custom_settings = {"PREPROCESSING_HOOKS": ["agentruns.views.schema.only_ours"]}


class StreamTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "agentruns.tokens.StreamTokenAuthentication"
    name = "streamToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "query", "name": "token"}


def only_ours(endpoints: list[tuple[Any, ...]], **_: Any) -> list[tuple[Any, ...]]:
    """Leave all other routes out, and the final slashes, which are optional."""
    return [(path.rstrip("/"), *rest) for path, *rest in endpoints if _is_ours(rest[-1])]


def _is_ours(callback: Any) -> bool:
    view = getattr(callback, "cls", callback)
    return view.__module__.startswith("agentruns.views.") and view is not SchemaView
