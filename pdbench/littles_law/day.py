"""A load that changes: windows of a trace as workloads, and the jobs that a simulation of the pools takes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pdbench.littles_law.pools import Job
from pdbench.littles_law.ratio import Site, Workload
from pdbench.traces import TracedRequest

SAMPLE = 48


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a trace, what it asks for on average, and variance over mean of its counts (1 for Poisson)."""

    start_s: float
    requests: int
    workload: Workload
    dispersion: float | None


def played(trace: Sequence[TracedRequest], rate_scale: float) -> list[TracedRequest]:
    """A trace at another speed: with 2 it takes half the time."""
    return [TracedRequest(each.at_s / rate_scale, each.prompt_tokens, each.output_tokens) for each in trace]


def windows(trace: Sequence[TracedRequest], window_s: float) -> list[Window]:
    """The trace cut every `window_s`; windows with fewer than two requests are left out."""
    cut: dict[int, list[TracedRequest]] = {}
    for request in trace:
        cut.setdefault(int(request.at_s / window_s), []).append(request)
    end_s = trace[-1].at_s
    found = []
    for index, requests in sorted(cut.items()):
        start_s = index * window_s
        long_s = min(window_s, end_s - start_s)
        if len(requests) > 1 and long_s > 0.2 * window_s:
            burst = dispersion([request.at_s - start_s for request in requests], long_s)
            found.append(Window(start_s, len(requests), workload_of(requests, long_s), burst))
    return found


def dispersion(offsets_s: Sequence[float], long_s: float, bin_s: float = 1.0) -> float | None:
    """Variance over mean of the counts in bins of `bin_s`; `None` where there are too few bins to tell."""
    bins = int(long_s / bin_s)
    if bins < 10:
        return None
    counts = [0] * bins
    for at_s in offsets_s:
        if at_s < bins * bin_s:
            counts[int(at_s / bin_s)] += 1
    mean = sum(counts) / bins
    return sum((count - mean) ** 2 for count in counts) / bins / mean if mean > 0 else None


def workload_of(requests: Sequence[TracedRequest], long_s: float) -> Workload:
    """Mean rate over `long_s`, prompt lengths at evenly spaced quantiles, and the outputs' mean and CV."""
    lens = sorted(request.prompt_tokens for request in requests)
    taken = min(SAMPLE, len(lens))
    sample = tuple(float(lens[int((step + 0.5) / taken * len(lens))]) for step in range(taken))
    outs = [request.output_tokens for request in requests]
    mean = math.fsum(outs) / len(outs)
    cv = math.sqrt(math.fsum((out - mean) ** 2 for out in outs) / len(outs)) / mean
    return Workload(len(requests) / long_s, sample, mean, cv)


def job(site: Site, at_s: float, prompt_tokens: float, out_tokens: float) -> Job:
    forward, least = site.prefill.forward_ms(prompt_tokens), site.least_ttft_ms(prompt_tokens)
    return Job(at_s, forward / 1000, least / 1000, out_tokens)


def traced_jobs(trace: Sequence[TracedRequest], site: Site) -> list[Job]:
    return [job(site, each.at_s, each.prompt_tokens, each.output_tokens) for each in trace]


def turning_jobs(phases: Sequence[Workload], phase_s: float, site: Site, seed: int) -> list[Job]:
    """Poisson arrivals of one workload after another, `phase_s` each."""
    return list(_turning(phases, phase_s, site, random.Random(seed)))


def _turning(phases: Sequence[Workload], phase_s: float, site: Site, rng: random.Random) -> Iterator[Job]:
    for index, workload in enumerate(phases):
        at_s = index * phase_s + rng.expovariate(workload.qps)
        while at_s < (index + 1) * phase_s:
            yield job(site, at_s, rng.choice(workload.prompt_lens), _length(workload, rng))
            at_s += rng.expovariate(workload.qps)


def _length(workload: Workload, rng: random.Random) -> float:
    if workload.out_cv == 0:
        return workload.out_tokens
    shape = 1 / workload.out_cv**2
    return max(1.0, rng.gammavariate(shape, workload.out_tokens / shape))
