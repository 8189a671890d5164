"""A stand-in for OpenAI, Anthropic and GitHub: it counts requests in windows as they do, answers in their dialects, and
refuses what is too much. `/refused` says how often it had to, and `/seen` how many calls of each kind it saw. The second
half of a stream waits until its reader asks for `/resume`: a proxy that buffers delivers both halves too late."""

import json
import sys
import threading
import time
from collections import Counter
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIMIT, WINDOW = 5, 2.0
DAY = 86_400
"""How long a stream waits for its reader. Then `/seen` counts it as held back."""
PATIENCE = 30

lock = threading.Lock()
windows: dict[str, tuple[float, int]] = {}
refused: Counter[str] = Counter()
seen: Counter[str] = Counter()
resumed = threading.Event()


def count(api: str) -> tuple[bool, int, float]:
    """Whether a call passes, how many are left, and seconds until the window ends. It begins with its first call."""
    with lock:
        now = time.time()
        began, used = windows.get(api, (now, 0))
        if now - began >= WINDOW:
            began, used = now, 0
        passes = used < LIMIT
        windows[api] = (began, used + passes)
        refused[api] += not passes
        return passes, LIMIT - used - passes, began + WINDOW - now


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/resume":
            resumed.set()
        if self.path in ("/refused", "/seen", "/resume"):
            return self.answer(200, dict(refused if self.path == "/refused" else seen))
        if self.path.startswith("/repos/"):
            return self.github()
        self.answer(404, {"message": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            seen[body["model"]] += 1
        if self.headers["Host"] != f"127.0.0.1:{port}":
            return self.answer(400, {"error": {"message": f"the host is {self.headers['Host']}"}})
        if self.path == "/v1/chat/completions":
            return self.openai(body)
        if self.path == "/v1/messages":
            return self.anthropic(body)
        self.answer(404, {"error": {"message": f"no path {self.path}"}})

    def openai(self, body: dict) -> None:
        if body["model"] == "exhausted":
            message = "You exceeded your current quota, please check your plan and billing details."
            error = {"message": message, "type": "insufficient_quota", "param": None, "code": "insufficient_quota"}
            return self.answer(429, {"error": error})
        passes, left, ends = count("openai")
        headers = {
            "x-ratelimit-limit-requests": str(LIMIT),
            "x-ratelimit-remaining-requests": str(left),
            "x-ratelimit-reset-requests": f"{max(1, round(ends * 1000))}ms",
        }
        if not passes:
            error = {"message": "Rate limit reached", "type": "requests", "param": None, "code": "rate_limit_exceeded"}
            return self.answer(429, {"error": error}, headers | {"retry-after-ms": str(round(ends * 1000) + 1)})
        base = {"id": "c1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            message = {"role": "assistant", "content": "hello", "refusal": None}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            return self.answer(200, base | {"object": "chat.completion", "choices": [choice]}, headers)
        chunks = [
            base | {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
            for delta, end in (({"role": "assistant", "content": "hel"}, None), ({"content": "lo"}, "stop"))
        ]
        self.stream([f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"], headers)

    def anthropic(self, body: dict) -> None:
        if body["model"] == "exhausted":
            error = {"type": "rate_limit_error", "message": "You have reached your daily limit."}
            return self.answer(429, {"type": "error", "error": error}, {"retry-after": str(DAY // 2)})
        passes, left, ends = count("anthropic")
        resets = datetime.fromtimestamp(time.time() + ends, timezone.utc).isoformat().replace("+00:00", "Z")
        headers = {
            "anthropic-ratelimit-requests-limit": str(LIMIT),
            "anthropic-ratelimit-requests-remaining": str(left),
            "anthropic-ratelimit-requests-reset": resets,
        }
        if not passes:
            error = {"type": "rate_limit_error", "message": "This request would exceed your rate limit."}
            return self.answer(429, {"type": "error", "error": error}, headers | {"retry-after": str(int(ends) + 1)})
        message = {
            "id": "m1", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None,
            "usage": {"input_tokens": 3, "output_tokens": 2},
        }
        if not body.get("stream"):
            content = [{"type": "text", "text": "hello"}]
            return self.answer(200, message | {"content": content, "stop_reason": "end_turn"}, headers)
        text = [{"type": "text_delta", "text": part} for part in ("hel", "lo")]
        events = [
            {"type": "message_start", "message": message | {"content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": text[0]},
            {"type": "content_block_delta", "index": 0, "delta": text[1]},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
             "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        ]
        written = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
        self.stream(["".join(written[:3]), "".join(written[3:])], headers)

    def github(self) -> None:
        passes, left, ends = count("github")
        headers = {
            "x-ratelimit-limit": str(LIMIT),
            "x-ratelimit-remaining": str(left),
            "x-ratelimit-used": str(LIMIT - left),
            "x-ratelimit-reset": str(int(time.time() + ends) + 1),
            "x-ratelimit-resource": "core",
        }
        if not passes:
            return self.answer(403, {"message": "API rate limit exceeded for user ID 1."}, headers)
        page = int(self.path.rpartition("page=")[2]) if "page=" in self.path else 1
        if page < 8:
            path = self.path.partition("?")[0]
            headers["Link"] = f'<http://127.0.0.1:{port}{path}?page={page + 1}>; rel="next"'
        self.answer(200, [{"number": page, "title": "an issue"}], headers)

    def answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def stream(self, parts: list[str], headers: dict[str, str]) -> None:
        resumed.clear()
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, part in enumerate(parts):
            if number == 1 and not resumed.wait(PATIENCE):
                seen["held back"] += 1
            data = part.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


port = int(sys.argv[1])
ThreadingHTTPServer.request_queue_size = 128
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
