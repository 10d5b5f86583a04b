"""What a run came to, on the terminal and as a page."""

from pathlib import Path

import transformers

from planted import results
from planted.answers import FLOOR, REPLAY, THE_MODEL
from planted.results import ARRANGED, Results
from planted.shapes import RIGHT, SILENT, WRONG
from planted.training import TRAINED
from planted.units import DTYPES
from planted.zoo import CALIBRATED, SCORED

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
        if one.located is None and any(one.is_seen(tool) for tool in (FLOOR, REPLAY) if tool in one.answers):
            print(f"  false alarm: {one.what} in {one.kind}, {one.dtype}, seed {one.seed}: {one.answers}")
    print()
    for what, counts in made.shapes.items():
        if counts.total() > counts[RIGHT]:
            print(f"  shape of a difference, {what}: {dict(counts)}")
    for bar in results.bars(made):
        print(f"{'met   ' if bar.is_met else 'MISSED'} {bar.what}: {bar.found}, bar {bar.wanted}")


def written(made: Results) -> str:
    parts = [_begin(made), _bars(made), _tables(made), _families(made), _shapes(made), _misses(made)]
    parts.append(_method(made))
    return "\n".join(parts)


def _begin(made: Results) -> str:
    planted = sum(one.located is not None and one.family != ARRANGED for one in made.cases)
    return _text("begin").format(
        models=len(SCORED),
        kinds=sum(len(names) for family, names in made.kinds.items() if family != ARRANGED),
        families=len(made.kinds.keys() - {ARRANGED}),
        arrangements=len(made.kinds.get(ARRANGED, ())),
        planted=f"{planted:,}",
        harmless=sum(one.located is None for one in made.cases),
    )


def _text(name: str) -> str:
    return Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")


def _bars(made: Results) -> str:
    rows = [
        [bar.what, bar.wanted, bar.found, "met" if bar.is_met else "**missed**"] for bar in results.bars(made)
    ]
    return "## Bars\n\n" + _table(["", "bar", "found", ""], rows)


def _tables(made: Results) -> str:
    parts = [_text("beside")]
    for dtype in DTYPES:
        parts.append(f"### {dtype}\n\n" + _table(list(_HEADS), results.table(made, dtype)))
    return "\n".join(parts)


def _families(made: Results) -> str:
    parts = ["## Families\n\nLocated by family; in bfloat16 of those above noise.\n"]
    rows = []
    both = {dtype: {family: cells for family, _, cells in results.families(made, dtype)} for dtype in DTYPES}
    for family, names in made.kinds.items():
        rows.append([family, str(len(names)), *both["float32"][family], *both["bfloat16"][family]])
    heads = ["family", "kinds", "float32, floor", "float32, replay", "bfloat16, floor", "bfloat16, replay"]
    return "\n".join([*parts, _table(heads, rows)])


def _shapes(made: Results) -> str:
    told = (
        "What `.explain` tells of the shape of a difference, of arrays of which it is known what was done. "
        "Where that has no shape, as noise has none, silence is right."
    )
    rows = [
        [what, *(str(counts[outcome]) for outcome in (RIGHT, SILENT, WRONG))]
        for what, counts in made.shapes.items()
    ]
    table = _table(["what was done", "right", "silent", "something else told"], rows)
    return f"## Shapes of differences\n\n{told}\n\n{table}"


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
            is_wrong = (
                one.is_seen(tool) if one.located is None else one.family == ARRANGED and not one.is_hit(tool)
            )
            if is_wrong:
                rows.append([f"{one.kind}, {one.dtype}", one.what, tool, str(one.answers[tool])])
    return _table(["model", "what", "tool", "answered"], rows) if rows else "None.\n"


def _method(made: Results) -> str:
    sorts: dict[str, list[str]] = {}
    for kind in SCORED.values():
        sorts.setdefault(kind.sort, []).append(kind.name)
    models = "; ".join(f"{sort}: {', '.join(names)}" for sort, names in sorts.items())
    kinds = "\n".join(f"| {family} | {', '.join(sorted(names))} |" for family, names in made.kinds.items())
    return _text("how").format(
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
