"""tools/plot on the programs' output."""

from __future__ import annotations

import json
import math
import pathlib

import pytest
from matplotlib import pyplot
from plot_machine import draw_machine, frames_of, home_of
from plot_samples import draw_collectives, draw_diagnosis, draw_growth, lines_of, main, matrices

ALLREDUCE = {
    "program": "gtopk-allreduce",
    "rows": [
        {
            "algorithm": algorithm,
            "select": "exact",
            "wire": "lossless",
            "dtype": "float32",
            "put_back": "own",
            "n": n,
            "model_seconds": None if algorithm == "hierarchical" else n / 1e6,
            "samples_seconds": [3 * n / 1e6, n / 1e6, 2 * n / 1e6],
        }
        for algorithm in ("gtopk", "hierarchical")
        for n in (400, 100)
    ],
}
PINGPONG = {
    "program": "gtopk-pingpong",
    "rows": [
        {"layer": layer, "bytes": size, "samples_seconds": [1e-6, 2e-6]}
        for layer in ("messages", "calls")
        for size in (8, 64)
    ],
}
DOCTOR = {
    "program": "gtopk-info --doctor",
    "hosts": [{"machine": "a", "ranks": [0, 2]}, {"machine": "b", "ranks": [1]}],
    "rows": [
        {"hosts": [0, 0], "latency_seconds": 1e-6, "bytes_per_second": [4e9, 5e9]},
        {"hosts": [0, 1], "latency_seconds": 2e-5, "bytes_per_second": [1e9, 2e9]},
    ],
}

LAYERS = {
    "program": "gtopk-layers",
    "rows": [
        {
            "names": [f"{i}.weight", f"{i}.bias"],
            "elements": 100,
            "ready": i / 100,
            "starts": i / 80,
            "seconds": 0.02,
            "density": 0.01 * (1 + i),
        }
        for i in range(3)
    ],
}


GROWTH = {
    "program": "gtopk-bench-growth",
    "ranks_per_host": 2,
    "in_turn": True,
    "rows": [
        {
            "algorithm": algorithm,
            "ranks": ranks,
            "links_seconds": ranks * 1e-3,
            "virtual_seconds": None if ranks > 4 else ranks * 1.1e-3,
        }
        for ranks in (2, 4, 8)
        for algorithm in ("gtopk", "dense")
    ],
}

COLLECTIVES = {
    "program": "gtopk-bench-collectives",
    "against": "gloo",
    "ranks": 4,
    "rows": [
        {"collective": name, "bytes": size, "ratio": 0.5, "range": [0.25, 1.5]}
        for size in (1024, 8)
        for name in ("all_reduce", "broadcast")
    ],
}

DIAGNOSIS = {
    "program": "gtopk-diagnosis",
    "rows": [
        {
            "step": step,
            "names": names,
            "contraction": 0.9 - 0.01 * step,
            "random": 0.99,
            "bell": 0.98,
            "delta": None if step == 4 else 0.9,
            "recall": None,
            "delivered_recall": 0.5,
            "norm": 2.0,
            "residual_norm": 1.0,
            "above_chord": 0.0,
            "histogram": [0] * 30 + [5, 20, 25, 4] + [0] * 30,
        }
        for step in (0, 4)
        for names in (["0.weight"], ["1.weight", "1.bias"])
    ],
}


FIRST, SECOND = [0, 1, 2, 3], [4, 5, 6, 7]


def gpu(number: int, nic: str, cores: list[int], nearness: str = "below one PCIe switch") -> dict:
    bus = f"0000:0{number}:00.0"
    return {
        "name": f"GPU {number}",
        "bus": bus,
        "cores": cores,
        "nearness": nearness,
        "nics": [nic],
    }


MACHINE = {
    "program": "gtopk-info --topology",
    "plans": [
        {"nic": "ib0", "engine_cores": [0, 1, 2, 3]},
        {"nic": "ib0", "engine_cores": []},
    ],
    "topology": {
        "source": "hwloc 2.8",
        "cores": FIRST + SECOND,
        "cores_allowed": [*FIRST, 4],
        "nodes": [
            {"number": 0, "cores": FIRST, "memory_bytes": 64 << 30},
            {"number": 1, "cores": SECOND, "memory_bytes": 64 << 30},
        ],
        "nics": [
            {"name": "ib0", "bus": "0000:11:00.0", "cores": FIRST, "rdma": "mlx5_0", "up": True},
            {"name": "eth0", "bus": "0000:12:00.0", "cores": [], "rdma": "", "up": False},
        ],
        "gpus": [
            gpu(0, "ib0", FIRST),
            gpu(1, "ib0", FIRST, "below one host bridge"),
            gpu(2, "ib0", SECOND, "across the machine"),
        ],
    },
}
HERE = {**MACHINE, "program": "gtopk-info", "plan": MACHINE["plans"][0]}


def written(path: pathlib.Path, record: object) -> str:
    path.write_text(json.dumps(record))
    return str(path)


def test_rows_are_lines_named_by_what_differs():
    lines = lines_of({"mine": ALLREDUCE})
    assert list(lines) == ["gtopk", "hierarchical"]
    assert [(point.size, point.model) for point in lines["gtopk"]] == [(100, 1e-4), (400, 4e-4)]
    assert lines["gtopk"][0].seconds == [1e-4, 2e-4, 3e-4]
    assert list(lines_of({"mine": PINGPONG})) == ["messages", "calls"]
    of_two = lines_of({"old": ALLREDUCE, "new": ALLREDUCE})
    assert list(of_two)[::2] == ["old: gtopk", "new: gtopk"]


@pytest.mark.parametrize(
    "record",
    [ALLREDUCE, PINGPONG, LAYERS, DOCTOR, GROWTH, COLLECTIVES, DIAGNOSIS, MACHINE, HERE],
    ids=lambda record: record["program"],
)
def test_a_picture_is_drawn(record, tmp_path, capsys):
    assert main([written(tmp_path / "run.json", record)]) == 0
    picture = tmp_path / "run.png"
    assert capsys.readouterr().out == f"{picture}\n"
    height, width, _ = pyplot.imread(picture).shape
    assert height > 500
    assert width > 500
    pyplot.close("all")


def test_matrices_go_from_the_row_to_the_column():
    latencies, bandwidths = matrices(DOCTOR)
    assert latencies[0] == pytest.approx([1, 20])
    assert latencies[1][0] == pytest.approx(20)
    assert math.isnan(latencies[1][1])
    assert bandwidths[0] == pytest.approx([4, 1])
    assert bandwidths[1][0] == pytest.approx(2)
    failed = {**DOCTOR, "rows": [{"hosts": [0, 1], "error": "no answer"}]}
    assert math.isnan(matrices(failed)[1][0][1])


def test_growth_files_each_get_axes_with_model_and_measured_line():
    draw_growth({"one": GROWTH, "other": {**GROWTH, "ranks_per_host": 1, "in_turn": False}})
    figure = pyplot.gcf()
    assert [axes.get_title() for axes in figure.axes] == [
        "2 ranks a host, in turn",
        "1 rank a host",
    ]
    model, ran, *_ = figure.axes[0].lines
    assert list(model.get_xydata().flat) == [2, 2, 4, 4, 8, 8]
    assert list(ran.get_xydata().flat) == pytest.approx([2, 2.2, 4, 4.4])
    pyplot.close("all")


def test_collectives_are_lines_over_bytes_and_ratio_1_is_marked():
    draw_collectives({"one host": COLLECTIVES, "hosts": {**COLLECTIVES, "ranks": 2}})
    left, right = pyplot.gcf().axes
    assert [left.get_title(), right.get_title()] == ["one host: 4 ranks", "hosts: 2 ranks"]
    assert left.get_ylabel() == "time over that with gloo"
    all_reduce, broadcast, one = left.lines
    for line in all_reduce, broadcast:
        assert list(line.get_xydata().flat) == [8, 0.5, 1024, 0.5]
    assert set(one.get_ydata()) == {1}
    pyplot.close("all")


def test_diagnosis_draws_units_over_steps_beside_their_bounds():
    draw_diagnosis({"run": DIAGNOSIS})
    left, deltas, recalls, *_, bells = pyplot.gcf().axes
    lines = [each for line in left.lines for each in line.get_xydata().flat]
    assert lines == pytest.approx([0, 0.9, 4, 0.86, 0, 0.99, 4, 0.99, 0, 0.98, 4, 0.98] * 2)
    assert [len(line.get_xydata()) for line in deltas.lines] == [1, 1, 2]  # None is no point
    assert len(recalls.lines) == 2
    assert sum(bar.get_height() for bar in bells.patches) == 2 * 54
    pyplot.close("all")


def test_devices_of_a_machine_stand_once_with_what_is_near_them():
    frames = frames_of(MACHINE["topology"])
    names = [[[each["name"] for each in row] for row in frame.rows] for frame in frames]
    assert names == [[["ib0"], ["GPU 0", "GPU 1"]], [["GPU 2"]], [["eth0"]]]
    nodes = MACHINE["topology"]["nodes"]
    assert [home_of(frame, nodes) for frame in frames] == [0, 1, len(nodes)]


def test_a_machines_plan_is_in_its_picture():
    draw_machine("there", MACHINE)
    texts = [each.get_text() for each in pyplot.gca().texts]
    assert "NIC ib0 (mlx5_0)\n0000:11:00.0\nrank 0, rank 1" in texts
    assert "NIC eth0, down\n0000:12:00.0" in texts
    assert "GPU 1\n0000:01:00.0\nbelow one host bridge" in texts
    assert "GPU 2\n0000:02:00.0\nacross the machine: ib0" in texts
    inks = {each.get_text(): each.get_color() for each in pyplot.gca().texts}
    assert [inks[str(core)] for core in FIRST + SECOND] == ["white"] * 4 + ["black"] * 4
    draw_machine("here", HERE)
    assert any("this rank" in each.get_text() for each in pyplot.gca().texts)
    pyplot.close("all")


def test_an_svg_is_the_same_each_time(tmp_path, capsys):
    record = written(tmp_path / "there.json", MACHINE)
    pictures = []
    for name in ("one.svg", "other.svg"):
        assert main([record, "-o", str(tmp_path / name)]) == 0
        pictures.append((tmp_path / name).read_text())
    assert pictures[0] == pictures[1]
    assert "below one host bridge" in pictures[0]
    pyplot.close("all")


def test_what_cannot_be_drawn_is_one_line(tmp_path, capsys):
    allreduce = written(tmp_path / "a.json", ALLREDUCE)
    pingpong = written(tmp_path / "b.json", PINGPONG)
    doctor = written(tmp_path / "d2.json", DOCTOR)
    without = {**HERE, "topology": {"source": "hwloc 2 is not here", "cores": []}}
    (tmp_path / "other").mkdir()
    for files, said in (
        ([str(tmp_path / "none.json")], "cannot be read"),
        ([written(tmp_path / "c.json", [1])], "expected what gtopk-allreduce or gtopk-pingpong"),
        ([written(tmp_path / "d.json", {**PINGPONG, "rows": []})], "has no rows"),
        ([doctor, written(tmp_path / "e.json", DOCTOR)], "one file makes one picture"),
        ([written(tmp_path / "m.json", without)], "m.json has no topology: hwloc 2 is not here"),
        ([allreduce, pingpong], "gtopk-allreduce and gtopk-pingpong have no picture in common"),
        ([allreduce, written(tmp_path / "other" / "a.json", ALLREDUCE)], "two files have one name"),
        ([allreduce, "-o", str(tmp_path / "no" / "a.png")], "No such file or directory"),
    ):
        assert main(files) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    pyplot.close("all")
