"""Makes the page of results: each figure beside its aim. Uses no device."""

from __future__ import annotations

from typing import Any

from gpu_check.aims import BYTES_PER_ELEMENT, SELF_TEST, TIMES_MEMORY, TIMES_TOPK


def page(results: dict[str, Any]) -> str:
    machine, packed = results["machine"], results["packed"] or {}
    lines = [
        "# gpu-check",
        "",
        f"Device {results['device']}: {machine['gpu']}. gtopk {packed.get('commit', 'unpacked')}, "
        f"torch {packed.get('torch', '?')}, load {machine['load']}.",
        "",
    ]
    if results["small"]:
        lines += ["**Small sizes: figures say nothing.**", ""]
    for name, answer in results["parts"].items():
        lines += [f"## {name}", ""]
        for kind in ("failed", "not_run", "not_measured"):
            if kind in answer:
                lines += [f"{kind.replace('_', ' ')}: {answer[kind]}", ""]
        if not {"failed", "not_run", "not_measured"} & {*answer}:
            lines += [*_ROWS.get(name, _plain)(answer), ""]
    return "\n".join(lines)


def _plain(answer: dict[str, Any]) -> list[str]:
    return [f"- {name}: {value}" for name, value in answer.items()]


def _compress(answer: dict[str, Any]) -> list[str]:
    speed = answer["copy_bytes_per_second"]
    lines = [
        f"A copy on the device moves {speed * 1e-9:.0f} GB/s. Aims: at least {TIMES_TOPK} times "
        f"faster than torch.topk with masking, at most {TIMES_MEMORY} times what "
        f"{BYTES_PER_ELEMENT} bytes an element take.",
        "",
        "| d | k | topk (ms) | gtopk (ms) | of it kernels (ms) | memory (ms) | topk/gtopk "
        "| kernels/memory |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in answer["rows"]:
        usual, ours = row["seconds"]["topk_and_masking"], row["seconds"]["gtopk"]
        kernels = row.get("kernel_seconds")
        memory = row["d"] * BYTES_PER_ELEMENT / speed
        known = isinstance(kernels, float)
        lines.append(
            f"| {row['d']:,} | {row['k']:,} | {usual * 1e3:.3f} | {ours * 1e3:.3f} | "
            f"{f'{kernels * 1e3:.3f}' if known else kernels or '-'} | {memory * 1e3:.3f} | "
            f"{usual / ours:.1f} | {f'{kernels / memory:.2f}' if known else '-'} |"
        )
    return lines


def _seconds_through(ucx: list[dict[str, Any]] | str, i: int) -> float | None:
    """Return the seconds of row `i`; None if UCX does not take the memory, and `ucx` says why."""
    return None if isinstance(ucx, str) else ucx[i]["seconds"]


def _why_not(ucx: list[dict[str, Any]] | str) -> list[str]:
    return ["", f"UCX: {ucx}."] if isinstance(ucx, str) else []


def _staging(answer: dict[str, Any]) -> list[str]:
    lines = ["| bytes | pinned (us) | UCX (us) | pinned/UCX |", "| --- | --- | --- | --- |"]
    for i, row in enumerate(answer["pinned"]):
        pinned = row["seconds"]
        direct = _seconds_through(answer["ucx"], i)
        lines.append(
            f"| {row['bytes']:,} | {pinned * 1e6:.1f} | "
            f"{f'{direct * 1e6:.1f} | {pinned / direct:.2f}' if direct else '- | -'} |"
        )
    return lines + _why_not(answer["ucx"])


def _programs(answer: dict[str, Any]) -> list[str]:
    lines = ["| algorithm | select | n | place | p50 (us) | #wrong |", "| --- " * 6 + "|"]
    for row in answer["allreduce"]:
        lines.append(
            f"| {row['algorithm']} | {row['select']} | {row['n']:,} | {row['place']} | "
            f"{row['seconds'] * 1e6:.1f} | {row['wrong']} |"
        )
    lines += ["", "| layer | bytes | p50 (us) | #wrong |", "| --- " * 4 + "|"]
    for row in answer["pingpong"]:
        lines.append(
            f"| {row['layer']} | {row['bytes']:,} | {row['seconds'] * 1e6:.1f} | {row['wrong']} |"
        )
    return lines


def _kernels(answer: dict[str, Any]) -> list[str]:
    lines = [f"{answer['cases']} cases. Each call launched as many kernels as it declares.", ""]
    lines += ["| call | launches |", "| --- | --- |"]
    return lines + [f"| {call} | {seen} |" for call, seen in answer["launches"].items()]


def _self_test(answer: dict[str, Any]) -> list[str]:
    lines = [answer["waits"], "", "| dtype | calls | ms |", "| --- " * 3 + "|"]
    for row in answer["rows"]:
        lines.append(f"| {row['dtype']} | {row['calls']} | {row['seconds'] * 1e3:.0f} |")
    return lines


def _first_call(answer: dict[str, Any]) -> list[str]:
    lines = [
        f"Aim: the self-test adds less than {SELF_TEST * 1e3:.0f} ms to the first call, with "
        "float32, whose test has the stream waits too.",
        "",
        "| dtype | first call without self-test (ms) | with | added | second call |",
        "| --- " * 5 + "|",
    ]
    for row in answer["rows"]:
        plain, tested, second = (row[name] * 1e3 for name in ("without", "with", "second"))
        lines.append(
            f"| {row['dtype']} | {plain:.1f} | {tested:.1f} | {tested - plain:.1f} | {second:.2f} |"
        )
    return lines


_ROWS = {
    "first_call": _first_call,
    "self_test": _self_test,
    "compress": _compress,
    "kernels": _kernels,
    "programs": _programs,
    "staging": _staging,
}
