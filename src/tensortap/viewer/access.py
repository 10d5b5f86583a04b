"""Access checks: Host, Origin and cookie; other requests are refused before any handler sees them."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensortap.viewer.web.responses import problem_response

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MAX_BODY = 1 << 20
_MAX_TOKENS = 64
# Inline style elements are allowed because plotly inserts some; inline scripts and attributes are not.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-elem 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; worker-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_NO_COOKIE_TEXT = "open the address that tensortap view printed: it lets this browser in, once"
_TOKEN_USED_TEXT = "this address has been used; tensortap view has printed a new one in its terminal"
_REDIRECT_PAGE = '<!doctype html><title>tensortap</title><meta http-equiv="refresh" content="0;url={}">'


class AccessTokens:
    """One-time tokens, and the secret that a browser gets as a cookie in exchange."""

    def __init__(self) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._tokens: list[str] = []
        self._spent: list[str] = []
        self._lock = threading.Lock()
        self.on_token_reused: Callable[[], None] | None = None  # called when a spent token is presented

    def mint(self) -> str:
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._tokens = [*self._tokens[1 - _MAX_TOKENS :], token]
        return token

    def redeem(self, token: str) -> bool:
        with self._lock:
            token_found = _find_token(token, self._tokens)
            if token_found is not None:
                self._tokens.remove(token_found)
                self._spent = [*self._spent[1 - _MAX_TOKENS :], token_found]
                return True
            was_good = _find_token(token, self._spent) is not None
        # Only for formerly valid tokens: else anyone who reaches the port could flood the terminal.
        if was_good and self.on_token_reused is not None:
            self.on_token_reused()
        return False

    def is_secret(self, cookie: str) -> bool:
        return secrets.compare_digest(cookie.encode("utf-8", "replace"), self.secret.encode())


def _find_token(token: str, tokens: list[str]) -> str | None:
    encoded = token.encode("utf-8", "replace")
    return next(
        (candidate for candidate in tokens if secrets.compare_digest(candidate.encode(), encoded)), None
    )


class AccessMiddleware:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, tokens: AccessTokens, hosts: tuple[str, ...] = ()) -> None:
        self._app, self._access_tokens = app, tokens
        self._hosts = {*LOOPBACK, *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            refused = self._refusal(scope, Headers(scope=scope))
            await (refused or self._app)(scope, receive, _add_security_headers(send))

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """The response to send instead of handling the request; None if it is allowed."""
        host = headers.get("host", "").lower()
        if host.rpartition(":")[0] not in self._hosts and host not in self._hosts:
            return self._refuse(scope, f"this server does not answer to the name {host[:100]!r}")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return self._refuse(scope, f"{scope['method']} is not used here", 405)
        is_post = scope["method"] == "POST"
        reason = _reject_post(headers, host) if is_post else _reject_get(headers, scope["path"])
        if reason:
            return self._refuse(scope, reason)
        return self._check_cookie(scope, headers, host)

    def _check_cookie(self, scope: Scope, headers: Headers, host: str) -> Response | None:
        """None for a browser with the cookie; exchanges a token for it, else refuses."""
        is_known = self._access_tokens.is_secret(_read_cookie(headers, _cookie_name(scope)))
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = next((value for name, value in query if name == "token"), None)
        if token is None or scope["method"] != "GET" or scope["path"].startswith("/api"):
            return None if is_known else self._refuse(scope, _NO_COOKIE_TEXT)
        if not is_known and not self._access_tokens.redeem(token):
            return self._refuse(scope, _TOKEN_USED_TEXT)
        if is_known:
            self._access_tokens.redeem(token)
        remaining = urlencode([(name, value) for name, value in query if name != "token"])
        target = quote(scope["path"]) + (f"?{remaining}" if remaining else "")
        return self._grant_cookie(scope, headers, "/" + target.lstrip("/"))

    def _grant_cookie(self, scope: Scope, headers: Headers, target: str) -> Response:
        # After a link from another site, browsers withhold a SameSite=Strict cookie during redirects;
        # a page of ours that refreshes itself is same-site.
        is_direct = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        response: Response = (
            RedirectResponse(target, 303)
            if is_direct
            else HTMLResponse(_REDIRECT_PAGE.format(target.replace("&", "&amp;").replace('"', "%22")))
        )
        response.set_cookie(
            _cookie_name(scope), self._access_tokens.secret, httponly=True, samesite="strict", path="/"
        )
        response.headers["cache-control"] = "no-store"
        return response

    def _refuse(self, scope: Scope, text: str, status: int = 403) -> Response:
        if scope["path"].startswith("/api"):
            return problem_response("refused", text, status)
        return PlainTextResponse(f"{text}\n", status)


def _reject_post(headers: Headers, host: str) -> str:
    origin = headers.get("origin", "").lower()
    if origin not in (f"http://{host}", f"https://{host}"):
        return f"a request that changes something must come from this page, not {origin[:100] or 'nowhere'!r}"
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "a request that changes something must come from this page"
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return "a request that changes something is JSON"
    length = headers.get("content-length", "") if "transfer-encoding" not in headers else ""
    if not length.isdecimal() or int(length) > _MAX_BODY:
        return f"a request has at most {_MAX_BODY >> 20} MB, and says how much"
    return ""


def _reject_get(headers: Headers, path: str) -> str:
    """Why a GET is refused: other sites may link to pages, but not fetch data or embed anything."""
    site, mode = headers.get("sec-fetch-site", "same-origin"), headers.get("sec-fetch-mode", "navigate")
    is_page = mode == "navigate" and headers.get("sec-fetch-dest", "document") == "document"
    is_link = is_page and not path.startswith("/api")
    return "" if site in ("same-origin", "none") or is_link else "this server answers its own page only"


def _cookie_name(scope: Scope) -> str:
    """Contains the port: cookies are shared between ports, and several viewers may run."""
    server = scope.get("server") or ("", 0)
    return f"tensortap-{server[1]}"


def _read_cookie(headers: Headers, name: str) -> str:
    """Lenient: other servers on this host set cookies too, and not all are well-formed."""
    return cookie_parser(headers.get("cookie", "")).get(name, "")


def _add_security_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY_HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return send_with_headers
