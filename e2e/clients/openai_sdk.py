"""The OpenAI SDK behind the outbound proxy. Only its base URL differs."""

import json
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

PROXY, PROVIDER = sys.argv[1:3]
HELLO: Any = [{"role": "user", "content": "hi"}]
# It never tries again by itself, so every 429 would be seen.
client = openai.OpenAI(base_url=f"{PROXY}/openai/v1", api_key="sk-test", max_retries=0)


def provider(path: str) -> dict[str, int]:
    with urllib.request.urlopen(PROVIDER + path) as response:
        return json.load(response)


def call(_: int) -> str | None:
    return client.chat.completions.create(model="m", messages=HELLO).choices[0].message.content


def impatient_call(_: int) -> Any:
    """The response of a refusal, or None."""
    try:
        impatient.chat.completions.create(model="m", messages=HELLO)
        return None
    except openai.RateLimitError as error:
        return error.response


# Three windows' worth at once: they wait, and none is refused, not even by the provider.
started = time.monotonic()
with ThreadPoolExecutor(12) as pool:
    assert list(pool.map(call, range(12))) == ["hello"] * 12
took = time.monotonic() - started
assert took >= 4, f"12 calls at 5 in 2 s took {took} s"
assert provider("/refused").get("openai", 0) == 0, provider("/refused")

# A stream arrives as it is sent: its second half is only sent when the first has been read.
arrived = []
for chunk in client.chat.completions.create(model="m", messages=HELLO, stream=True):
    arrived.append(chunk.choices[0].delta.content)
    provider("/resume")
assert arrived == ["hel", "lo"], arrived
assert "held back" not in provider("/seen"), provider("/seen")

# A call that may not wait is refused at once, with the instant. On a slow machine a window may pass meanwhile.
impatient = client.with_options(default_headers={"Tollgate-Max-Wait": "0s"})
late: list[Any] = []
while not late:
    with ThreadPoolExecutor(12) as pool:
        late = [response for response in pool.map(impatient_call, range(12)) if response is not None]
for response in late:
    answer = response.json()
    # The policy's bucket or the provider's own, whichever has the longer wait.
    bucket = {"policy": "requests", "server": PROVIDER.removeprefix("http://")}[answer["numbers"]]
    assert answer["type"] == "urn:tollgate:problem:call-too-late" and answer["bucket"] == bucket, answer
    millis = answer["retry_after_ms"]
    # Two windows of the policy at most, if a call of the first is still under way.
    assert millis <= 4_200 and int(response.headers["retry-after"]) == max(1, -(-millis // 1_000)), answer
assert provider("/refused").get("openai", 0) == 0, provider("/refused")

# Money is used up: the provider's refusal comes through, and from then on the proxy refuses, with what the SDK knows.
eager = client.with_options(max_retries=2)
errors = []
for asking in (client, eager, eager):
    try:
        asking.chat.completions.create(model="exhausted", messages=HELLO)
        raise SystemExit("no error")
    except openai.RateLimitError as error:
        errors.append(error)
assert errors[0].code == "insufficient_quota", errors[0].body
for error in errors[1:]:
    answer = error.response.json()
    assert answer["type"] == "urn:tollgate:problem:call-quota-exhausted", answer
    assert answer["provider"] == "openai" and answer["numbers"] == "server" and answer["bucket"], answer
    assert answer["until"] and int(error.response.headers["retry-after"]) >= 200, answer
    assert error.code == "call-quota-exhausted" and "raise the budget" in str(error), str(error)
assert provider("/seen")["exhausted"] == 1, "the provider was asked once"

print("fine")
