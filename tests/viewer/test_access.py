"""Who may ask, and what a stranger is told."""

import httpx
import pytest

from tensortap.core.errors import RefusedError
from tensortap.viewer.server import view


@pytest.fixture
def stranger(look):
    """A client that holds no key, and the viewer."""
    viewer = look().viewer
    with httpx.Client(base_url=viewer.address, trust_env=False) as client:
        yield client, viewer


@pytest.mark.parametrize(
    "path", ["/", "/run/abcd", "/static/app.js", "/plotly.js", "/api/runs", "/api/events"]
)
def test_without_a_key_nothing_is_answered(stranger, path):
    answer = stranger[0].get(path)
    assert answer.status_code == 403
    assert "open the address that tensortap view printed" in answer.text


def test_an_address_lets_one_browser_in_once_and_leaves_no_token_behind(stranger):
    client, viewer = stranger
    address, told = viewer.url, []
    viewer.tokens.on_token_reused = lambda: told.append(True)
    first = client.get(address)
    assert first.status_code == 303
    assert "token" not in first.headers["location"]
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    client.cookies.clear()
    second = client.get(address)
    assert second.status_code == 403
    assert "has been used" in second.text
    assert told == [True]


def test_who_comes_by_a_link_from_another_site_is_sent_on_by_a_page_of_our_own(stranger):
    client, viewer = stranger
    answer = client.get(viewer.url, headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
    assert answer.status_code == 200
    assert 'http-equiv="refresh" content="0;url=/"' in answer.text
    assert "set-cookie" in answer.headers


def test_a_wrong_token_is_worth_nothing(stranger):
    assert stranger[0].get("/?token=wrong").status_code == 403
    assert stranger[0].get("/api/runs?token=wrong").status_code == 403
    assert stranger[0].get("/", headers={"cookie": "tensortap-80=x; ="}).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost@evil"]
)
def test_a_foreign_host_is_refused_even_with_the_key(look, host):
    answer = look().http.get("/api/runs", headers={"host": host})
    assert answer.status_code in (400, 403)


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "[::1]:7007"])
def test_a_port_that_ssh_forwards_may_have_any_number(look, host):
    assert look().http.get("/api/meta", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"content-type": "text/plain"},
    ],
)
def test_a_post_from_elsewhere_is_refused(look, headers):
    client = look(allow_actions=True)
    told = client.post("/api/live/abcd/tap", {"patterns": ["*"]}, 403, **headers)
    assert told["error"]["kind"] == "refused"


def test_what_is_asked_from_within_another_site_is_refused(look):
    client = look()
    for site in ("cross-site", "same-site"):
        answer = client.http.get("/api/runs", headers={"sec-fetch-site": site, "sec-fetch-mode": "cors"})
        assert answer.status_code == 403
    framed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    assert client.http.get("/", headers=framed).status_code == 403


@pytest.mark.parametrize("what", ["tap", "untap", "watch", "record"])
def test_a_viewer_only_looks_unless_told_otherwise(look, what):
    told = look().post(f"/api/live/abcd/{what}", {}, 403)
    assert "--allow-actions" in told["error"]["text"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_not_used(look, method):
    assert look().http.request(method, "/api/runs").status_code == 405


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/app.js", "/api/run/none", "/nowhere"])
def test_every_answer_says_what_a_browser_may_do_with_it(look, path):
    headers = look().http.get(path).headers
    assert "script-src 'self';" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2fserver.py",
        "/static/%2e%2e/%2e%2e/cli/main.py",
        "/static//etc/passwd",
        "/api/run/..%2f..%2fetc",
        "/api/run/%2fetc%2fpasswd",
        "/api/run/....",
        "/api/run//row/0",
    ],
)
def test_a_path_outside_is_nowhere(look, path):
    answer = look().http.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text


def test_the_viewer_listens_on_this_machine_only(folder):
    with pytest.raises(RefusedError, match="ssh -L"):
        view(folder, host="0.0.0.0")


def test_a_body_that_is_no_object_or_too_long_is_refused(look):
    client = look(allow_actions=True)
    assert "must be an object" in client.post("/api/live/abcd/tap", [1], 400)["error"]["text"]
    told = client.post("/api/live/abcd/tap", {"patterns": ["x" * (1 << 20)]}, 403)
    assert "at most 1 MB" in told["error"]["text"]


@pytest.mark.parametrize("others", ['prefs={{"a": [1, 2]}}; {}', "a b=c; =x; y; {}", '{}; z={{"q"'])
def test_cookies_that_other_programs_left_do_not_lock_anyone_out(look, others):
    client = look()
    mine = "; ".join(f"{name}={key}" for name, key in client.http.cookies.items())
    with httpx.Client(base_url=client.viewer.address, trust_env=False) as another:
        answer = another.get("/api/meta", headers={"cookie": others.format(mine)})
    assert answer.status_code == 200


def test_a_body_of_unknown_length_is_refused_whatever_it_claims(look):
    client = look(allow_actions=True)
    told = client.post("/api/live/abcd/tap", {}, 403, **{"transfer-encoding": "chunked"})
    assert "says how much" in told["error"]["text"]


def test_a_link_from_another_site_leads_to_pages_and_to_no_answers(look):
    link = {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    client = look()
    assert client.http.get("/compare", headers=link).status_code == 200
    assert client.http.get("/api/runs", headers=link).status_code == 403


def test_tokens_that_never_were_any_print_no_new_address(stranger):
    client, viewer = stranger
    address, told = viewer.url, []
    viewer.tokens.on_token_reused = lambda: told.append(viewer.url)
    for number in range(100):
        assert client.get(f"/?token={number}").status_code == 403
    assert told == []
    assert client.get(address).status_code == 303
