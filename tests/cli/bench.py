"""multihead bench: every kind of work runs, and its totals are correct. Times are not tested."""
import datetime
import json
import re
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
sys.path.insert(0, str(ROOT / "bench"))
import common  # noqa: E402

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED, NO_OUTPUT, NO_MEMORY = 2, 3, 4, 5, 6, 7
QUICK = ("--samples", "1", "--seconds", "0", "--patience", "0", "--threads", "2")
chance = seeded()


def measured(*arguments):
    result = run("bench", *arguments, *QUICK, "--json")
    if not check(result.code == 0, f"{arguments}: {result.errors}"):
        return None
    row = json.loads(result.out)
    check(row["format"] == "multihead-bench" and row["threads"] == 2, f"{arguments}: {row}")
    n = len(row["samples"])
    check(n >= 5 and len(row["probes"]) == n and 0 <= row["quiet_samples"] <= n, f"{arguments}: {n}")
    check(row["gated"] == (row["quiet_samples"] >= 5), f"{arguments}: gate")
    check(row["best_seconds"] == min(row["samples"]), f"{arguments}: best")
    # The nine printed digits do not suffice for a probe exactly at the limit.
    apart = [p / (1.05 * row["quiet_probe_seconds"]) - 1 for p in row["probes"]]
    if min(map(abs, apart)) > 1e-7:
        quiet = sorted(s for s, a in zip(row["samples"], apart) if a < 0)
        check(len(quiet) == row["quiet_samples"], f"{arguments}: {len(quiet)} are quiet")
        of = quiet if row["gated"] else sorted(row["samples"])
        median = (of[(len(of) - 1) // 2] + of[len(of) // 2]) / 2
        check(abs(row["median_seconds"] - median) <= 1e-6 * median, f"{arguments}: median")
    check(abs(row["gflops"] * row["median_seconds"] * 1e9 / row["flops"] - 1) < 1e-6,
          f"{arguments}: GFLOP/s")
    compute = row.get("compute", "f32")
    peak = row["peak_bf16_gflops" if compute == "bf16" else "peak_gflops"]
    if peak:
        check(abs(row["percent_of_peak"] / (100 * row["gflops"] / peak) - 1) < 1e-6,
              f"{arguments}: percent")
    beside = row["bandwidth_gbs_beside"]
    check((row["bytes"] is None) == (beside is None) and not (beside and row["peak_gflops_beside"]),
          f"{arguments}: what was measured beside it")
    if beside:
        least = max(row["flops"] / (peak or 1e30), row["bytes"] / beside) * 1e-9
        check(abs(row["percent_of_roofline"] / (100 * least / row["median_seconds"]) - 1) < 1e-6,
              f"{arguments}: roof")
    if compute != "f32":
        times = row["f32_median_seconds"] / row["median_seconds"]
        check(abs(row["times_as_fast_as_f32"] / times - 1) < 1e-6, f"{arguments}: times")
    return row


def counts():
    """Operations and bytes of some kinds of work equal numbers computed by hand. Each takes half a
    second."""
    cases = (
            (("forward", "--heads", "2", "--head-dim", "16", "--length", "32"), 4*2*16*32*32, None),
            (("forward", "--heads", "2", "--head-dim", "8", "--length", "10", "--causal"),
             4*2*8*55, None),
            (("forward", "--length", "20", "--window", "4", "--heads", "1", "--head-dim", "8"),
             4*8*(1 + 2 + 3 + 17*4), None),
            (("forward", "--length", "64", "--heads", "1", "--head-dim", "8", "--mask", "blocks"),
             4*8*64*64, None),
            (("forward", "--length", "128", "--heads", "1", "--head-dim", "8", "--mask",
              "lengths", "--layout", "bthd"), 4*8*128*28, None),
            (("forward", "--length", "16", "--heads", "1", "--head-dim", "8", "--mask", "keep"),
             4*8*256, None),
            (("forward", "--length", "32", "--heads", "1", "--head-dim", "8", "--compute", "bf16"),
             4*8*32*32, None),
            (("decode", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--keys", "700",
              "--compute", "bf16"), 4*4*8*700, 4*2*700*8),
            (("gemm", "--rows", "1", "--inputs", "300", "--outputs", "50", "--compute", "bf16"),
             2*300*50, 2*300*50),
            (("gemm", "--rows", "9", "--inputs", "300", "--outputs", "50", "--compute", "tiles"),
             2*9*300*50, None),
            (("backward", "--heads", "2", "--head-dim", "16", "--length", "32", "--batch", "3"),
             10*3*2*16*32*32, None),
            (("decode", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--keys", "700",
              "--cache", "f32"), 4*4*8*700, 8*2*700*8),
            (("decode", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--keys", "700",
              "--cache", "int8", "--page", "16"), 4*4*8*700, 2*2*700*8),
            (("module", "--heads", "2", "--head-dim", "8", "--length", "12", "--need-weights"),
             2*12*16*64 + 4*16*144, None),
            (("gemm", "--rows", "1", "--outputs", "256", "--inputs", "128"), 2*256*128, 4*256*128))
    for arguments, flops, read in cases if LONG else chance.sample(cases, 6):
        row = measured(*arguments)
        if row:
            check(row["flops"] == flops, f"{arguments}: {row['flops']} operations, {flops} expected")
            check(row["bytes"] == read, f"{arguments}: {row['bytes']} bytes, {read} expected")


def processor():
    """The program and bench/common.py report the same processor, also in rows."""
    work = ("gemm", "--rows", "4", "--outputs", "32", "--inputs", "32")
    row, lines = measured(*work), run("bench", *work, *QUICK).out.decode()
    here = common.processor()
    if row:
        check({name: row[name] for name in here} == here, f"{here}: {row}")
        days = abs(datetime.date.fromisoformat(row["date"]) - datetime.date.today()).days
        check(days <= 1, f"date: {row['date']}")
    said = [text for text in here.values() if text]
    check(not said or lines.startswith(", ".join(said) + "\n"), lines)
    known = list(common.known_processors())
    check(("GenuineIntel", 6, 85, 85, 5, 9, "Cascade Lake") in known and len(known) > 40, known)
    check([common.cpus_in(text) for text in ("3", "0-3", "0-1,5,8-9")] == [1, 4, 5], "cpus_in")


def outputs(folder):
    work = ("gemm", "--rows", "4", "--outputs", "32", "--inputs", "32")
    old, plot = folder + "/old.json", folder + "/plot.svg"
    result = run("bench", *work, *QUICK, "--json", "--svg", plot)
    drawn = result.code != UNSUPPORTED
    with open(old, "wb") as file:
        file.write(result.out if drawn else run("bench", *work, *QUICK, "--json").out)
    if drawn:
        picture = open(plot).read()
        check(picture.startswith("<svg") or picture.startswith("<?xml"), picture[:80])
        check("gemm 4x32x32" in picture and "GB/s" in picture, "the plot names no row")
    result = run("bench", *work, *QUICK, "--compare", old)
    check(result.code == 0 and re.search(rb"gemm 4x32x32 .* times as fast as before", result.out),
          f"{result.out} {result.errors}")
    broken = folder + "/broken.json"
    older = b'{"format": "multihead-bench", "version": '
    for content, words in ((b"{", "line"), (b"{}", "not written by"), (b"[1]", "not written by")):
        with open(broken, "wb") as file:
            file.write(content)
        check_error(run("bench", *work, *QUICK, "--compare", broken), BAD_INPUT, words,
                    command="bench")
    for missing in ("/none", ""):
        check_error(run("bench", *work, *QUICK, "--compare", folder + missing), NO_INPUT,
                    "cannot read: ", command="bench")
    with open(broken, "wb") as file:
        file.write(older + b"2}")
    check_error(run("bench", *work, *QUICK, "--compare", broken), UNSUPPORTED, "version 2",
                command="bench")
    # Measurements with different settings, of a different machine or of different work are reported
    # without an error.
    isa, peak = json.loads(open(old).read())["isa"], json.loads(open(old).read())["peak_gflops"]
    for fields, words in (
            ('"isa": "abc", "threads": 2', "measured with abc and 2 threads"),
            (f'"isa": "{isa}", "threads": 7', f"measured with {isa} and 7 threads"),
            (f'"isa": "{isa}", "threads": 2, "peak_gflops": 1e-3', "another machine"),
            (f'"isa": "{isa}", "threads": 2, "processor_id": "none"', "another processor: none")):
        if "peak" in fields and not peak:
            continue
        with open(broken, "wb") as file:
            file.write(older + b"1, " + fields.encode() + b"}")
        result = run("bench", *work, *QUICK, "--compare", broken)
        check(result.code == 0 and words in str(result.errors) and "has no row 'gemm 4x32x32'" in str(result.errors),
              f"{fields}: {result.errors}")
    # Errors are reported before the measurement, so that no time is lost.
    for place in (folder, folder + "/none/plot.svg"):
        result = run("bench", *work, *QUICK, "--svg", place)
        check_error(result, NO_OUTPUT, place, command="bench")
        check(not result.out, f"measured, though the plot cannot be written: {result.out}")
    check_error(run("bench", *work, *QUICK, "--svg", folder + "/p.svg", "--isa", "portable"),
                UNSUPPORTED, "no roof", command="bench")


def mistakes():
    for arguments, words in (
            (("forwrd",), "forward"), (("xyzzy",), "gemm"), (("forward", "decode"), "one work"),
            (("forward", "--heads", "6", "--kv-heads", "4"), "evenly"),
            (("forward", "--need-weights"), "module"), (("forward", "--cache", "f16"), "decode"), (("decode", "--page", "16"), "--cache"),
            (("decode", "--cache", "f8"), "bf16"),
            (("forward", "--mask", "window"), "--window"), (("forward", "--rows", "3"), "gemm"),
            (("module", "--mask", "bias"), "module"), (("forward", "--heads", "0"), "--heads"),
            (("forward", "--causal", "--length", "9", "--keys", "8"), "--keys"),
            (("forward", "--seconds", "-1"), "--seconds"),
            (("backward", "--compute", "bf16"), "forward"),
            (("forward", "--mask", "lengths", "--length", "100"), "100"),
            (("gemm", "--heads", "4"), "--rows"), (("forward", "--compute", "int8"), "expected one of f32, bf16, tiles"),
            (("forward", "--compute", "tiles"), "gemm"), (("module", "--compute", "bf16"), "gemm"), (("all", "--compute", "bf16"), "all"),
            (("gemm", "--causal"), "--rows"), (("all", "--heads", "4"), "all"),
            (("all", "--rows", "4"), "all"), (("forward", "--causal", "--mask", "keep"), "choose"),
            (("forward", "--window", "4", "--mask", "bias"), "choose"),
            (("forward", "--svg", "-"), "stdout")):
        check_error(run("bench", *arguments), USAGE, words, command="bench")


def too_large():
    kinds = ("forward", "backward", "decode")
    for work in kinds if LONG else [chance.choice(kinds)]:
        result = run("bench", work, "--length", "16777216", "--heads", "4096", "--head-dim", "4096",
                     "--batch", "4096", "--kv-heads", "4096", "--keys", "16777216", *QUICK)
        check(result.code == NO_MEMORY and "choose smaller ones" in str(result.errors),
              f"{work}: {result.code}, {result.errors}")


mistakes()
counts()
processor()
too_large()
with tempfile.TemporaryDirectory(prefix="multihead-bench-") as place:
    outputs(place)
finish()
