"""Other load generators, where they are installed: the command of each for a closed loop of `streams`.

They need a tokenizer's folder (`--tokenizer DIR`), and take most of their time to start: what they cost is the CPU of
the run less that of one with a single request. What they measured is in their own reports.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

TIMEOUT_S = 600


def commands(port: int, tokenizer: Path, load: Any, directory: Path) -> dict[str, list[str]]:
    url, out = f"http://127.0.0.1:{port}", str(directory / "peer")
    streams, requests, tokens = str(load.streams), str(load.requests), str(load.tokens)
    tok = str(tokenizer)
    return {
        "vllm": [
            *("vllm", "bench", "serve", "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions"),
            *("--model", "m", "--tokenizer", tok, "--dataset-name", "random", "--random-input-len", "16"),
            *("--random-output-len", tokens, "--num-prompts", requests, "--max-concurrency", streams),
            *("--request-rate", "inf", "--ignore-eos", "--disable-tqdm"),
        ],
        "aiperf": [
            *("aiperf", "profile", "-m", "m", "--tokenizer", tok, "--url", url, "--endpoint-type", "completions"),
            *("--streaming", "--concurrency", streams, "--request-count", requests, "--isl", "16", "--osl", tokens),
            *("--ui", "none", "--output-artifact-dir", out),
        ],
        "guidellm": [
            *("guidellm", "run", "--backend", f"kind=openai_http,target={url},model=m"),
            *("--profile", f"kind=concurrent,streams={streams}", "--constraint", f"kind=max_requests,count={requests}"),
            *("--tokenizer", f"kind=hf_auto,model={tok}", "--output", f"kind=json,path={out}.json"),
            *("--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={tokens}"),
            "--disable-console-interactive",
        ],
    }


def installed() -> list[str]:
    return [name for name in ("vllm", "aiperf", "guidellm") if shutil.which(name)]


def cpu_of(command: list[str]) -> float:
    """CPU seconds of a command with all its processes. Raises CalledProcessError."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
