"""REST framework classes that a project may have written itself."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle


class BadgeAuthentication(BaseAuthentication):
    """`X-Badge: <username>`."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        badge = request.headers.get("X-Badge")
        user = badge and get_user_model().objects.filter(username=badge).first()
        return (user, None) if user else None


class NobodyBanned(BasePermission):
    """Who is called `banned…` does nothing, and `guest…` changes nothing."""

    def has_permission(self, request: Request, view: object) -> bool:
        name = request.user.get_username()
        if name.startswith("guest"):
            return request.method in SAFE_METHODS
        return not name.startswith("banned")


class HastyThrottle(SimpleRateThrottle):
    """Who is called `hasty…` may ask twice an hour."""

    rate = "2/hour"

    def get_cache_key(self, request: Request, view: object) -> str | None:
        name: str = request.user.get_username()
        return name if name.startswith("hasty") else None
