from __future__ import annotations

import uuid

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models


def text_key() -> str:
    """A key that plain string formatting would break on."""
    return f"u'%s-{uuid.uuid4()}"


class User(AbstractBaseUser, PermissionsMixin):
    username = models.CharField(max_length=150, unique=True)
    is_staff = models.BooleanField(default=False)
    is_active = models.BooleanField(default=True)
    is_superuser = models.BooleanField(default=False)
    groups = None
    user_permissions = None

    objects = BaseUserManager()
    USERNAME_FIELD = "username"

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.username


class UUIDUser(User):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


class TextUser(User):
    id = models.CharField(primary_key=True, max_length=50, default=text_key)
