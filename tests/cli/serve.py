"""multihead serve as a black box: access control (token, host, origin, address), rejected requests
(10 MB of text, 200 connections, a client with one byte per second), resources that unauthorised
clients can occupy, maps and predictions, and shutdown."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import struct
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import LIBRARIES, SANITIZED, allocating, set_clock, watched  # noqa: E402

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED, NO_OUTPUT = 2, 3, 4, 5, 6
ADDRESS = re.compile(r"http://(127\.0\.0\.1|127\.0\.0\.2|\[::1\]):([0-9]+)/([0-9a-f]{32})/(#.*)?\n")
JSON = {"Content-Type": "application/json"}
MASKED = 0x7FC0A5A5
WORDS = "the animal didn't cross the street because it was too tired"


def measurable(changes):
    """The environment for measurements of memory, in which AddressSanitizer keeps little freed
    memory."""
    options = changes.get("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", ""))
    return environment(**changes | {"ASAN_OPTIONS": f"{options}:quarantine_size_mb=1"})


class Server:
    """A server of a model, which is stopped at the end of the block. `files` is its limit of open
    files."""

    def __init__(self, *arguments, files=1024, **changes):
        def prepare():
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # for tests in the background
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        self.errors = (FOLDER / "serve.err").open("wb+")
        self.process = subprocess.Popen(
            [PROGRAM, "serve", *map(str, arguments)], stdout=subprocess.PIPE, stderr=self.errors,
            stdin=subprocess.DEVNULL, env=measurable(changes), cwd=FOLDER,
            preexec_fn=prepare)
        line = self.process.stdout.readline().decode()
        match = ADDRESS.fullmatch(line)
        check(match, f"serve {arguments}: {line!r} is no address: {self.said()}")
        self.host, self.port, self.token = match[1], int(match[2]), match[3]
        self.fragment = match[4]

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode()

    def ask(self, method, place, body=None, token=None, **headers):
        """(status, headers, body) of a request; `headers` replaces a browser's headers."""
        own = {"Host": f"{self.host}:{self.port}"}
        own |= JSON if method == "POST" else {}
        own |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(self.host.strip("[]"), self.port, timeout=HANGS)
        path = f"/{self.token if token is None else token}/{place}"
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        for name, value in own.items():
            if value is not None:
                connection.putheader(name, value)
        if data is not None:
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        reply = connection.getresponse()
        result = reply.status, reply.headers, reply.read()
        connection.close()
        return result

    def post(self, place, **body):
        return self.ask("POST", place, body)

    def look(self, text=WORDS, **more):
        status, _, body = self.post("look", text=text, **more)
        check(status == 200, f"look {more}: {status} {body[:200]!r}")
        return json.loads(body)

    def resident(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", text)[1])

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(HANGS)
        self.process.stdout.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=HANGS)


def has_ended(connection, wait=HANGS):
    """Whether the peer closes within that time; 0 means that it has closed already."""
    connection.settimeout(wait)
    with contextlib.suppress(ConnectionError):
        try:
            while connection.recv(65536):
                pass
        except (TimeoutError, BlockingIOError):
            return False
    return True


def train_model():
    folder = FOLDER / "model"
    check_good(run("train", "sentences", "--steps", "3", "--tries", "1", "--no-report", "--quiet", "-o", folder), "train")
    return folder


def error_of(body):
    return json.loads(body)["error"]


# ---- access control ------------------------------------------------------------------------------

def test_strangers(s):
    own = f"127.0.0.1:{s.port}"
    for place in ("", "page.css", "page.js"):
        status, headers, body = s.ask("GET", place)
        check(status == 200 and len(body) > 1000, f"{place!r}: {status}")
        policy = headers["Content-Security-Policy"]
        check("default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
              and "frame-ancestors 'none'" in policy, f"policy: {policy}")
        check(headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
              and headers["Referrer-Policy"] == "no-referrer", f"headers of {place!r}: {headers}")
        check(headers["Access-Control-Allow-Origin"] is None, "no other origin is let in")
    check(s.ask("GET", "", Host=f"localhost:{s.port}")[0] == 200, "localhost is this machine")
    for host in ("evil.example", f"evil.example:{s.port}", "127.0.0.1", f"127.0.0.1:{s.port + 1}",
                 f"127.0.0.1.evil.example:{s.port}", f"localhost.:{s.port}", f":{s.port}", "",
                 f"0.0.0.0:{s.port}", f"[::1]:{s.port}", f"10.0.0.1:{s.port}"):
        status, _, body = s.ask("POST", "look", {"text": WORDS}, Host=host)
        check(status in (400, 403) and b"tokens" not in body, f"host {host!r}: {status}")
    check(s.ask("POST", "look", {"text": WORDS}, Origin=f"http://{own}")[0] == 200, "the own origin")
    for origin in ("http://evil.example", "null", f"https://{own}", f"http://localhost:{s.port}",
                   f"http://127.0.0.1:{s.port}0", "http://127.0.0.1"):
        for place in ("look", "map", "save", "quit"):
            status, _, body = s.ask("POST", place, {"text": WORDS}, Origin=origin)
            check(status == 403 and error_of(body), f"origin {origin} at {place}: {status}")
    check(s.ask("POST", "look", {"text": WORDS}, Sec_Fetch_Site="cross-site")[0] == 403, "another site")
    check(s.ask("POST", "look", {"text": WORDS}, Sec_Fetch_Site="same-origin")[0] == 200, "own page")
    turned = ("0" if s.token[-1] != "0" else "1")
    for token in ("", "x", s.token[:-1], s.token[:-1] + turned, s.token + "0", s.token.upper() + "X",
                  "%00" * 32, "0" * 32):
        for method, place in (("GET", ""), ("GET", "page.js"), ("POST", "look"), ("POST", "quit")):
            status, _, body = s.ask(method, place, {"text": "a"} if method == "POST" else None, token)
            check(status == 403, f"token {token!r} at {place!r}: {status} {body[:80]!r}")
    check(s.token not in s.said(), "the token is on stdout alone")


def test_places(s):
    for method, place, status in (("GET", "look", 405), ("POST", "", 405), ("OPTIONS", "look", 405),
                                  ("PUT", "look", 405), ("DELETE", "", 405), ("GET", "nothing", 404),
                                  ("GET", "../", 404), ("GET", "page.js/", 404),
                                  ("GET", "page.js%00", 404), ("GET", "page%2ejs", 404)):
        given, headers, _ = s.ask(method, place, b"{}" if method in ("POST", "PUT") else None)
        check(given == status, f"{method} {place}: {given}, expected {status}")
        check(headers["Access-Control-Allow-Methods"] is None, "no methods for other origins")
    own = b"Host: 127.0.0.1:%d\r\n" % s.port
    for more in (b"Host: evil.example\r\n", b"host: 127.0.0.1:%d\r\n" % s.port, b"Origin: a\r\nOrigin: b\r\n",
                 b"Sec-Fetch-Site: none\r\nSec-Fetch-Site: same-origin\r\n"):
        for head in (own + more, more + own):
            connection = connect(s)
            connection.sendall(b"GET /%s/ HTTP/1.1\r\n%s\r\n" % (s.token.encode(), head))
            check(connection.recv(99).startswith(b"HTTP/1.1 400"), f"a header twice: {head}")
            connection.close()
    for kind in (None, "text/plain", "application/jsonx", "application/x-www-form-urlencoded"):
        status = s.ask("POST", "look", {"text": WORDS}, Content_Type=kind)[0]
        check(status == 415, f"content type {kind}: {status}")


def test_address(model):
    with Server(model, "-q") as s:
        for other in ("127.0.0.2", own_address()):
            if other:
                with socket.socket() as try_it:
                    check(try_it.connect_ex((other, s.port)) != 0, f"{other}: nothing listens there")
    with Server(model, "--address", "127.0.0.2") as s:
        check(s.host == "127.0.0.2" and s.ask("GET", "")[0] == 200, "another loopback address")
        check("warning" not in s.said(), "which is no wider")
    with Server(model, "--address", "0.0.0.0") as s:
        check("0.0.0.0 is reachable from other machines" in s.said(), f"said so: {s.said()}")
        check(s.ask("GET", "", Host=f"192.0.2.7:{s.port}")[0] == 200, "an address as a number is its own")
        check(s.ask("GET", "", Host=f"evil.example:{s.port}")[0] == 403, "a name is not")
    check_error(run("serve", model, "--address", "localhost"), USAGE, "--address localhost", "a numeric address",
                command="serve")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        check_error(run("serve", model, "--port", port), NO_OUTPUT, "cannot listen", str(port),
                    command="serve")
    with Server(model, "-q") as s:
        for address in ("127.0.0.1", "0.0.0.0"):
            with subprocess.Popen([PROGRAM, "serve", model, "--port", str(s.port), "--address", address],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as second:
                if not check(second.stdout.readline() == b"", f"{address}: a second server of one port"):
                    second.kill()
                check(second.wait(HANGS) == NO_OUTPUT and b"in use" in second.stderr.read(), "which is taken")


def own_address():
    """An address outside the loopback interface, or None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        return None if s.getsockname()[0].startswith("127.") else s.getsockname()[0]


# ---- limits --------------------------------------------------------------------------------------

def test_sizes(s):
    s.look()
    before = s.resident()
    long = json.dumps({"text": "word " * (2 << 20)}).encode()
    check(len(long) > 10_000_000, "10 MB")
    connection = connect(s)
    connection.sendall(b"POST /%s/look HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n" % (s.token.encode(), s.port, len(long)))
    head = connection.recv(65536)
    check(head.startswith(b"HTTP/1.1 413"), f"10 MB are refused before they are read: {head[:60]!r}")
    connection.close()
    connection = connect(s)
    connection.sendall(b"POST /%s/look HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                       b"Transfer-Encoding: chunked\r\n\r\n" % (s.token.encode(), s.port))
    with contextlib.suppress(ConnectionError):
        for at in range(0, len(long), 65536):
            piece = long[at:at + 65536]
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
    reply = b""
    with contextlib.suppress(ConnectionError):
        reply = connection.recv(65536)
    check(b"200" not in reply[:20], f"10 MB of unknown length: {reply[:60]!r}")
    connection.close()
    connection = connect(s)
    with contextlib.suppress(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n")
    reply = b""
    with contextlib.suppress(ConnectionError):
        reply = connection.recv(65536)
    check(reply == b"" or reply.startswith(b"HTTP/1.1 4"), f"a header of 1 MB: {reply[:60]!r}")
    connection.close()
    grown = s.resident() - before
    check(grown < 8 << 20, f"memory grows by {grown} bytes")
    s.look()


def test_connections(s):
    many = [connect(s) for _ in range(200)]
    check(s.look()["tokens"] > 0, "a reader is answered beside 200 that say nothing")
    check(s.files() < 150, f"{s.files()} open files")
    own = http.client.HTTPConnection("127.0.0.1", s.port, timeout=HANGS)
    for _ in range(3):  # one connection with the token among new ones without it
        own.request("POST", f"/{s.token}/look", json.dumps({"text": WORDS}), JSON)
        reply = own.getresponse()
        check(reply.status == 200 and reply.read(), "it goes on")
        many += [connect(s) for _ in range(70)]
    own.close()
    check(has_ended(many[0]), "the oldest stranger was sent away")
    for connection in many:
        connection.close()


def strangers(s, count, requests):
    """Connections that repeatedly send requests without the token and read no answers."""
    made = []
    for _ in range(count):
        made.append(socket.socket())
        made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        made[-1].connect(("127.0.0.1", s.port))
        made[-1].setblocking(False)
        with contextlib.suppress(ConnectionError, BlockingIOError):
            made[-1].send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * requests)
    return made


def test_attack(model):
    """Clients without the token leave 4,000 answers unread, and ten times more of them connect than
    the server accepts, on a stopped clock. A client with the token gets an answer at the first
    attempt, on old and new connections."""
    set_clock(FOLDER / "still", 1000)
    with Server(model, "-q", "--threads", 1, **watched(clock=FOLDER / "still")) as s:
        own = http.client.HTTPConnection("127.0.0.1", s.port, timeout=HANGS)
        memory = []
        for number in range(4):
            many = strangers(s, 520, 4000)
            check(s.look()["tokens"] > 0, f"{number}: a new connection is answered")
            own.request("POST", f"/{s.token}/look", json.dumps({"text": WORDS}), JSON)
            check(own.getresponse().read().startswith(b'{"tokens"'), f"{number}: an old one is not ended")
            memory.append(s.resident())
            check(s.files() < 100, f"{number}: {s.files()} open files")
            for connection in many:
                connection.close()
        own.close()
        # A sanitizer stores data about each allocation.
        most = 8 if os.environ.get("MHA_SANITIZE") else 1
        check(memory[-1] - memory[0] < most << 20, f"memory grows: {memory}")
        few = s.files() + 6
    with Server(model, "-q", "--threads", 1, files=few, **watched(clock=FOLDER / "still")) as s:
        many = strangers(s, 60, 4000)
        for number in range(20):
            check(s.look()["tokens"] > 0, f"{number}: answered with {few} open files at most")
            many += strangers(s, 5, 1)
        for connection in many:
            connection.close()


def test_left(model):
    """A request ends when its client has disconnected, whichever check detects this."""
    for number in (1, 2, 3, 5, 7):
        with Server(model, "-q", **watched(left=number)) as s:
            status, _, body = s.post("look", text=WORDS)
            check(status == 503 and "interrupted" in error_of(body), f"question {number}: {status} {body[:99]!r}")
            check(s.look()["tokens"] > 0, "the next one is answered")


def test_slow(model):
    """A client that sends single bytes of a header or a body, or reads single bytes of a reply,
    with pauses on a fake clock."""
    clock = FOLDER / "clock"

    def at(second):
        set_clock(clock, 1000 + second)
        for _ in range(2):  # the server reads the clock between two requests
            check(s.look()["tokens"] > 0, "others are answered meanwhile")

    set_clock(clock, 1000)
    with Server(model, "-q", "--threads", 1, **watched(clock=clock)) as s:
        head, body, reader = connect(s), connect(s), socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", s.port))
        request = b"POST /%s/look HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % (s.token.encode(), s.port)
        body.sendall(request + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
        reader.sendall(b"GET /%s/page.js HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (s.token.encode(), s.port))
        for second in range(0, 21, 5):
            at(second)
            check(not has_ended(head, 0) and not has_ended(body, 0), f"{second} s: they may go on")
            head.sendall(request[second:second + 5])
            body.sendall(b" ")
            reader.recv(1)
        at(21)
        check(has_ended(head) and has_ended(body), "both are ended")
        at(122)
        check(has_ended(reader), "nobody stays for ever")
        check(s.said() == "", f"nothing is said on stderr: {s.said()}")
        for connection in (head, body, reader):
            connection.close()


# ---- errors in requests --------------------------------------------------------------------------

def test_bad_requests(s):
    for body, part in ((b"", "not JSON"), (b"{", "not JSON"), (b"[]", "a JSON object"), (b"{}", "text"),
                       (b'{"text":1}', "text"), (b'{"text":""}', "empty"), (b'{"text":"  "}', "empty"),
                       (b'{"text":"a","text":"b"}', "not JSON"), (b'{"text":"\\u0000"}', "not JSON"),
                       (b'{"text":"\xff"}', "not JSON"), (b'{"text":"it","x":1}', "no such field"),
                       (b'{"text":"it","off":["L9H0"]}', "no head L9H0"),
                       (b'{"text":"it","off":["L0H99999999"]}', "no head"),
                       (b'{"text":"it","off":["L0H1","L1H0","L0H1"]}', "L0H1 is given twice"),
                       (b'{"text":"it","other":"it","patched":["L1H0"' + b',"L1H0"' * 20_000 + b"]}",
                        "L1H0 is given twice"),
                       (b'{"text":"it","off":["L0H1x"]}', "L3H11"), (b'{"text":"it","off":[1]}', "L3H11"),
                       (b'{"text":"it","off":"L0H1"}', "a list"), (b'{"text":"it","row":99}', "tokens"),
                       (b'{"text":"it","row":-2}', "row"), (b'{"text":"it","row":0.5}', "row"),
                       (b'{"text":"it","patched":["L0H1"]}', "second text"),
                       (b'{"text":"it","at":"first"}', "at"), (b'{"text":"it","maps":1}', "maps"),
                       (b'{"text":"' + b"it " * 400 + b'"}', "the limit is"),
                       (b"[" * 100_000, "not JSON")):
        status, headers, reply = s.ask("POST", "look", body)
        check(status == 422 and part in error_of(reply), f"{body[:60]!r}: {status} {reply[:200]!r}")
        check(headers["Content-Type"] == "application/json", "errors are JSON")
        check("--truncate" not in error_of(reply), f"an option of others: {reply[:200]!r}")
    check(s.post("map", text=WORDS)[0] == 422, "a map of no head")
    check(s.post("map", text=WORDS, head="L9H0")[0] == 422, "a map of a head that is not there")
    status, _, body = s.post("save", text=WORDS, head="L9H9", cell=[999, 999])
    check(status == 200, f"a report opens somewhere else then: {status} {body[:100]!r}")
    check(s.look()["tokens"] > 0, "and the server goes on")


# ---- results -------------------------------------------------------------------------------------

def floats(data):
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def test_maps(s, model):
    """A map equals view's, and the future of a causal model is marked."""
    check_good(run("view", model, WORDS, "--npy", FOLDER / "all.npy", "-q"), "view --npy")
    (layers, heads, rows, _), _, values = read_npy((FOLDER / "all.npy").read_bytes())
    seen = s.look()
    check(seen["tokens"] == rows and len(seen["maps"]["panels"]) == layers * heads, "every head")
    for layer, head in ((0, 0), (1, 2)):
        status, headers, body = s.post("map", text=WORDS, head=f"L{layer}H{head}")
        check(status == 200 and headers["Content-Type"] == "application/octet-stream", "a map")
        at = (layer * heads + head) * rows * rows
        bits = struct.unpack(f"<{rows * rows}I", body)
        for i, value in enumerate(floats(body)):
            r, c = divmod(i, rows)
            if c > r:
                check(bits[i] == MASKED, f"L{layer}H{head} {r},{c}: masked")
            else:
                check(value == values[at + i], f"L{layer}H{head} {r},{c}: {value} {values[at + i]}")


def test_predictions(s):
    whole = s.look()["next"]
    check(not whole["changed"] and whole["row"] == s.look()["tokens"] - 1, "the last token")
    chances = [line["p"] for line in whole["tokens"]]
    check(chances == sorted(chances, reverse=True) and 0 < sum(chances) <= 1 + 1e-9, f"{chances}")
    off = s.look(off=["L0H0", "L1H1"])["next"]
    check(off["changed"] and off["divergence"] > 0, f"{off}")
    known = {line["id"]: line for line in off["tokens"]}
    for line in whole["tokens"]:
        check(known[line["id"]]["logit_whole"] == line["logit"], "beside the whole model")
    again = s.look(off=["L1H1", "L0H0"], maps=False)
    check("maps" not in again and [t["logit"] for t in again["next"]["tokens"]]
          == [t["logit"] for t in off["tokens"]], "whatever the order")
    same = s.look(patched=["L0H0", "L1H1"], other=WORDS)["next"]
    check(same["changed"] and same["divergence"] < 1e-9, f"patched with itself: {same['divergence']}")
    other = WORDS.replace("tired", "wide")
    patched = s.look(patched=["L0H0", "L1H1", "L1H0"], other=other)
    check(patched["patched"] == patched["tokens"] and patched["next"]["divergence"] > 0, "patched")
    last = s.look(patched=["L0H0"], other="the street", at="last")
    check(last["patched"] == 1, f"at the last token: {last['patched']}")
    part = s.look(patched=["L0H0"], other="the street")
    check(1 < part["patched"] < part["tokens"], f"at those that both have: {part['patched']}")


def test_long(model_of):
    """Maps of texts that exceed a map's size show the largest weights of blocks."""
    folder = model_of(layers=3, heads=4, length=1500)
    with Server(folder, "-q") as s:
        text = " ".join(["red green"] * 550)
        seen = s.look(text)
        tokens, maps = seen["tokens"], seen["maps"]
        check(tokens == 1101 and maps["map_tokens"] == 2, f"{tokens} {maps['map_tokens']}")
        check(maps["cell_tokens"] > 2 and maps["token_count"] == tokens, f"{maps['cell_tokens']}")
        status, _, body = s.post("map", text=text, head="L2H3")
        side = (tokens + 1) // 2
        check(status == 200 and len(body) == 4 * side * side, f"{status} {len(body)}")
        check(s.post("save", text=text, head="L2H3")[0] == 200, "a report")


def test_other_carrier(s, model):
    """The library's answers over a different transport are byte-identical to the server's, in any
    order."""
    heads, other = ["L0H0", "L1H1"], {"other": WORDS.replace("tired", "wide")}
    requests = [(place, {"text": WORDS, **more}) for place in ("look", "save", "map", "trace") for more in (
        {}, {"head": "L1H2"}, {"off": heads, "row": 3, "head": "L0H1"}, {"off": heads, "maps": False},
        {"patched": heads, **other, "head": "L1H0"}, {"patched": heads, **other, "at": "last", "dark": True})]
    requests += [("look", {"text": ""}), ("look", {"txt": WORDS}), ("map", {})]
    asked = [(place, json.dumps(body).encode()) for place, body in requests] + [
        ("page", b""), ("page.css", b""), ("page.js", b"")]
    given = subprocess.run([LIBRARIES / "live_carrier", model, model.name], check=True, capture_output=True,
                           input=b"".join(b"%s %d\n%s" % (place.encode(), len(body), body)
                                          for place, body in reversed(asked))).stdout
    answers = []
    while given:
        line, _, given = given.partition(b"\n")
        status, size = map(int, line.split())
        answers.append((status, given[:size]))
        given = given[size:]
    for (place, body), (code, answer) in zip(asked, reversed(answers), strict=True):
        status, _, reply = s.ask("POST" if body else "GET", "" if place == "page" else place, body or None)
        if code:
            answer = json.dumps({"error": answer.decode()}).encode()
            reply = json.dumps(json.loads(reply)).encode()
        check((status == 200) == (code == 0), f"{place} {body}: {status} and {code} {answer[:80]}")
        seconds = re.compile(rb'"seconds":[0-9.e-]+')
        check(seconds.sub(b"", answer) == seconds.sub(b"", reply), f"{place} {body}: other bytes")


def test_request_without_memory(model):
    """If an allocation fails while a request is read, the answer is out of memory, not a malformed
    request."""
    body, count = json.dumps({"text": 1, "off": ["L0H0"] * 3000}).encode(), FOLDER / "count"

    def carried(**settings):
        return subprocess.run([LIBRARIES / "live_carrier", model, "m"], check=True, capture_output=True,
                              input=b"look %d\n%s" % (len(body), body), env=environment(**allocating(**settings)))

    check(carried(count=count).stdout.endswith(b"text: expected a text"), "undisturbed")
    for before in (200, 2000):
        answer = carried(fail=int(count.read_text()) - before).stdout
        check(answer.startswith(b"40 "), f"{before} before the end: {answer[:100]}")


def long_model(layers, heads, length):
    folder = FOLDER / f"long-{layers}-{heads}"
    folder.mkdir()
    words, width = ["<s>", "</s>", "red", "green"], heads
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="multihead", vocab_size=len(words), max_length=length, embed_dim=width,
        num_layers=layers, num_heads=heads, ff_dim=0, norm="none", positions="none", causal=True)))
    small = [[0.1 * ((3 * i + 5 * j) % 7 - 3) for j in range(width)] for i in range(width)]
    matrices = {"embed_tokens.weight": [[float((i + j) % 3) for j in range(width)] for i in range(4)],
                "lm_head.weight": [[float(i == j) for j in range(width)] for i in range(4)]}
    for layer in range(layers):
        for part in "qkvo":
            matrices[f"layers.{layer}.self_attn.{part}_proj.weight"] = small
    write_matrices(folder, matrices)
    first = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                      {"Sequence": {"id": "A", "type_id": 0}}]}
    (folder / "tokenizer.json").write_text(json.dumps(
        {"pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": first,
         "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)},
                   "unk_token": "<s>"}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10 ** 30}))
    return folder


def test_encoder():
    with Server(MODEL, "-q") as s:
        seen = s.look(TEXT)
        check(seen["next"] is None and seen["maps"]["panels"], "an encoder has maps and no prediction")
        check(s.post("save", text=TEXT)[0] == 200, "and a report")


# ---- shutdown ------------------------------------------------------------------------------------

def test_end(model):
    s = Server(model, "it was too tired & <b>")
    check(s.fragment == "#text=it%20was%20too%20tired%20%26%20%3cb%3e", f"{s.fragment}")
    check(s.ask("POST", "quit", {}, Origin="http://evil.example")[0] == 403, "not for others")
    check(s.post("quit")[0] == 200 and s.process.wait(HANGS) == 0, "ends when asked")
    check(s.end() == 0, "with success")
    for how in (signal.SIGINT, signal.SIGTERM):
        s = Server(model, "-q")
        check(s.end(how) == -how and s.said() == "", f"signal {how}: {s.process.returncode} {s.said()}")
    first, second = Server(model, "-q"), Server(model, "-q")
    check(first.token != second.token, "another token each time")
    first.end()
    second.end()


def test_misuse(model):
    check(run("serve").code == USAGE, "no model")
    check_error(run("serve", model, "a", "b"), USAGE, "one argument too many", command="serve")
    check_error(run("serve", FOLDER / "nothing"), NO_INPUT, "nothing", command="serve")
    check_error(run("serve", model, "--max-tokens", "5000"), USAGE, "at most", command="serve")


def main():
    if "without serve" in run("--version").out.decode():
        check_error(run("serve", "model"), UNSUPPORTED, "without libmicrohttpd", command="serve")
        return
    model = train_model()
    test_misuse(model)
    if not SANITIZED:
        test_request_without_memory(model)
    with Server(model, "-q") as s:
        test_strangers(s)
        test_places(s)
        test_bad_requests(s)
        test_maps(s, model)
        test_predictions(s)
        test_other_carrier(s, model)
        test_sizes(s)
        test_connections(s)
        check(s.said() == "", f"nothing is said on stderr: {s.said()}")
    test_attack(model)
    test_left(model)
    test_slow(model)
    test_address(model)
    test_encoder()
    test_long(long_model)
    test_end(model)


main()
finish()
