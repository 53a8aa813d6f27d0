"""What agentruns' admin pages share: nothing is written, and no list costs more than its page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html

COUNTED = 10_000
"""Rows are counted, and paged through, up to here: beyond it one searches or filters."""
USERS = 50
"""Users of one name that a search looks for."""


if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Any]
    BasePaginator = Paginator[Any]
else:
    BaseAdmin, BasePaginator = admin.ModelAdmin, Paginator


class CappedPaginator(BasePaginator):
    """Counts no further than `COUNTED`."""

    @cached_property
    def count(self) -> int:
        return self.object_list[:COUNTED].count()  # type: ignore[attr-defined, no-any-return]


class ReadOnlyAdmin(BaseAdmin):
    """Looks, and writes nothing: the schema's rows change through the verbs only."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()  # any other order than the key's would sort the whole table
    ordering = ("-id",)
    list_per_page = 50
    list_max_show_all = 50
    search_fields = ("id",)
    heavy: tuple[str, ...] = ()
    """Columns that a list leaves out of its query."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        heavy = self.heavy

        class LightChangeList(ChangeList):
            def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet[Any]:
                return super().get_queryset(*args, **kwargs).defer(*heavy)

        return LightChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """By whole ids, and by the user's name or e-mail address: by indexes, never by LIKE."""
        term = search_term.strip()
        if not term:
            return queryset, False
        found = self.found_by_user(users_named(term))
        if (wanted := uuid_in(term)) is not None:
            found |= self.found_by_id(wanted)
        return queryset.filter(found), False

    def found_by_id(self, wanted: UUID) -> Q:
        raise NotImplementedError

    def found_by_user(self, users: list[Any]) -> Q:
        raise NotImplementedError


def uuid_in(term: str) -> UUID | None:
    try:
        return UUID(term)
    except ValueError:
        return None


def users_named(term: str) -> list[Any]:
    """Keys of the users of exactly this name, e-mail address or key."""
    model = get_user_model()
    named = Q(**{model.USERNAME_FIELD: term})
    if email := getattr(model, "EMAIL_FIELD", None):
        named |= Q(**{email: term})
    try:
        model._meta.pk.get_prep_value(model._meta.pk.to_python(term))
    except (ValidationError, ValueError, TypeError):
        pass
    else:
        named |= Q(pk=term)
    return list(model._default_manager.filter(named).values_list("pk", flat=True)[:USERS])


def may(request: HttpRequest, permission: str) -> bool:
    """Whether the user has this permission of agentruns."""
    return request.user.has_perm(f"agentruns.{permission}")


def link(model: type[Model], pk: Any, text: str = "") -> str:
    """A link to the object's page, or its text where its model has none in this admin."""
    text = text or str(pk)
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
    try:
        url = reverse(name, args=[pk])
    except NoReverseMatch:
        return text
    return format_html('<a href="{}">{}</a>', url, text)
