"""Entry `codec-error`: what few bits lose of real pseudo-gradients, gtopk's and SparseLoCo's."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import torch
from codes import code
from matplotlib.ticker import MaxNLocator
from tasks import TASKS

from reproduce_entries.entry import Cell, Check, Entry, Records, Result
from reproduce_entries.page import COLOURS, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = ("4bit", "2bit", "sign")
THEIRS = ("statistical", "linear")
K = 64


def statistical(x: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    """Code selected values in SparseLoCo's four bins; return decoded values and bins' shares.

    Bins have 6/4 deviations and lie around the mean; each is decoded as the mean of its values.
    """
    centred = x - x.mean()
    step = 6 * centred.norm() / max(1, x.numel() - 1) ** 0.5 / 4
    bins = (centred / step + 2).round().clamp(0, 3).long()
    counts = torch.bincount(bins, minlength=4)
    means = torch.bincount(bins, centred.double(), minlength=4) / counts.clamp(min=1)
    return (means[bins] + x.mean()).float(), (counts / x.numel()).tolist()


def linear(x: torch.Tensor) -> torch.Tensor:
    """Round to four levels, evenly spaced between plus and minus the largest magnitude."""
    largest = x.abs().max()
    return ((x / largest + 1) * 1.5).round().clamp(0, 3) / 1.5 * largest - largest


def error(decoded: torch.Tensor, x: torch.Tensor) -> float:
    return ((decoded - x).double().square().sum() / x.double().square().sum()).item()


def in_tiles(tensor: torch.Tensor) -> torch.Tensor:
    """Return rows of one tile each, as the presets cut them."""
    from gtopk.training import outer_tiles

    return outer_tiles.in_tiles(tensor, outer_tiles.tile_of(tensor.shape)).flatten(1)


def from_tiles(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    from gtopk.training import outer_tiles

    tile = outer_tiles.tile_of(like.shape)
    return outer_tiles.from_tiles(rows.view(-1, tile.rows, tile.columns), tile, like.shape)


class Replicas:
    """Replicas that train and meet by SparseLoCo's rule, mean over contributors, on one codec."""

    def __init__(self, cell: Cell) -> None:
        ranks, steps = cell["replicas"], cell["inner_steps"] * cell["rounds"]
        self.tasks = [TASKS[cell["task"]](r, ranks, "alike", cell["seed"]) for r in range(ranks)]
        self.shared = [p.detach().clone() for p in self.tasks[0].model.parameters()]
        self.errors = [[torch.zeros_like(p) for p in self.shared] for _ in range(ranks)]
        made = [t.recipe.optimizer(t.model.parameters(), cell["lr"], steps) for t in self.tasks]
        self.stepped = list(zip(self.tasks, made, strict=True))
        self.codec = cell["codec"]

    def train(self, steps: int) -> float:
        """Returns the mean loss of the last step."""
        losses = []
        for task, (optimizer, schedule) in self.stepped:
            for _ in range(steps):
                inputs, targets = task.batch()
                task.model.zero_grad()
                loss = task.loss(task.model(inputs), targets)
                loss.backward()
                task.recipe.clip_(task.model.parameters())
                optimizer.step()
                schedule.step()
            losses.append(loss.item())
        return statistics.mean(losses)

    @torch.no_grad()
    def meet(self) -> dict[str, Any]:
        """Moves the shared parameters; returns the codecs' errors on the first replica's lists."""
        sums = [torch.zeros_like(p) for p in self.shared]
        counts = [torch.zeros_like(p) for p in self.shared]
        measured: dict[str, Any] = {}
        for task, residuals in zip(self.tasks, self.errors, strict=True):
            own = list(task.model.parameters())
            acc = [s - p + 0.95 * e for s, p, e in zip(self.shared, own, residuals, strict=True)]
            lists = [self._selected(in_tiles(each)) for each in acc]
            values = [(len(at[0]), each) for each, at in lists]
            measured = measured or figures(values)
            sents = decoded(values, self.codec)
            for i, (sent, (_, at)) in enumerate(zip(sents, lists, strict=True)):
                rows = torch.zeros_like(in_tiles(acc[i]))
                rows[at] = sent
                whole = from_tiles(rows, acc[i])
                residuals[i] = acc[i] - whole
                sums[i] += whole
                counts[i] += from_tiles(at.float(), acc[i])
        for p, total, count in zip(self.shared, sums, counts, strict=True):
            p -= total / count.clamp(min=1)
        for task in self.tasks:
            for parameter, p in zip(task.model.parameters(), self.shared, strict=True):
                parameter.copy_(p)
        return measured

    def _selected(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the largest values of each tile, tile after tile, and their mask."""
        at = torch.zeros(rows.shape).scatter(1, rows.abs().topk(min(K, rows.shape[1])).indices, 1)
        return rows[at > 0], at > 0


Lists = list[tuple[int, torch.Tensor]]
"""Of each tensor the elements of its tile, and the values that were selected."""


def decoded(lists: Lists, codec: str) -> list[torch.Tensor]:
    """Decode lists; gtopk codes tensors of one tile size together, SparseLoCo each by itself."""
    if codec not in OURS:
        decode = linear if codec == "linear" else lambda x: statistical(x)[0]
        return [decode(x) for _, x in lists]
    found: list[torch.Tensor] = [x for _, x in lists]
    for size in {size for size, _ in lists}:
        at = [i for i, (other, _) in enumerate(lists) if other == size]
        together = code(codec, torch.cat([found[i] for i in at])[None])[0]
        for i, part in zip(at, together.split([len(found[i]) for i in at]), strict=True):
            found[i] = part
    return found


def figures(lists: Lists) -> dict[str, Any]:
    """Return the errors of all codecs on the same values, and shares of SparseLoCo's bins."""
    x = torch.cat([each for _, each in lists])
    errors = {name: error(torch.cat(decoded(lists, name)), x) for name in (*OURS, *THEIRS)}
    weights = [len(each) for _, each in lists]
    bins = [statistical(each)[1] for _, each in lists]
    shares = [
        sum(weight * each[i] for weight, each in zip(weights, bins, strict=True)) / sum(weights)
        for i in range(4)
    ]
    return {"errors": errors, "bins": shares, "entries": len(x)}


def cells(quick: bool) -> list[Cell]:
    return [
        {
            "part": codec,
            "kind": "simulated",
            "codec": codec,
            "task": "gpt-0.1m" if quick else "gpt-0.4m",
            "replicas": 2,
            "inner_steps": 5 if quick else 30,
            "rounds": 4 if quick else 20,
            "lr": 4e-3,
            "seed": 0,
        }
        for codec in (("2bit",) if quick else ("2bit", "sign", "4bit", "statistical"))
    ]


def run(cell: Cell) -> Result:
    torch.set_num_threads(1)
    replicas, rounds = Replicas(cell), []
    for _ in range(cell["rounds"]):
        loss = replicas.train(cell["inner_steps"])
        rounds.append({"loss": loss, **replicas.meet()})
    return {"rounds": rounds, "score": replicas.tasks[0].score(replicas.tasks[0].model)}


def mean_errors(found: Result) -> dict[str, float]:
    """Return the mean errors over the rounds, in per cent."""
    rounds = found["rounds"]
    return {
        name: 100 * statistics.mean(each["errors"][name] for each in rounds)
        for name in (*OURS, *THEIRS)
    }


def mean_bins(found: Result) -> list[float]:
    return [100 * statistics.mean(each["bins"][i] for each in found["rounds"]) for i in range(4)]


def checks(records: Records) -> list[Check]:
    found = next(each.result for each in records if each.cell["codec"] == "2bit")
    errors, bins = mean_errors(found), sorted(mean_bins(found))
    over_sign, over_ours = (errors["statistical"] / errors[name] for name in ("sign", "2bit"))
    return [
        Check(bins[2] + bins[3] >= 95, f"{bins[2] + bins[3]:.0f} % of the values are in two bins."),
        Check(
            over_sign >= 0.5,
            f"the statistical codec loses {errors['statistical']:.2f} % of the square, `sign` "
            f"{errors['sign']:.2f} %.",
        ),
        Check(over_ours >= 2, f"that is {over_ours:.1f} times what `2bit` loses."),
    ]


def fields(records: Records) -> dict[str, str]:
    names = (*OURS, *THEIRS)
    rows = []
    for record in records:
        errors, bins = mean_errors(record.result), mean_bins(record.result)
        rows.append(
            (
                f"`{record.cell['codec']}`",
                *(f"{errors[name]:.2f}" for name in names),
                " / ".join(f"{each:.0f}" for each in bins),
                f"{record.result['score']:.3f}",
            )
        )
    head = ("trained under", *(f"`{name}`" for name in names), "bins, %", "final loss")
    return {name: str(value) for name, value in records[0].cell.items()} | {
        "errors": table(head, rows)
    }


def draw(records: Records, figure: Figure) -> None:
    axes = figure.subplots()
    found = next(each.result for each in records if each.cell["codec"] == "2bit")
    for i, name in enumerate((*OURS, *THEIRS)):
        errors = [100 * each["errors"][name] for each in found["rounds"]]
        axes.plot(range(1, len(errors) + 1), errors, color=COLOURS[i], label=name)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round of the training under 2bit")
    axes.set_ylabel("error, % of the square")
    axes.legend(fontsize=7)


CODEC_ERROR = Entry("codec-error", cells, run, checks, fields, draw)
