"""Django REST framework behind gunicorn, with format suffixes and the settings for applications behind a proxy."""

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import re_path

settings.configure(
    ALLOWED_HOSTS=["*"],
    APPEND_SLASH=True,
    ROOT_URLCONF=__name__,
    SECRET_KEY="of no use",
    SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"),
    USE_X_FORWARDED_HOST=True,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_PERMISSION_CLASSES": [],
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        "UNAUTHENTICATED_USER": None,
    },
)
django.setup()

from rest_framework.decorators import api_view  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.urlpatterns import format_suffix_patterns  # noqa: E402


@api_view(["GET", "POST", "DELETE"])
def login(request, format=None):
    texts = {name: str(value) for name, value in request.META.items() if name.startswith("HTTP_")}
    return Response(
        {
            "handler": "login",
            "method": request.method,
            "v": request.GET.getlist("v"),
            # What django-ipware and its like look at, in their order.
            "address": request.META.get("HTTP_CLIENT_IP") or request.META["REMOTE_ADDR"],
            "host": request.get_host(),
            "scheme": request.scheme,
            "said": texts,
        }
    )


urlpatterns = format_suffix_patterns([re_path(r"^login/?$", login)])
application = get_wsgi_application()
