"""
Django: a view that appends and a view that reads, in one file.

    gunicorn --workers 4 --preload views:application
    curl --data 'an event' localhost:8000/events
    curl localhost:8000/events/1

In a project of your own, take the views, and C{log} of C{prefork.py}: the server forks, and each process
opens a log of its own.
"""

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from prefork import log

import dledger

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["localhost", "127.0.0.1"], SECRET_KEY="only-here")
django.setup()


def append(request: HttpRequest) -> HttpResponse:
    """Append the body of a POST; answer with its place."""
    try:
        return JsonResponse({"index": log().append(request.body).index})
    except dledger.AppendFailed as error:
        return JsonResponse({"error": f"not in the log: {error}"}, status=503)
    except dledger.UnknownOutcome as error:
        return JsonResponse({"error": f"may be in the log, so read it first: {error}"}, status=504)


def read(request: HttpRequest, index: int) -> HttpResponse:
    """The body of one entry."""
    try:
        return HttpResponse(log().get(index).body, content_type="application/octet-stream")
    except dledger.NotYet:
        return HttpResponse("no such event yet", status=404)
    except dledger.Expired:
        return HttpResponse("the event has expired", status=410)


urlpatterns = [path("events", append), path("events/<int:index>", read)]
application = get_wsgi_application()
