from __future__ import annotations

import uuid

from django.contrib.auth.models import AbstractBaseUser
from django.db import models


class Person(AbstractBaseUser):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    username = models.CharField(max_length=50, unique=True)
    is_active = models.BooleanField(default=True)

    USERNAME_FIELD = "username"
