"""The Anthropic SDK behind the outbound proxy. Only its base URL differs."""

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic

PROXY, PROVIDER = sys.argv[1:3]
HELLO: Any = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
client = anthropic.Anthropic(base_url=f"{PROXY}/anthropic", api_key="sk-test", max_retries=0)


def provider(path: str) -> dict[str, int]:
    with urllib.request.urlopen(PROVIDER + path) as response:
        return json.load(response)


def call(_: int) -> str:
    block = client.messages.create(model="m", **HELLO).content[0]
    return block.text if block.type == "text" else block.type


# The proxy has no policy for it: it learns from the first answers. The provider may refuse some calls meanwhile, which
# then wait and leave again; the SDK sees none of that.
with ThreadPoolExecutor(12) as pool:
    assert list(pool.map(call, range(12))) == ["hello"] * 12
refused = provider("/refused").get("anthropic", 0)
with ThreadPoolExecutor(12) as pool:
    assert list(pool.map(call, range(12))) == ["hello"] * 12
again = provider("/refused").get("anthropic", 0)
assert again == refused, f"{refused} were refused before the proxy knew the limit, and {again - refused} after"

# A stream arrives as it is sent: its second half is only sent when the first has been read.
arrived = []
with client.messages.stream(model="m", **HELLO) as stream:
    for text in stream.text_stream:
        arrived.append(text)
        provider("/resume")
assert arrived == ["hel", "lo"], arrived
assert "held back" not in provider("/seen"), provider("/seen")

# The day is used up.
errors = []
for _ in range(2):
    try:
        client.messages.create(model="exhausted", **HELLO)
        raise SystemExit("no error")
    except anthropic.RateLimitError as error:
        errors.append(error)
assert "daily limit" in str(errors[0]), str(errors[0])
answer = errors[1].response.json()
assert answer["error"]["type"] == "rate_limit_error" and answer["provider"] == "anthropic", answer
assert answer["numbers"] == "server" and answer["retry_after_ms"] > 40_000_000, answer
assert provider("/seen")["exhausted"] == 1, "the provider was asked once"
print("fine")
