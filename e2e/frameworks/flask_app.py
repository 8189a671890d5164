"""Flask on Werkzeug's own server, with the snippets that its documentation and common answers give for applications behind a proxy."""

import sys

from flask import Flask, jsonify, request
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.serving import make_server


class MethodOverride:
    """https://flask.palletsprojects.com/en/stable/patterns/methodoverrides/"""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, environ, start_response):
        wanted = environ.get("HTTP_X_HTTP_METHOD_OVERRIDE", "").upper()
        if wanted in {"GET", "POST", "PATCH", "PUT", "DELETE"}:
            environ["REQUEST_METHOD"] = wanted
        # Many services upper-case the method themselves.
        environ["REQUEST_METHOD"] = environ["REQUEST_METHOD"].upper()
        return self.inner(environ, start_response)


class ReverseProxied:
    """The snippet of Flask's archive for applications below a path."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, environ, start_response):
        script_name = environ.get("HTTP_X_SCRIPT_NAME", "")
        if script_name:
            environ["SCRIPT_NAME"] = script_name
            if environ["PATH_INFO"].startswith(script_name):
                environ["PATH_INFO"] = environ["PATH_INFO"][len(script_name) :]
        environ["wsgi.url_scheme"] = environ.get("HTTP_X_SCHEME", environ["wsgi.url_scheme"])
        return self.inner(environ, start_response)


app = Flask(__name__)


@app.route("/login", methods=["GET", "POST", "DELETE"], strict_slashes=False)
def login():
    texts = {name: str(value) for name, value in request.environ.items() if name.startswith("HTTP_")}
    return jsonify(
        handler="login",
        method=request.method,
        v=request.args.getlist("v"),
        address=request.remote_addr,
        host=request.host,
        scheme=request.scheme,
        said=texts,
    )


app.wsgi_app = MethodOverride(ReverseProxied(ProxyFix(app.wsgi_app, x_for=1, x_proto=1, x_host=1, x_prefix=1)))
make_server("127.0.0.1", int(sys.argv[1]), app, threaded=True).serve_forever()
