"""A metrics page as rows: exact values from pages of real servers, renames, ranks, NaN, cut pages, any order."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pdbench.probe.scrape import SCRAPES, BadPage, Reader, Row, read_page
from pdbench.probe.vocabulary import ENGINES, family_names, guess_engine, useful_looking
from tests.probe.replay_server import capture


def values(rows: tuple[Row, ...]) -> dict[tuple[str, str, str, str], float]:
    """By (canonical, kind, engine, labels)."""
    found = {(canonical, kind, engine, labels): value for _, canonical, kind, engine, labels, value in rows}
    assert len(found) == len(rows), "two rows say the same thing"
    return found


def test_a_real_decode_page() -> None:
    page = read_page("vllm", capture("vllm-pull-decode.metrics"), edge=True)
    said = values(page.rows)
    assert (page.dropped, page.models) == (0, ("mid",))
    for canonical, kind, value in [
        ("nixl_xfer_s", "sum", 14.027906999999997),
        ("nixl_xfer_s", "count", 348),
        ("nixl_post_s", "sum", 4.105973000000001),
        ("nixl_nbytes", "sum", 2.921332736e09),
        ("nixl_descriptors", "sum", 8876),
        ("nixl_kv_expired", "counter", 0),
        ("nixl_used_after_expiry", "counter", 0),
        ("running", "gauge", 0),
        ("waiting", "gauge", 0),
        ("kv_cache_usage", "gauge", 0),
        ("preemptions", "counter", 0),
        ("prompt_tokens", "counter", 356586),
        ("generation_tokens", "counter", 20704),
        ("prefix_cache_hits", "counter", 4480),
        ("external_prefix_cache_hits", "counter", 352106),
        ("ttft_s", "sum", 3093.263350248337),
        ("itl_s", "count", 20356),
        ("tpot_s", "sum", 18.56315446909535),
        ("e2e_s", "sum", 4222.849080324173),
        ("queue_s", "sum", 3029.8767670760035),
        ("prefill_s", "sum", 20.053872971996498),
        ("decode_s", "sum", 1129.0387053130062),
    ]:
        assert said[canonical, kind, "0", "{}"] == value, canonical
    assert said["prompt_tokens_by_source", "counter", "0", '{"source":"external_kv_transfer"}'] == 352106
    assert said["request_success", "counter", "0", '{"finished_reason":"length"}'] == 348
    assert said["kv_fetch_stage", "gauge", "0", '{"stage":"waiting_to_start"}'] == 0
    assert said["waiting_by_reason", "gauge", "0", '{"reason":"deferred"}'] == 0
    assert said["admission_rejections", "counter", "", '{"reason":"max_num_queued_reqs"}'] == 0, (
        "it has no engine label"
    )
    assert said["process_start_s", "gauge", "", "{}"] == 1.79599764435e09
    assert said["itl_s", "bucket", "0", '{"le":"+Inf"}'] == 20356
    (config,) = [json.loads(labels) for canonical, _, _, labels in said if canonical == "cache_config"]
    assert config["num_gpu_blocks"] == "512"
    assert not any("created" in metric for metric, *_ in page.rows), "X_created are not counters"
    assert "iteration" not in str(page.rows), "iteration_tokens_total is a histogram and not asked for"


def test_between_edges_there_are_no_buckets_and_nothing_that_stays_the_same() -> None:
    page = capture("vllm-pull-decode.metrics")
    whole, light = read_page("vllm", page, edge=True), read_page("vllm", page)
    left_out = set(whole.rows) - set(light.rows)
    still = {"cache_config", "params_n"}
    assert {(canonical if canonical in still else kind) for _, canonical, kind, *_ in left_out} == {"bucket", *still}
    assert set(light.rows) < set(whole.rows)


def test_push_shows_transfers_on_the_prefill_page() -> None:
    key = ("nixl_xfer_s", "count", "0", "{}")
    assert values(read_page("vllm", capture("vllm-push-prefill.metrics")).rows)[key] == 62
    assert values(read_page("vllm", capture("vllm-push-decode.metrics")).rows)[key] == 0


def test_a_server_without_a_connector_shows_no_transfers_at_all() -> None:
    rows = read_page("vllm", capture("vllm-single.metrics"), edge=True).rows
    assert not any("nixl" in canonical or "fetch" in canonical for _, canonical, *_ in rows)


def test_dynamo_pages() -> None:
    frontend = values(read_page("dynamo", capture("dynamo-frontend.metrics"), model="tiny", edge=True).rows)
    assert frontend["frontend_stage_requests", "gauge", "", '{"phase":"decode","stage":"dispatch"}'] == 28
    assert frontend["frontend_queued", "gauge", "", "{}"] == 28
    assert frontend["frontend_inflight", "gauge", "", "{}"] == 32
    assert frontend["frontend_ttft_s", "count", "", "{}"] == 24
    assert frontend["max_num_seqs", "gauge", "", "{}"] == 4
    assert not any("unknown_model" in labels for _, _, _, labels in frontend)
    (transfer,) = [v for (canonical, kind, *_), v in frontend.items() if (canonical, kind) == ("est_transfer_s", "sum")]
    assert transfer == 11.398006865999998
    prefill = read_page("dynamo", capture("dynamo-prefill.metrics")).rows
    assert [(c, k, v) for _, c, k, _, _, v in prefill] == [
        ("inflight", "gauge", 0),
        ("prefill_leg_s", "sum", 34.521051249),
        ("prefill_leg_s", "count", 52),
        ("rejections", "counter", 0),
    ], "only the generate endpoint counts"
    decode = read_page("dynamo", capture("dynamo-decode.metrics")).rows
    said = {(c, k): v for _, c, k, _, _, v in decode}
    assert (said["running", "gauge"], said["waiting", "gauge"], said["inflight", "gauge"]) == (4, 28, 32)
    assert ("prefill_leg_s", "sum") not in said
    assert [metric for metric, canonical, *_ in decode if canonical == "kv_cache_usage"] == ["vllm:kv_cache_usage_perc"]


def test_sglang_behind_dynamo() -> None:
    said = {(c, k): v for _, c, k, _, _, v in read_page("dynamo", capture("dynamo-sglang-decode.metrics")).rows}
    assert (said["running", "gauge"], said["waiting", "gauge"], said["ttft_s", "count"]) == (2, 12, 4)


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("vllm-single", "vllm"),
        ("vllm-pull-prefill", "vllm"),
        ("dynamo-frontend", "dynamo"),
        ("dynamo-prefill", "dynamo"),
        ("dynamo-decode", "dynamo"),
        ("dynamo-sglang-decode", "dynamo"),
    ],
)
def test_pages_betray_their_engine(name: str, engine: str) -> None:
    assert guess_engine(family_names(capture(f"{name}.metrics"))) == engine


def test_an_unknown_page() -> None:
    names = family_names(b'# HELP a_b x\n# TYPE a_b counter\na_b 1\nqueue_len_bucket{le="1"} 3\n')
    assert names == {"a_b", "queue_len_bucket"} and guess_engine(names) is None
    assert useful_looking(names) == ["queue_len"]


@pytest.mark.parametrize(
    ("old", "new", "canonical"),
    [
        ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", "kv_cache_usage"),
        ("vllm:time_per_output_token_seconds_sum", "vllm:inter_token_latency_seconds_sum", "itl_s"),
        ("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total", "prefix_cache_hits"),
        ("vllm:gpu_prefix_cache_queries", "vllm:prefix_cache_queries_total", "prefix_cache_queries"),
    ],
)
def test_renamed_families_are_read_under_either_name_and_never_added(old: str, new: str, canonical: str) -> None:
    for name in (old, new):
        ((metric, found, *_, value),) = read_page("vllm", f'{name}{{engine="0"}} 7\n'.encode()).rows
        assert (metric, found, value) == (name, canonical, 7)
    for order in ((old, new), (new, old)):
        page = "".join(f'{name}{{engine="0"}} {8 if name == new else 5}\n' for name in order).encode()
        assert [(row[0], row[5]) for row in read_page("vllm", page).rows] == [(new, 8)]


def test_the_new_per_request_mean_is_not_the_old_gap() -> None:
    (row,) = read_page("vllm", b'vllm:request_time_per_output_token_seconds_sum{engine="0"} 3\n').rows
    assert row[1] == "tpot_s"


def test_counters_with_and_without_total_and_rays_spelling() -> None:
    for name in (
        "vllm:prompt_tokens",
        "vllm:prompt_tokens_total",
        "vllm_prompt_tokens_total",
        "ray_vllm_prompt_tokens",
    ):
        (row,) = read_page("vllm", f"{name} 3\n".encode()).rows
        assert row[1:3] == ("prompt_tokens", "counter"), name
    assert read_page("vllm", b"vllm:prompt_tokens_created 1.7e9\n").rows == ()


def test_data_parallel_ranks_stay_apart() -> None:
    page = b"".join(
        b'vllm:num_requests_running{model_name="m",engine="%d"} %d\n' % (rank, 10 + rank) for rank in range(8)
    )
    assert [(row[3], row[5]) for row in read_page("vllm", page).rows] == [(str(rank), 10.0 + rank) for rank in range(8)]


def test_tensor_parallel_ranks_repeat_a_figure() -> None:
    lines = [
        f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}",pp_rank="0"}} {dp * 10 + (tp % 4 == 0)}'
        for dp in range(2)
        for tp in range(dp * 4, dp * 4 + 4)
    ]
    random.Random(1).shuffle(lines)
    rows = read_page("sglang", "\n".join(lines).encode() + b"\n").rows
    assert {(row[3], row[5]) for row in rows} == {("0", 1.0), ("1", 11.0)} and len(rows) == 2


def test_milliseconds_become_seconds_under_a_name_in_seconds() -> None:
    page = (
        b"sglang:kv_transfer_latency_ms_sum 1500\n"
        b"sglang:kv_transfer_latency_ms_count 3\n"
        b'sglang:kv_transfer_latency_ms_bucket{le="250.0"} 2\n'
    )
    rows = read_page("sglang", page, edge=True).rows
    assert [(row[1], row[2], row[4], row[5]) for row in rows] == [
        ("kv_transfer_s", "sum", "{}", 1.5),
        ("kv_transfer_s", "count", "{}", 3.0),
        ("kv_transfer_s", "bucket", '{"le":"0.25"}', 2.0),
    ]


def test_several_models_on_a_page() -> None:
    page = b'vllm:num_requests_running{model_name="a"} 1\nvllm:num_requests_running{model_name="b"} 2\n'
    assert [row[5] for row in read_page("vllm", page, model="b").rows] == [2.0]
    both = read_page("vllm", page, model="neither")
    assert both.models == ("a", "b")
    assert len(values(both.rows)) == 2, "unfiltered, and still told apart"
    alone = read_page("vllm", page.splitlines()[0] + b"\n", model="another name of it")
    assert [row[4:] for row in alone.rows] == [("{}", 1.0)]


def test_nan_and_infinity_are_dropped_and_counted_and_the_page_is_kept() -> None:
    odd = b"vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc -Inf\n"
    page = odd + b"sglang:fwd_occupancy NaN\n"
    read = read_page("vllm", page + b"vllm:prompt_tokens_total 4\n")
    assert read.dropped == 3, "of those that are kept"
    assert [row[1] for row in read.rows] == ["prompt_tokens"]


@pytest.mark.parametrize("name", ["vllm-pull-decode", "dynamo-frontend"])
def test_a_page_cut_anywhere_is_a_failed_scrape_or_has_fewer_rows_never_other_values(name: str) -> None:
    page = capture(f"{name}.metrics")
    engine = guess_engine(family_names(page))
    model = "tiny" if engine == "dynamo" else "mid"
    whole = set(read_page(engine, page, model=model, edge=True).rows)
    ends = [i + 1 for i, byte in enumerate(page) if byte == 10]
    for end in ends[::5]:
        assert set(read_page(engine, page[:end], model=model, edge=True).rows) <= whole
    for end in range(1, len(page), 197):
        if end not in ends:
            with pytest.raises(BadPage, match="cut"):
                read_page(engine, page[:end])


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:num_requests_running",
        b"vllm:num_requests_running ",
        b"vllm:num_requests_running x",
        b"vllm:num_requests_running 1_0",
        b'vllm:num_requests_running{engine="0" 1',
        b'vllm:num_requests_running{engine="0"}',
        b'vllm:num_requests_running{engine="0"} 1 2 3',
        b'vllm:time_to_first_token_seconds_bucket{engine="0"} 1',
    ],
)
def test_a_line_that_matters_and_is_no_sample_fails_the_scrape(line: bytes) -> None:
    with pytest.raises(BadPage):
        read_page("vllm", b"vllm:num_requests_waiting 1\n" + line + b"\n", edge=True)


def test_labels_with_everything_in_them_and_a_time_stamp() -> None:
    page = b'vllm:request_success_total{engine="0",finished_reason="a \\"} b{ \\\\ \\n c"} 3 1700000000000\n'
    (row,) = read_page("vllm", page).rows
    assert json.loads(row[4]) == {"finished_reason": 'a "} b{ \\ \n c'} and row[5] == 3


def test_empty_pages_and_windows_line_ends() -> None:
    assert read_page("vllm", b"").rows == ()
    assert read_page("vllm", b"\n\n# nothing\n").rows == ()
    assert [row[5] for row in read_page("vllm", b"vllm:num_requests_running 2\r\n").rows] == [2.0]


def test_the_seam_knows_every_engine() -> None:
    assert set(SCRAPES) == {*ENGINES, "any"}
    for name in ("vllm-pull-decode", "dynamo-decode", "dynamo-sglang-decode"):
        assert SCRAPES["any"](capture(f"{name}.metrics")).rows, "with no engine known, all tables are tried"


def big_page(ranks: int = 8) -> bytes:
    """A page of 5,000 lines and more, in shuffled order: a real one for each data-parallel rank."""
    lines = [line for line in capture("vllm-pull-decode.metrics").splitlines() if line.startswith(b"vllm:")]
    many = [line.replace(b'engine="0"', b'engine="%d"' % rank) for rank in range(ranks) for line in lines]
    many += [b'other_series{i="%d"} %d' % (i, i) for i in range(max(0, 5000 - len(many)))]
    random.Random(0).shuffle(many)
    return b"\n".join(many) + b"\n"


def test_order_does_not_matter_on_a_big_page() -> None:
    page = big_page()
    assert page.count(b"\n") >= 5000
    rows = read_page("vllm", page, edge=True).rows
    again = read_page("vllm", b"\n".join(sorted(page.splitlines())) + b"\n", edge=True).rows
    assert sorted(rows) == sorted(again)
    per_rank = len(read_page("vllm", capture("vllm-pull-decode.metrics"), edge=True).rows)
    assert sum(row[3] == "7" for row in rows) == per_rank - 3, "all but what has no engine label"


NAMES = [
    "vllm:num_requests_running",
    "vllm:prompt_tokens_total",
    "vllm:request_success_total",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:num_requests_running_extra",
    "process_start_time_seconds",
    "unrelated_metric",
]
LABEL_VALUES = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=8
)
SAMPLES = st.tuples(
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from(["engine", "reason", "source", "le"]), LABEL_VALUES, max_size=3),
    st.floats(allow_nan=True, allow_infinity=True),
)


def written(name: str, labels: dict[str, str], value: float) -> str:
    quoted = [
        f'{k}="{v.replace(chr(92), chr(92) * 2).replace(chr(10), chr(92) + "n").replace(chr(34), chr(92) + chr(34))}"'
        for k, v in labels.items()
    ]
    number = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(value))
    return f"{name}{'{' + ','.join(quoted) + '}' if quoted else ''} {number}"


@given(st.lists(SAMPLES, max_size=12))
@example([("vllm:request_success_total", {"reason": "}"}, 1.0)])
def test_reads_what_prometheus_client_reads_of_the_whole_page(samples: list[tuple[str, dict[str, str], float]]) -> None:
    """Independent truth: prometheus_client over every line, filtered afterwards by name."""
    samples = [s for s in samples if not (s[0].endswith("_bucket") and "le" not in s[1])]
    page = "".join(written(*sample) + "\n" for sample in samples)
    families = text_string_to_metric_families(page)
    truth = [
        sample for family in families for sample in family.samples if sample.name in NAMES[:5] or "start" in sample.name
    ]
    read = read_page("vllm", page.encode(), edge=True)
    finite = [sample for sample in truth if math.isfinite(sample.value)]
    assert read.dropped == len(truth) - len(finite)
    expected = []
    for sample in finite:
        ours = sample.name.startswith("vllm:")
        rest = {k: v for k, v in sample.labels.items() if not (ours and k == "engine")}
        expected.append(
            (
                sample.name,
                sample.labels.get("engine", "") if ours else "",
                json.dumps(rest, sort_keys=True, separators=(",", ":")),
                sample.value,
            )
        )
    assert sorted(expected) == sorted((row[0], row[3], row[4], row[5]) for row in read.rows)


@given(st.binary(max_size=300))
@example(b"vllm:num_requests_running{\xff} 1\n")
@example(b'process_start_time_seconds{a="\n')
def test_bytes_of_any_kind_are_rows_or_a_bad_page(noise: bytes) -> None:
    for page in (noise, b"vllm:num_requests_running" + noise, b"vllm:num_requests_running{" + noise + b"\n"):
        try:
            read = read_page("vllm", page)
        except BadPage:
            continue
        assert all(math.isfinite(row[5]) for row in read.rows)


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["numbers", "new", "gone", "nan", "stamped", "odd", "other order"]), st.integers(0, 10**6)
    ),
    min_size=1,
    max_size=6,
)


def changed(page: bytes, how: str, seed: int) -> bytes:
    """The page at a later scrape."""
    rng = random.Random(seed)
    lines = page.splitlines(keepends=True)
    samples = [number for number, line in enumerate(lines) if not line.startswith(b"#")]
    one = rng.choice(samples)
    head = lines[one][: lines[one].rindex(b" ") + 1]
    if how == "numbers":
        for number in samples:
            if rng.random() < 0.5 and b"process_start" not in lines[number]:
                lines[number] = lines[number][: lines[number].rindex(b" ") + 1] + b"%r\n" % (rng.random() * 1e4)
    elif how == "new":
        lines.insert(one, b'vllm:request_success_total{engine="0",finished_reason="r%d",model_name="mid"} 3\n' % seed)
    elif how == "gone":
        del lines[one]
    elif how == "other order":
        rng.shuffle(lines)
    else:
        lines[one] = head + {"nan": b"NaN\n", "stamped": b"7.5 1796000000000\n", "odd": b"1_000\n"}[how]
    return b"".join(lines)


def reading(read: object) -> object:
    """What a reading says, rows in any order, or that it refuses the page."""
    try:
        page = read()  # type: ignore[operator]
    except BadPage as bad:
        return str(bad)
    assert json.loads(f"[{page.rows_json}]") == [list(row) for row in page.rows]
    return page.rows, page.dropped, page.models


@settings(max_examples=60)
@given(changes=CHANGES)
def test_page_after_page_reads_as_each_page_alone(changes: list[tuple[str, int]]) -> None:
    page = capture("vllm-pull-decode.metrics")
    reader = Reader("vllm", "mid")
    reader.read(page)
    for how, seed in changes:
        page = changed(page, how, seed)
        assert reading(lambda page=page: reader.read(page)) == reading(
            lambda page=page: read_page("vllm", page, model="mid")
        )


def test_a_server_that_was_started_anew_is_looked_at_anew() -> None:
    """With as many lines as before, and another series in the place of one that did not matter."""
    before = capture("vllm-pull-decode.metrics")
    start = next(line for line in before.splitlines() if line.startswith(b"process_start_time_seconds "))
    bucket = next(line for line in before.splitlines() if b"_bucket" in line)
    wanted = b'vllm:admission_rejections_total{reason="new"} 5'
    after = before.replace(start, b"process_start_time_seconds 1.8e+09").replace(bucket, wanted)
    reader = Reader("vllm", "mid")
    reader.read(before)
    assert reader.read(after) == read_page("vllm", after, model="mid")
    assert '{"reason":"new"}' in {labels for *_, labels, _ in reader.read(after).rows}
