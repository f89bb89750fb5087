"""A table of attacks on a server on one's own machine: every one is refused."""

import contextlib
import json
import socket
import time
from urllib.parse import urlsplit

import pytest

from app.raw import Raw
from posterity.app import connections, security, serve
from posterity.app.security import BODY_LIMIT

FOREIGN_HOSTS = [
    "evil.com",
    "evil.com:{port}",
    "127.0.0.1.evil.com:{port}",
    "localhost.evil.com:{port}",
    "127.0.0.1",
    "127.0.0.1:1",
    "0.0.0.0:{port}",
    "[::ffff:127.0.0.1]:{port}",
    "user@127.0.0.1:{port}",
    "127.0.0.1:{port}, evil.com",
    "2130706433:{port}",
]
TRAVERSALS = [
    "../../../../etc/passwd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "..%252f..%252fetc%252fpasswd",
    "%252e%252e%252fetc%252fpasswd",
    "..%c0%af..%c0%afetc%c0%afpasswd",
    "..%ef%bc%8f..%ef%bc%8fetc/passwd",
    "..\\..\\..\\etc\\passwd",
    "..%5c..%5cetc%5cpasswd",
    "..%255c..%255cetc%255cpasswd",
    "....//....//etc/passwd",
    "..././..././etc/passwd",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "//etc/passwd",
    "file:///etc/passwd",
    "app.css%00.js",
    "app.css/../../server.py",
    "./%2e/../security.py",
    "..;/..;/etc/passwd",
    "%u002e%u002e%u2215etc%u2215passwd",
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_foreign_hosts(raw, host):
    assert raw("/api/columns", headers={"Host": host.format(port=raw.port)})[0] in (400, 421)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "LOCALHOST:{port}"])
def test_own_hosts(raw, host):
    assert raw("/", headers={"Host": host.format(port=raw.port)})[0] == 200


def test_a_server_for_the_network_answers_to_its_addresses(source, capsys):
    running = serve(source, host="0.0.0.0", browser=False, block=False)
    raw = Raw(running.url)
    own = urlsplit(running.url).hostname
    for host in ("127.0.0.1", own, socket.gethostname().upper()):
        assert raw("/", headers={"Host": f"{host}:{raw.port}"})[0] == 200
    assert own != "0.0.0.0"
    for host in ("evil.com", "10.254.253.252", "127.0.0.1.evil.com"):
        assert raw("/", headers={"Host": f"{host}:{raw.port}"})[0] == 421
    running.stop()
    assert "plain HTTP" in capsys.readouterr().err


def test_no_host_at_all(raw):
    assert raw("/api/columns", headers={"Host": ""})[0] in (400, 421)


@pytest.mark.parametrize("path", TRAVERSALS)
def test_traversal(raw, path):
    for where in ("/static/", "/", "/api/preview/", "/api/test/preview/", "/api/epoch/"):
        status, _, content = raw(where + path)
        assert status in (400, 404, 422)
        assert b"root:" not in content
        assert b"import" not in content


@pytest.mark.parametrize("origin", ["http://evil.com", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"])
def test_foreign_origins(raw, origin):
    given = origin.format(port=raw.port)
    assert raw("/api/columns", headers={"Origin": given})[0] == 403
    assert raw.post("/api/decisions", b'{"decisions": []}', Origin=given)[0] == 403


def test_changes_need_an_origin(raw):
    assert raw.post("/api/decisions", b'{"decisions": []}', Origin="")[0] == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites(raw, site):
    assert raw("/api/columns", headers={"Sec-Fetch-Site": site})[0] == 403
    assert raw("/?token=wrong", headers={"Sec-Fetch-Site": site})[0] == 403


@pytest.mark.parametrize(
    "cookie", ["", "posterity={token}", "posterity-{port}=", "posterity-{port}={token}x", "a;;=;b"]
)
def test_without_the_token(raw, cookie):
    given = {"Cookie": cookie.format(port=raw.port, token=raw.token)}
    for path in ("/", "/api/columns", "/static/main.js", "/?token=wrong", f"/api/columns?token={raw.token}"):
        assert raw(path, headers=given)[0] == 401
    assert raw("/", headers=given)[2].startswith(b"posterity: open the address")  # for whoever reloads a page


@pytest.mark.parametrize("other", ['prefs={"a": "b"}', "a[b]=1", "flag", "Path=/", "x=caf\xe9", "posterity=no"])
def test_cookies_of_other_servers_on_this_machine(raw, other):
    for cookies in (f"{other}; {raw.cookie}", f"{raw.cookie}; {other}"):
        assert raw("/api/columns", headers={"Cookie": cookies})[0] == 200


def test_the_token_becomes_a_cookie(raw):
    status, headers, _ = raw(f"/?token={raw.token}", cookie=False)
    assert status == 303
    assert headers["location"] == "/"
    assert "httponly" in headers["set-cookie"].lower()
    assert "samesite=strict" in headers["set-cookie"].lower()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_other_methods(raw, method):
    assert raw("/api/decisions", method)[0] in (400, 405)


def test_no_change_by_get(raw):
    assert raw("/api/decisions")[0] == 405
    assert raw("/api/what-if")[0] == 405


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_bodies_that_a_form_could_send(raw, kind):
    assert raw.post("/api/decisions", b'{"decisions": []}', Content_Type=kind)[0] == 415


def test_oversize(raw):
    assert raw.post("/api/decisions", b"", Content_Length=str(BODY_LIMIT + 1))[0] == 413
    assert raw("/" + "a" * 100_000)[0] in (400, 404, 414)
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    status, _, _ = raw.post("/api/decisions", chunk * 9 + b"0\r\n\r\n", Content_Length="", Transfer_Encoding="chunked")
    assert status in (413, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"decisions": 3}',
        b'{"decisions": [{"id": 99999, "decision": "drop"}]}',
        b'{"decisions": [{"id": 1, "decision": "explode"}]}',
        b'{"decisions": [{"id": true, "decision": "drop"}]}',
    ],
    ids=range(9),
)
def test_broken_decisions(raw, body):
    status, _, content = raw.post("/api/decisions", body)
    assert status == 422
    assert "expected" in json.loads(content)["error"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"remove": "%%%"}',
        b'{"remove": 3}',
        b'{"relabel": {"0": 10}}',
        b'{"relabel": {"x": 1}}',
        b'{"relabel": {"--1": 1}}',
        b'{"relabel": {"\\u00b2": 1}}',
        b'{"relabel": {"' + b"9" * 5000 + b'": 1}}',
        b"{}",
        b'{"relabel": {"0": NaN}}',
    ],
    ids=range(9),
)
def test_broken_questions(raw, body):
    status, _, content = raw.post("/api/what-if", body)
    assert status == 422
    assert json.loads(content)["error"]


@pytest.mark.parametrize("number", ["9" * 5000, "%C2%B2", "-1", "1e3", "0x1", ""])
def test_broken_numbers(raw, number):
    assert raw(f"/api/neighbours/0?k={number}")[0] == 422
    for what in ("example", "preview", "test/preview", "influences", "epoch"):
        assert raw(f"/api/{what}/{number}")[0] in (404, 422)


def test_every_answer_is_sealed(raw):
    for path in ("/", "/static/main.js", "/api/preview/0", "/nowhere"):
        _, headers, _ = raw(path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


def test_connections_that_ask_for_nothing_keep_nobody_out(source, monkeypatch):
    monkeypatch.setattr(connections, "HEADERS", 0.5)
    running = serve(source, browser=False, block=False)
    raw = Raw(running.url)
    opened = [socket.create_connection(("127.0.0.1", raw.port), timeout=30) for _ in range(300)]
    for k, connection in enumerate(opened):
        with contextlib.suppress(OSError):  # the oldest are gone already
            connection.sendall([b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\n"][k % 3])
    assert raw("/api/columns")[0] == 200
    for connection in opened:  # each ends, though none was answered
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        connection.close()
    running.stop()


def test_headers_that_trickle_in_come_to_an_end(source, monkeypatch):
    monkeypatch.setattr(connections, "HEADERS", 0.3)
    running = serve(source, browser=False, block=False)
    with socket.create_connection(("127.0.0.1", Raw(running.url).port), timeout=30) as connection:
        ended = False
        while not ended:
            try:
                connection.sendall(b"G")
                time.sleep(0.05)
            except OSError:  # a broken pipe or a reset, as it happens
                ended = True
    running.stop()


def test_bodies_that_do_not_come(source, monkeypatch):
    monkeypatch.setattr(security, "BODY_SECONDS", 0.2)
    running = serve(source, browser=False, block=False)
    status, _, content = Raw(running.url).post("/api/what-if", b"{", Content_Length="100")
    running.stop()
    assert status == 408, content
