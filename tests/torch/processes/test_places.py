"""Where buckets hold units. No processes, no native code."""

from __future__ import annotations

import random

import torch
from gtopk.exchange.places import layout_of, slots_of
from gtopk.state.units import Parameter, units_of


def places(*sizes: int, unit: int | str = "model", min_numel: int = 10):
    parameters = [Parameter(f"p{i}", (size,), torch.float32) for i, size in enumerate(sizes)]
    return slots_of(units_of(parameters, unit, min_numel))


def test_neighbours_of_a_unit_make_one_piece():
    by_name = places(20, 30, 40)  # the unit's order is p2, p1, p0
    layout = layout_of(by_name[name] for name in ("p2", "p1", "p0"))
    assert layout.sizes == [90]
    assert [(part.large, part.small) for part in layout.parts] == [([(0, 0)], [])]


def test_pieces_end_at_order_changes_and_at_small_parameters():
    by_name = places(20, 3, 30, 4, 5)
    layout = layout_of(by_name[name] for name in ("p0", "p1", "p2", "p4", "p3"))
    assert layout.sizes == [20, 3, 30, 9]
    (part,) = layout.parts
    assert (part.large, part.small) == ([(1, 0), (0, 2)], [(2, 1), (0, 3)])
    assert part.names == {"p0", "p1", "p2", "p3", "p4"}


def test_shares_come_in_the_order_of_the_units():
    by_name = places(20, 30, 40, unit=1)
    layout = layout_of(by_name[name] for name in ("p0", "p1", "p2"))
    assert layout.sizes == [20, 30, 40]
    assert [(part.unit, part.large) for part in layout.parts] == [
        (0, [(0, 2)]),
        (1, [(0, 1)]),
        (2, [(0, 0)]),
    ]


def test_an_empty_bucket_has_no_pieces():
    layout = layout_of([])
    assert (layout.sizes, layout.parts) == ([], [])


def test_every_unit_is_put_together_again_from_any_buckets():
    for seed in range(300):
        draw = random.Random(seed)
        sizes = [draw.choice((0, 1, 3, 12, 40)) for _ in range(draw.randint(1, 12))]
        parameters = [Parameter(f"p{i}", (size,), torch.float32) for i, size in enumerate(sizes)]
        units = units_of(parameters, draw.choice((60, 200, "parameter", "model")), 10)
        by_name = slots_of(units)
        values = {each.name: torch.full((each.numel,), i) for i, each in enumerate(parameters)}
        order = parameters[::-1] if draw.random() < 0.5 else draw.sample(parameters, len(sizes))
        cut = draw.randint(0, len(sizes))
        large: dict[int, list] = {}
        small: dict[int, list] = {}
        for bucket in (order[:cut], order[cut:]):
            layout = layout_of(by_name[each.name] for each in bucket)
            memory = torch.cat([values[each.name] for each in bucket] or [torch.empty(0)])
            pieces = memory.split(layout.sizes) if bucket else ()
            for part in layout.parts:
                large.setdefault(part.unit, []).extend((p, pieces[i]) for p, i in part.large)
                small.setdefault(part.unit, []).extend((p, pieces[i]) for p, i in part.small)
        for i, unit in enumerate(units):
            for found, wanted in ((large[i], unit.large), (small[i], unit.small)):
                joined = [piece for _, piece in sorted(found, key=lambda each: each[0])]
                assert torch.equal(
                    torch.cat([torch.empty(0), *joined]),
                    torch.cat([torch.empty(0), *(values[each.name] for each in wanted)]),
                ), seed
