"""What a run came to, on the terminal and as a page."""

from pathlib import Path

import transformers

from planted import results
from planted.answers import FLOOR, OURS, REPLAY, THE_MODEL
from planted.results import ARRANGED, Results, is_innocent
from planted.score import IN_PARTS, IN_RANKS, ON_TOP
from planted.shapes import RIGHT, SILENT, WRONG, Shapes
from planted.training import TRAINED
from planted.units import DTYPES
from planted.zoo import CALIBRATED, SCORED

TEXTS = ("begin", "beside", "on_top", "shapes", "how")
_LOCATED = ("float32, floor", "float32, replay", "bfloat16, floor", "bfloat16, replay")
_SCENES = {
    ON_TOP: "another implementation: fused attention, other norms, sums in two parts, two threads",
    IN_PARTS: "each sequence by itself",
    IN_RANKS: "two ranks that share a model",
}
_HEADS = ("", "false alarms", "alone: located / seen", "on top: located / seen", "located, above noise")


def show(made: Results) -> None:
    for dtype in DTYPES:
        if any(one.dtype == dtype for one in made.cases):
            limits = made.limits[dtype]
            print(
                f"\n{dtype}: beyond noise from {limits.floor:.2f} times (floor), {limits.replay:.2f} (replay)"
            )
            print(_aligned([list(_HEADS), *results.table(made, dtype)]))
            for tool in (FLOOR, REPLAY):
                for what, told, where, count in results.misses(made, dtype, tool):
                    print(f"  {tool} missed {what} {count}x, answered {told}: {where}")
    for one in made.cases:
        if is_innocent(one) and any(one.answers[tool].accuses for tool in OURS if tool in one.answers):
            print(f"  false alarm: {one.what} in {one.kind}, {one.dtype}, seed {one.seed}: {one.answers}")
    print()
    for what, counts in made.shapes.items():
        if counts.total() > counts[RIGHT]:
            print(f"  shape of a difference, {what}: {dict(counts)}")
    for bar in results.bars(made):
        print(f"{'met   ' if bar.is_met else 'MISSED'} {bar.what}: {bar.found}, bar {bar.wanted}")


def written(made: Results) -> str:
    parts = (_begin, _bars, _tables, _on_top, _families, _shapes, _misses, _method)
    return "\n".join(part(made) for part in parts)


def _begin(made: Results) -> str:
    planted = sum(one.located is not None and one.family != ARRANGED for one in made.cases)
    return text("begin").format(
        models=len(SCORED),
        kinds=sum(len(names) for family, names in made.kinds.items() if family != ARRANGED),
        families=len(made.kinds.keys() - {ARRANGED}),
        arrangements=len(made.kinds.get(ARRANGED, ())),
        planted=f"{planted:,}",
        harmless=sum(one.located is None for one in made.cases),
    )


def text(name: str) -> str:
    return Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")


def _bars(made: Results) -> str:
    rows = [
        [bar.what, bar.wanted, bar.found, "met" if bar.is_met else "**missed**"] for bar in results.bars(made)
    ]
    return "## Bars\n\n" + _table(["", "bar", "found", ""], rows)


def _tables(made: Results) -> str:
    parts = [text("beside")]
    for dtype in DTYPES:
        parts.append(f"### {dtype}\n\n" + _table(list(_HEADS), results.table(made, dtype)))
    return "\n".join(parts)


def _families(made: Results) -> str:
    told = "Located by family; in bfloat16 of those above noise.\n"
    both = [results.families(made, dtype) for dtype in DTYPES]
    rows = [
        [family, str(len(names)), *(cell for one in both for cell in one[family])]
        for family, names in made.kinds.items()
    ]
    return "\n".join(["## Families\n", told, _table(["family", "kinds", *_LOCATED], rows)])


def _on_top(made: Results) -> str:
    both = [results.on_top(made, dtype) for dtype in DTYPES]
    rows = [[told, *(cell for one in both for cell in one[scene])] for scene, told in _SCENES.items()]
    return text("on_top") + "\n" + _table(["on top of", *_LOCATED], rows)


def _shapes(made: Results) -> str:
    tables = [
        _table([head, "right", "silent", "something else told"], _counted(shapes))
        for head, shapes in (("detector", made.detectors), ("what was done", made.shapes))
    ]
    return "\n".join([text("shapes"), *tables])


def _counted(shapes: Shapes) -> list[list[str]]:
    return [
        [what, *(str(counts[outcome]) for outcome in (RIGHT, SILENT, WRONG))]
        for what, counts in shapes.items()
    ]


def _misses(made: Results) -> str:
    parts = ["## Where it is wrong\n"]
    for dtype in DTYPES:
        for tool, how in ((FLOOR, "with a floor"), (REPLAY, "by replay")):
            rows = [
                [what, told, where, str(count)]
                for what, told, where, count in results.misses(made, dtype, tool)
            ]
            title = f"### {dtype}, {how}\n"
            body = _table(["bug", "answered", "in", "times"], rows) if rows else "Nothing was missed.\n"
            parts += [title, body]
    parts += ["### Several at once, by replay\n", _of_several(made)]
    parts += ["### False alarms, and arrangements that were not told\n", _alarms(made)]
    return "\n".join(parts)


def _of_several(made: Results) -> str:
    rows = []
    for one in made.several:
        if not one.are_found or one.others:
            left = _names(set(one.located) - set(one.told)) or "all named"
            more = _names(set(one.told) - set(one.located)) or "nobody else"
            rows.append([f"{one.kind}, {one.dtype}", ", ".join(one.bugs), left, more])
    return _table(["model", "bugs", "not named", "also accused"], rows) if rows else "None was missed.\n"


def _names(modules: set[str]) -> str:
    return ", ".join(one or THE_MODEL for one in sorted(modules))


def _alarms(made: Results) -> str:
    rows = []
    for one in made.cases:
        for tool in (FLOOR, REPLAY):
            if tool not in one.answers:
                continue
            is_untold = one.family == ARRANGED and not one.is_hit(tool)
            if is_untold or (is_innocent(one) and one.answers[tool].accuses):
                rows.append([f"{one.kind}, {one.dtype}", one.what, tool, str(one.answers[tool])])
    return _table(["model", "what", "tool", "answered"], rows) if rows else "None.\n"


def _method(made: Results) -> str:
    sorts: dict[str, list[str]] = {}
    for kind in SCORED.values():
        sorts.setdefault(kind.sort, []).append(kind.name)
    models = "; ".join(f"{sort}: {', '.join(names)}" for sort, names in sorts.items())
    kinds = "\n".join(f"| {family} | {', '.join(sorted(names))} |" for family, names in made.kinds.items())
    return text("how").format(
        models=models,
        version=transformers.__version__,
        seeds=" and ".join(str(seed) for seed in sorted({one.seed for one in made.cases})),
        calibrated=", ".join(CALIBRATED),
        limits=_limits(made),
        trained=", ".join(TRAINED),
        kinds=kinds,
    )


def _limits(made: Results) -> str:
    rows = []
    for dtype in DTYPES:
        limits, (floor, replay) = made.limits[dtype], made.worst[dtype]
        rows.append([f"{dtype}, floor", f"{floor.ratio:.2f}", floor.told, f"{limits.floor:.2f}"])
        rows.append([f"{dtype}, replay", f"{replay.ratio:.2f}", replay.told, f"{limits.replay:.2f}"])
    return _table(["", "reached", "by", "limit"], rows)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
