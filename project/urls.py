"""HTTP routes of the demo project that Django itself answers."""

from __future__ import annotations

import importlib.util

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("login/", LoginView.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
]
if importlib.util.find_spec("agentruns.urls"):
    urlpatterns.append(path("api/", include("agentruns.urls")))
