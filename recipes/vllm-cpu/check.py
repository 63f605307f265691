#!/usr/bin/env python3
"""Prove that a running pair hands KV over: one prompt through the proxy, and what both servers counted for it.

    check.py RECIPE.toml [PROMPT_TOKENS]

Exit code 1 when decode computed the prompt itself, which looks fine to a client.
"""

import json
import random
import re
import sys
import time
import tomllib
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

COUNTED = ("prompt_tokens_by_source_total", "nixl_bytes_transferred_sum", "nixl_xfer_time_seconds_sum")


def counters(urls: list[str]) -> dict[str, float]:
    """COUNTED, with the label `source` where there is one, summed over the servers."""
    total: dict[str, float] = {}
    for url in urls:
        page = urlopen(f"{url}/metrics", timeout=30).read().decode()
        for name, labels, value in re.findall(r"^vllm:(\w+)\{(.*)\} (\S+)$", page, re.MULTILINE):
            if name in COUNTED:
                source = re.search(r'source="(\w+)"', labels)
                key = source[1] if source else name
                total[key] = total.get(key, 0) + float(value)
    return total


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    recipe = tomllib.loads(Path(sys.argv[1]).read_text())
    urls = {role: [s["url"] for s in recipe["server"] if s["role"] == role] for role in ("proxy", "prefill", "decode")}
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    prompt = [random.randrange(256, 4000) for _ in range(n)]
    body = {"model": recipe["model"], "prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0}
    before = {role: counters(urls[role]) for role in ("prefill", "decode")}
    sent = time.monotonic()
    request = Request(
        f"{urls['proxy'][0]}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    answer = json.load(urlopen(request, timeout=300))
    print(f"{n} prompt tokens, 8 output tokens in {time.monotonic() - sent:.2f} s: {answer['choices'][0]['text']!r}")
    change = {
        role: {key: value - before[role].get(key, 0) for key, value in counters(urls[role]).items()} for role in before
    }
    for role, counted in change.items():
        print(f"{role}: " + ", ".join(f"{key} {value:g}" for key, value in sorted(counted.items()) if value))
    moved, computed = (change["decode"].get(source, 0) for source in ("external_kv_transfer", "local_compute"))
    print(f"decode received {moved:g} of {n} prompt tokens and computed {computed:g}")
    return 0 if moved == n and computed == 0 else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except URLError as error:
        sys.exit(f"check.py: a server of {sys.argv[1]} does not answer: {error.reason}")
